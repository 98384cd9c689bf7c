"""On a full disk TensorBoard's events are dropped with one warning; metrics end the run."""

import contextlib
import json
import resource

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from core.disk import append_whole
from core.errors import NoRoomError
from core.telemetry import JsonLines, Telemetry, TensorBoard, Warned


@contextlib.contextmanager
def most(size):
    """Limits the size of files to `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Notes:
    """A screen that records its lines."""

    live = False

    def __init__(self):
        self.notes, self.steps = [], []

    def write(self, step, split, figures):
        self.steps.append(step)

    def progress(self, step, figures=None):
        pass

    def note(self, text):
        self.notes.append(text)

    def close(self):
        pass


def test_append_without_room_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "file"
    with path.open("ab", buffering=0) as stream:
        append_whole(stream, b"first\n")
        with most(9), pytest.raises(OSError, match="File too large"):
            append_whole(stream, b"second\n")
        assert path.read_bytes() == b"first\n"
        append_whole(stream, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def picture(telemetry, step):
    telemetry.image(step, "samples", b"\x89PNG\r\n\x1a\n" + bytes(300))


SHOWN = {
    "train": lambda telemetry, step: telemetry.write(step, "train", {"loss": step / 4}),
    "weights": lambda telemetry, step: telemetry.histograms(step, {"w": np.arange(50.0)}),
    "samples": picture,
    "texts": lambda telemetry, step: telemetry.text(step, "texts", "a text"),
    ".": lambda telemetry, step: telemetry.describe("Trainer.steps = 3", {"Trainer.steps": "3"}),
}


@pytest.mark.parametrize("what", SHOWN)
def test_events_without_room_are_left_out_and_warned_of_once(what, tmp_path):
    notes = Notes()
    telemetry = Telemetry([notes, TensorBoard(tmp_path / "events", 0)])
    show = SHOWN[what]
    show(telemetry, 1)
    folder = tmp_path / "events" / ("samples" if what == "texts" else what)
    (path,) = folder.glob("events*")
    before = path.read_bytes()
    with most(len(before) + 10):
        for step in (2, 3):
            show(telemetry, step)
        telemetry.write(4, "eval", {f"figure_{i}": 1.0 for i in range(99)})  # into a file that doesn't exist yet
    assert path.read_bytes() == before
    show(telemetry, 5)
    telemetry.write(5, "eval", {"loss": 0.5})
    telemetry.close()
    (note,) = notes.notes
    assert note.startswith(f"Warning: `{tmp_path / 'events'}` can't be written: File too large. ")
    assert note.endswith("; until then TensorBoard is shown nothing more of this run.")
    assert path.read_bytes().startswith(before)
    assert len(path.read_bytes()) == 2 * len(before) - len(head(before))
    found = EventAccumulator(str(tmp_path / "events" / "eval")).Reload()
    assert [event.step for event in found.Scalars("loss")] == [5]
    assert EventAccumulator(str(folder)).Reload().Tags()  # which is no error


def head(records):
    """Returns the start of an event file: two records."""
    first = 16 + int.from_bytes(records[:8], "little")
    return records[: first + 16 + int.from_bytes(records[first : first + 8], "little")]


def test_a_file_that_finds_no_room_for_its_head_is_none(tmp_path):
    notes, events = Notes(), tmp_path / "events"
    telemetry = Telemetry([notes, TensorBoard(events, 0)])
    with most(30):
        telemetry.write(1, "train", {"loss": 0.5})
    assert [*(events / "train").iterdir()] == []
    telemetry.write(2, "train", {"loss": 0.25})
    telemetry.close()
    assert len(notes.notes) == 1
    found = EventAccumulator(str(events / "train")).Reload()
    assert [event.step for event in found.Scalars("loss")] == [2]


def test_warnings_that_find_no_room_are_shown_all_the_same(tmp_path):
    notes, path = Notes(), tmp_path / "warnings.jsonl"
    telemetry = Telemetry([notes], Warned(path, 0))
    telemetry.warn_once("first")
    before = path.read_bytes()
    with most(len(before) + 10):
        telemetry.warn_once("second")
        telemetry.warn_once("third")
    telemetry.warn_once("fourth")
    telemetry.close()
    assert [note.partition(": ")[2][:8] for note in notes.notes] == [
        "first",
        "second",
        f"`{path}"[:8],
        "third",
        "fourth",
    ]
    assert "until then warnings are shown, but not kept" in notes.notes[2]
    assert [json.loads(line)["warning"] for line in path.read_text().splitlines()] == ["first", "fourth"]


def test_figures_that_find_no_room_end_the_run(tmp_path):
    telemetry = Telemetry([JsonLines(tmp_path / "metrics.jsonl", 0), TensorBoard(tmp_path / "events", 0)])
    telemetry.write(1, "train", {"loss": 0.5})
    with (
        most(50),
        pytest.raises(NoRoomError, match=r"metrics.jsonl` can't be written: .*; the same command then resumes"),
    ):
        telemetry.write(2, "train", {"loss": 0.5})
    telemetry.close()
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
