"""Metrics and warnings in files: JSON lines, and TensorBoard's events as its own plugins read them."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

from core.telemetry import JsonLines, Telemetry, TensorBoard, Warned

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


@pytest.mark.long
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
    """Returns the scalars of each split, by `split/name`."""
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


def kept(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_is_kept_once_with_the_last_step_heard_of(tmp_path):
    path = tmp_path / "warnings.jsonl"
    telemetry = Telemetry([], Warned(path, 0))
    assert not path.exists()  # a healthy run leaves no file
    telemetry.progress(10)
    telemetry.warn_once("20 % of the time was spent waiting")
    telemetry.write(20, "train", {"loss": 1.0})
    telemetry.warn_once("31 % of the time was spent waiting")
    telemetry.warn_once("something else")
    telemetry.close()
    expected = [(10, "20 % of the time was spent waiting"), (20, "something else")]
    assert [(line["step"], line["warning"]) for line in kept(path)] == expected


@pytest.mark.parametrize("first_step", [0, 10, 20])
def test_resumed_run_keeps_earlier_ones_and_repeats_none(tmp_path, first_step):
    path = tmp_path / "warnings.jsonl"
    for step, text in ((10, "early 1"), (20, "late 1")):
        Warned(path, 10).warn(step, text)
    with path.open("a") as file:
        file.write('{"step": 20, "warn')  # and was killed
    warned = Warned(path, first_step)
    for text in ("early 2", "late 2"):
        warned.warn(30, text)
    found = [(line["step"], line["warning"]) for line in kept(path)]
    early = (10, "early 1") if first_step else (30, "early 2")
    assert found == [early, (20, "late 1") if first_step == 20 else (30, "late 2")]


def test_warnings_of_different_things_are_kept_each_time(tmp_path):
    path = tmp_path / "warnings.jsonl"
    for _ in range(2):  # the second run was killed, and reaches the same steps
        telemetry = Telemetry([], Warned(path, 10))
        telemetry.progress(10)
        for step in (7, 8):
            telemetry.warn(f"step {step} was left out")
        telemetry.close()
    assert [line["warning"] for line in kept(path)] == ["step 7 was left out", "step 8 was left out"]


def test_warnings_after_a_rewind_are_given_again(tmp_path):
    path = tmp_path / "warnings.jsonl"
    telemetry = Telemetry([], Warned(path, 0))
    for step in (30, 20, 30):
        telemetry.rewind(20)
        telemetry.progress(step)
        telemetry.warn_once("it is slow")
        assert [line["step"] for line in kept(path)] == [step]
        telemetry.rewind(10)
    telemetry.close()


def read(folder):
    return EventAccumulator(str(folder), size_guidance={"histograms": 0, "images": 0, "tensors": 0}).Reload()


def written(folder):
    writer = TensorBoard(folder, 0)
    writer.describe("Trainer.steps = 300", {"adamw.learning_rate": "0.001", "x.on": "True", "x.task": "@Mlp"})
    writer.histograms(
        7, {"layers/0/w": np.array([[0.0, 1.0], [1.0, 4.0], [np.nan, np.inf]], "float32"), "b": np.zeros([3])}
    )
    picture = io.BytesIO()
    Image.new("RGB", (5, 3)).save(picture, "PNG")
    writer.image(7, "samples", picture.getvalue())
    writer.text(7, "texts", "One.\n\n# no heading")
    writer.close()


def test_the_configuration_is_a_text_and_hyperparameters(tmp_path):
    written(tmp_path)
    events = read(tmp_path)
    (text,) = events.Tensors("configuration")
    assert text.tensor_proto.string_val[0].decode() == "```\nTrainer.steps = 300\n```"
    data = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    session = parse_session_start_info_plugin_data(data)
    assert session.group_name == "/".join(tmp_path.parts[-3:-1])  # its row goes by the folder of the run
    found = session.hparams
    assert found["adamw.learning_rate"].number_value == 0.001
    assert found["x.on"].bool_value is True
    assert found["x.task"].string_value == "@Mlp"


def test_histograms_have_the_moments_of_the_values(tmp_path):
    written(tmp_path)
    events = read(tmp_path / "weights")
    (event,) = events.Histograms("layers/0/w")
    found = event.histogram_value
    assert (event.step, found.min, found.max, found.num, found.sum, found.sum_squares) == (7, 0.0, 4.0, 4, 6.0, 18.0)
    assert sum(found.bucket) == 4
    assert len(found.bucket) == len(found.bucket_limit)
    assert np.searchsorted(found.bucket_limit, [1.01])[0] == int(np.argmax(found.bucket))  # two ones
    assert events.Histograms("b")[0].histogram_value.num == 3  # of values that are all the same


def test_pictures_and_texts_are_samples(tmp_path):
    written(tmp_path)
    events = read(tmp_path / "samples")
    (image,) = events.Images("samples")
    assert (image.step, image.width, image.height) == (7, 5, 3)
    (text,) = events.Tensors("texts")
    assert text.tensor_proto.string_val[0].decode() == "    One.\n    \n    # no heading\n"  # as it stands
