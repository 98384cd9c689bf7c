"""Figures for TensorBoard, by its own writer: no TensorFlow op runs, so there is nothing to trace or to place."""

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from core.disk import space_for

_count = itertools.count()


class TensorBoard:
    """Writes scalars under the tags `split/name` into a new event file in `directory`.

    `first_step` is the step that the run goes on from: TensorBoard forgets what an earlier, killed run of the same
    directory wrote for later steps. At 0 it forgets everything.
    """

    def __init__(self, directory: Path, first_step: int, clock: Callable[[], float] = time.time):
        self._clock = clock
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.{next(_count)}"
        self._path = directory / name
        with space_for(self._path):
            directory.mkdir(parents=True, exist_ok=True)
            # TensorBoard's own `EventFileWriter` writes in a thread, where a full disk ends in a traceback.
            self._file = RecordWriter(self._path.open("wb"))
        self._write(Event(file_version="brain.Event:2"))
        # TensorBoard drops the steps from this one on, itself included.
        start = first_step + 1 if first_step else 0
        self._write(Event(step=start, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """Writes one event that holds all `figures`."""
        values = [Summary.Value(tag=f"{split}/{name}", simple_value=float(value)) for name, value in figures.items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def image(self, step: int, name: str, png: bytes) -> None:
        """Writes a picture; its size stands in the PNG's header."""
        width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
        picture = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=3)
        self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, image=picture)])))

    def close(self) -> None:
        """Closes the event file."""
        with space_for(self._path):
            self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = self._clock()
        with space_for(self._path):
            self._file.write(event.SerializeToString())
            self._file.flush()  # or a kill would take figures with it
