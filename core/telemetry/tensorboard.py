"""TensorBoard output without TensorFlow operations. It affects neither tracing nor device placement."""

import io
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.plugins.text.metadata import create_summary_metadata

from core.disk import append_whole, space_for

BINS = 32  # of a histogram
LACKING = "until then TensorBoard is shown nothing more of this run"
_count = itertools.count()


class TensorBoard:
    """Writes TensorBoard events into one folder per split, `directory/<split>`.

    The run resumes from `first_step`: TensorBoard drops events of later steps that a killed run wrote to `directory`.
    If `first_step` is 0, it drops all earlier events.
    """

    def __init__(self, directory: Path, first_step: int, clock: Callable[[], float] = time.time):
        self._directory, self._first_step, self._clock = directory, first_step, clock
        self._files: dict[Path, _EventFile] = {}
        # TensorBoard drops the steps from this one on, itself included.
        self._forgotten = first_step + 1 if first_step else 0
        self._forget()

    def rewind(self, step: int) -> None:
        """Makes TensorBoard drop the events of steps after `step`."""
        self.close()
        self._files.clear()
        self._forgotten = step + 1  # the run's description is stored at its first step
        self._forget()

    def _forget(self) -> None:
        directory = self._directory
        with space_for(directory):
            directory.mkdir(parents=True, exist_ok=True)
            for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
                self._file(str(path.relative_to(directory)))  # existing folders have something to forget

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """Writes one event that holds all `figures`."""
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in figures.items()]
        self._add(split, Event(step=step, summary=Summary(value=values)))

    def describe(self, text: str, settings: Mapping[str, str]) -> None:
        """Writes the configuration as a text, and its values as hyperparameters of this run."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # imports boto3, too

        self._text("", self._first_step, "configuration", f"```\n{text}\n```")
        values = {name: _value(value) for name, value in settings.items()}
        # Otherwise TensorBoard merges runs with equal values, and names each by a hash of them.
        name = _utf8("/".join(self._directory.resolve().parts[-3:-1]))
        found = hparams_pb(values, trial_id=name, start_time_secs=self._clock())
        self._add("", Event(step=self._first_step, summary=found))

    def image(self, step: int, name: str, png: bytes) -> None:
        """Writes a PNG image. The PNG's header gives its width and height."""
        width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
        picture = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=3)
        value = Summary.Value(tag=name, image=picture)
        self._add("samples", Event(step=step, summary=Summary(value=[value])))

    def text(self, step: int, name: str, text: str) -> None:
        """Writes `text` as preformatted text."""
        self._text("samples", step, name, "".join(f"    {line}\n" for line in text.split("\n")))

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes a histogram of each array, without infinite values and NaN."""
        finite = {name: x[np.isfinite(x)].astype(np.float64) for name, x in values.items()}
        found = [Summary.Value(tag=name, histo=_histogram(x)) for name, x in finite.items() if x.size]
        self._add("weights", Event(step=step, summary=Summary(value=found)))

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _text(self, split: str, step: int, name: str, markdown: str) -> None:
        from tensorboard.util.tensor_util import make_tensor_proto  # imports boto3, too

        tensor, metadata = make_tensor_proto([_utf8(markdown).encode()]), create_summary_metadata(None, None)
        value = Summary.Value(tag=name, tensor=tensor, metadata=metadata)
        self._add(split, Event(step=step, summary=Summary(value=[value])))

    def _add(self, split: str, event: Event) -> None:
        with space_for(self._directory, then=LACKING):
            self._file(split).write(event)

    def _file(self, split: str) -> "_EventFile":
        path = self._directory / split
        if path not in self._files:
            self._files[path] = _EventFile(path, self._forgotten, self._clock)
        return self._files[path]


class _EventFile:
    """A new event file in `directory`. It makes TensorBoard drop earlier events from step `forgotten` on."""

    def __init__(self, directory: Path, forgotten: int, clock: Callable[[], float]):
        self._clock = clock
        # TensorBoard reads files in the order of their names, and restarts may be less than a second apart.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}.{next(_count):06}"
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard's `EventFileWriter` writes in a thread, where a full disk ends in a traceback.
        self._stream = (directory / name).open("ab", buffering=0)
        try:
            self.write(
                Event(file_version="brain.Event:2"),
                Event(step=forgotten, session_log=SessionLog(status=SessionLog.START)),
            )
        except OSError:
            (directory / name).unlink()
            raise

    def write(self, *events: Event) -> None:
        """Appends events with the current time. If the disk has no room for all of them, it appends none."""
        # Imports boto3 where that is installed: half the time of a command such as `runs --help`.
        from tensorboard.summary.writer.record_writer import RecordWriter

        records = io.BytesIO()
        for event in events:
            event.wall_time = self._clock()
            RecordWriter(records).write(event.SerializeToString())
        append_whole(self._stream, records.getvalue())

    def close(self) -> None:
        self._stream.close()


def _histogram(values: npt.NDArray[np.float64]) -> HistogramProto:
    counts, edges = np.histogram(values, BINS)
    return HistogramProto(
        min=values.min(),
        max=values.max(),
        num=values.size,
        sum=values.sum(),
        sum_squares=np.square(values).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )


def _value(text: str) -> bool | float | str:
    """Converts the text of a setting to a bool or number if possible. TensorBoard can then sort by it."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return _utf8(text)


def _utf8(text: str) -> str:
    """Decodes the undecoded bytes of file names in `text` as UTF-8, whatever the locale.

    >>> _utf8("runs/\\udcc3\\udca4")
    'runs/ä'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
