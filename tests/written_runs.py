"""Writes folders of runs with the code of real ones, without training."""

import json
import os
from pathlib import Path

from core.telemetry import JsonLines
from trainers.workdir import Workdir

OPERATIVE = """
# Macros:
steps = 300
adamw.learning_rate = {rate}
MlpClassifier.sizes = [64, 128, 10]
Experiment.task = @MlpClassifier
Trainer.steps = %steps
"""
RECORD = {
    "started": "2026-01-02T03:04:05+00:00",
    "command": ["python", "main.py", "--workdir=x"],
    "versions": {"python": "3.11.7", "tensorflow": "2.21.0"},
    "devices": ["/device:CPU:0"],
    "git": "abc",
}
LOSSES = {100: 0.5, 200: 0.25, 300: 0.375}


def write_run(path: Path, *, losses=LOSSES, split="eval", rate="0.1", exit_code=0, reason="finished", heard=None):
    """Writes the folder of a run with these values of `loss`; it has no result if `exit_code` is None."""
    workdir = Workdir(path)
    workdir.create()
    workdir.configurations.mkdir()
    (workdir.configurations / "operative.gin").write_text(OPERATIVE.format(rate=rate))
    (path / "run.json").write_text(json.dumps(RECORD))
    metrics = JsonLines(workdir.metrics, 0)
    for step, loss in losses.items():
        metrics.write(step, split, {"loss": loss})
    metrics.close()
    if exit_code is not None:
        workdir.write_result(step=max(losses), exit_code=exit_code, reason=reason, evaluation={})
    for each in path.iterdir():
        if heard is not None:
            os.utime(each, (heard, heard))
    return path
