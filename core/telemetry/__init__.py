"""Writes metrics to the console, to JSON lines and to TensorBoard. Each is a `Writer`.

from core.telemetry import Console, JsonLines, Telemetry, TensorBoard

console = Console(total_steps=2000)
telemetry = Telemetry([console, JsonLines(workdir / "metrics.jsonl", first_step), TensorBoard(workdir, first_step)])
telemetry.write(500, "train", {"loss": 0.1234, "accuracy": 0.971})
telemetry.close()
"""

from core.telemetry.console import Console
from core.telemetry.jsonl import JsonLines, StepLines, Warned
from core.telemetry.tensorboard import TensorBoard
from core.telemetry.writer import Screen, Telemetry, Writer

__all__ = ["Console", "JsonLines", "Screen", "StepLines", "Telemetry", "TensorBoard", "Warned", "Writer"]
