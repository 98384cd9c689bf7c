"""The `Writer` interface of console, JSON lines and TensorBoard, and `Telemetry`, which writes to several."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy.typing as npt

from core.errors import NoRoomError
from core.telemetry.jsonl import Warned, gist


class Writer(Protocol):
    """A destination for the metrics of a step, for one split of the data (`train`, `eval`, ...)."""

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """Writes `figures` so that readers see them at once."""

    def close(self) -> None:
        """Ends writing."""


@runtime_checkable
class Screen(Writer, Protocol):
    """A writer that a person watches."""

    live: bool  # whether it shows progress as it is made, not only written lines

    def progress(self, step: int, figures: Mapping[str, SupportsFloat] | None = None) -> None:
        """Shows the progress of the run."""

    def note(self, text: str) -> None:
        """Shows a line of text."""


@runtime_checkable
class Rewinding(Writer, Protocol):
    """A writer that keeps its input, and can remove it again."""

    def rewind(self, step: int) -> None:
        """Removes everything written for steps after this one."""


@runtime_checkable
class Gallery(Writer, Protocol):
    """A writer that can show more than metrics. On a full disk it skips them, and the run continues."""

    def describe(self, text: str, settings: Mapping[str, str]) -> None:
        """Shows how the run is configured."""

    def image(self, step: int, name: str, png: bytes) -> None:
        """Shows a PNG."""

    def text(self, step: int, name: str, text: str) -> None:
        """Shows a text."""

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Shows the distribution of each array's values."""


class Telemetry:
    """Several writers as one; its screens also get progress and notes. Without writers it does nothing."""

    def __init__(self, writers: Sequence[Writer] = (), warned: Warned | None = None):
        self.warned = warned
        self._take(writers)
        self._warnings: set[str] = set()
        self._step = 0  # the last reported one

    def add(self, writer: Writer) -> None:
        """Adds a writer, which gets everything written from now on."""
        self._take([*self.writers, writer])

    def _take(self, writers: Sequence[Writer]) -> None:
        self.writers = tuple(writers)
        self.screens = tuple(writer for writer in writers if isinstance(writer, Screen))
        self.galleries = tuple(writer for writer in writers if isinstance(writer, Gallery))
        self.live = any(screen.live for screen in self.screens)

    def write(self, step: int, split: str, figures: Mapping[str, float], *, shown: bool = True) -> None:
        """Passes `figures` to each writer in turn; to screens only if `shown`."""
        self._step = step
        for writer in self.writers:
            if writer not in self.galleries and (shown or writer not in self.screens):
                writer.write(step, split, figures)
        self._show(lambda gallery: gallery.write(step, split, figures))

    def progress(self, step: int, figures: Mapping[str, SupportsFloat] | None = None) -> None:
        """Shows the progress of the run; cheap enough to call after each chunk of steps."""
        self._step = step
        for screen in self.screens:
            screen.progress(step, figures)

    def rewind(self, step: int) -> None:
        """Removes the records of all steps after `step` from each writer."""
        self._step = step
        for writer in self.writers:
            if isinstance(writer, Rewinding):
                writer.rewind(step)
        self._warnings.clear()
        if self.warned:
            self.warned.rewind(step)

    def describe(self, text: str, settings: Mapping[str, str]) -> None:
        self._show(lambda gallery: gallery.describe(text, settings))

    def image(self, step: int, name: str, png: bytes) -> None:
        self._show(lambda gallery: gallery.image(step, name, png))

    def text(self, step: int, name: str, text: str) -> None:
        self._show(lambda gallery: gallery.text(step, name, text))

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Shows the distribution of arrays' values in each gallery."""
        self._show(lambda gallery: gallery.histograms(step, values))

    def note(self, text: str) -> None:
        for screen in self.screens:
            screen.note(text)

    def warn_once(self, text: str) -> None:
        """Shows and keeps a warning once; warnings that differ only in numbers count as the same."""
        if gist(text) not in self._warnings:
            self._warnings.add(gist(text))
            self.warn(text, each=False)

    def warn(self, text: str, *, each: bool = True) -> None:
        """Shows and keeps a warning; without `each`, only if the file has none that differs only in numbers."""
        self.note(f"Warning: {text}")
        if self.warned:
            with self.sparing():
                self.warned.warn(self._step, text, each=each)

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """Warns if a disk is full during its context, for work that the run can do without."""
        try:
            yield
        except NoRoomError as error:
            self.warn_once(str(error))

    def close(self) -> None:
        """Closes every writer, even if one of them fails to close."""
        with contextlib.ExitStack() as closing:
            for writer in self.writers:
                closing.callback(writer.close)
            if self.warned:
                closing.callback(self.warned.close)

    def _show(self, show: Callable[[Gallery], None]) -> None:
        for gallery in self.galleries:
            with self.sparing():
                show(gallery)
