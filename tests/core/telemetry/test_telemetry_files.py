"""Metrics in files: JSON lines and TensorBoard's events."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from core.telemetry import JsonLines, TensorBoard

# --- JSON lines ------------------------------------------------------------------------------------------------------

LINES = [
    (10, "train", {"loss": 0.1 + 0.2, "accuracy": 0.5}),
    (20, "train", {"loss": float("nan"), "accuracy": 1.0}),
    (20, "eval", {"loss": 1e-30}),
    (30, "train", {"loss": 0.25, "accuracy": 0.75}),
    (40, "train", {"loss": 0.125, "accuracy": 0.875}),
]


def write_from(path: Path, first_step: int) -> None:
    writer = JsonLines(path, first_step)
    for step, split, figures in LINES:
        if step > first_step:
            writer.write(step, split, figures)
    writer.close()


def test_lines_are_strict_json_with_all_digits(tmp_path):
    write_from(tmp_path / "made/metrics.jsonl", 0)
    text = (tmp_path / "made/metrics.jsonl").read_text()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert list(rows[0]) == ["step", "split", "loss", "accuracy"]
    assert rows[0] == {"step": 10, "split": "train", "loss": 0.1 + 0.2, "accuracy": 0.5}
    assert rows[1]["loss"] is None
    assert [(row["step"], row["split"]) for row in rows] == [(step, split) for step, split, _ in LINES]


@pytest.mark.parametrize("first_step", [0, 10, 20, 30])
def test_killed_at_any_byte_and_resumed_leaves_the_lines_of_an_undisturbed_run(tmp_path, first_step):
    write_from(tmp_path / "whole.jsonl", 0)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    saved = sum(len(line) for line in whole.splitlines(True) if json.loads(line)["step"] <= first_step)
    path = tmp_path / "metrics.jsonl"
    for length in range(saved, len(whole) + 1):
        path.write_bytes(whole[:length])
        write_from(path, first_step)
        assert path.read_bytes() == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "whole.jsonl"]


def test_a_run_that_starts_again_from_nothing_begins_a_new_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):
        writer = JsonLines(path, first_step=0)
        writer.write(0, "eval", {"loss": 2.0})
        writer.close()
    assert path.read_text() == '{"step": 0, "split": "eval", "loss": 2.0}\n'


def test_rubbish_of_a_crashed_file_system_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 10}\n\0\0\0\n[1]\n{"step": "x"}\n{"split": "train"}\n\xff\n{"step": 20}\n')
    JsonLines(path, first_step=20).close()
    assert path.read_bytes() == b'{"step": 10}\n{"step": 20}\n'


def test_a_kill_while_lines_are_dropped_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write_from(path, 0)
    before = path.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            JsonLines(path, first_step=10)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["step", "split"])
def test_a_figure_with_a_column_s_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        JsonLines(tmp_path / "metrics.jsonl", 0).write(1, "train", {name: 1.0})


KILLED = """
import os, pathlib, signal, sys
from core.telemetry import Console, JsonLines, Telemetry, TensorBoard
directory = pathlib.Path(sys.argv[1])
telemetry = Telemetry([JsonLines(directory / "metrics.jsonl", 0), TensorBoard(directory, 0), Console(10)])
telemetry.write(5, "train", {"loss": 0.5})
sys.stdin.readline()
telemetry.note("going")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_lines_are_seen_at_once_and_outlive_a_kill(tmp_path):
    path = tmp_path / "metrics.jsonl"
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        deadline = threading.Timer(60, process.kill)
        deadline.start()
        assert process.stdout is not None
        first_line = process.stdout.readline()  # while the process waits for us
        in_the_file = path.read_text()
        out, err = process.communicate("go on\n")
        deadline.cancel()
    assert first_line == "step  5/10  train  loss 0.5000\n"
    assert in_the_file == '{"step": 5, "split": "train", "loss": 0.5}\n'
    assert process.returncode == -signal.SIGKILL
    assert (out, err) == ("going\n", "")  # neither does TensorBoard's writer say anything
    assert scalars(tmp_path) == {"train/loss": [(5, 0.5)]}


# --- TensorBoard -----------------------------------------------------------------------------------------------------


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Those of each split, by `split/name`."""
    found = {}
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        events = EventAccumulator(str(folder)).Reload()
        for tag in events.Tags()["scalars"]:
            found[f"{folder.name}/{tag}"] = [(event.step, event.value) for event in events.Scalars(tag)]
    return found


def test_scalars_are_there_before_the_writer_is_closed(tmp_path):
    writer = TensorBoard(tmp_path / "made", first_step=0, clock=lambda: 1234.5)
    writer.write(10, "train", {"loss": 0.5, "d/loss": 2.0})
    writer.write(10, "eval", {"loss": 0.25})
    assert scalars(tmp_path / "made") == {
        "train/loss": [(10, 0.5)],
        "train/d/loss": [(10, 2.0)],
        "eval/loss": [(10, 0.25)],
    }
    events = EventAccumulator(str(tmp_path / "made" / "eval")).Reload()
    assert {event.wall_time for event in events.Scalars("loss")} == {1234.5}
    writer.close()


@pytest.mark.parametrize("first_step", [0, 20])
def test_scalars_after_the_checkpoint_of_a_killed_run_are_forgotten(tmp_path, first_step):
    killed = TensorBoard(tmp_path, first_step=0)
    for step in (10, 20, 30, 40, 50):
        killed.write(step, "train", {"loss": float(step)})
        killed.write(step, "eval", {"loss": float(step)})
    resumed = TensorBoard(tmp_path, first_step)
    resumed.write(first_step + 10, "train", {"loss": -1.0})
    kept = [(step, float(step)) for step in (10, 20) if step <= first_step]
    assert scalars(tmp_path)["train/loss"] == [*kept, (first_step + 10, -1.0)]
    assert scalars(tmp_path).get("eval/loss", []) == kept
    killed.close()
    resumed.close()
