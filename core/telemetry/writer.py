"""The one interface behind which console, JSON lines and TensorBoard look the same, and several of them as one."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy.typing as npt

from core.errors import NoRoomError
from core.telemetry.jsonl import Warned, gist


class Writer(Protocol):
    """Takes the figures of a step, for one split of the data (`train`, `eval`, ...)."""

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """Writes `figures` where a reader sees them at once."""

    def close(self) -> None:
        """Writes nothing more."""


@runtime_checkable
class Screen(Writer, Protocol):
    """A writer that a person is looking at."""

    live: bool  # whether it shows more than what is written: progress as it is made

    def progress(self, step: int, figures: Mapping[str, SupportsFloat] | None = None) -> None:
        """Shows how far the run is."""

    def note(self, text: str) -> None:
        """Shows a line of text."""


@runtime_checkable
class Rewinding(Writer, Protocol):
    """A writer that keeps what it is given, and can take it back."""

    def rewind(self, step: int) -> None:
        """Forgets what was written of steps after this one."""


@runtime_checkable
class Gallery(Writer, Protocol):
    """A writer that can show more than figures. What there is no room for in it is left out, and the run goes on."""

    def describe(self, text: str, settings: Mapping[str, str]) -> None:
        """Shows how the run is configured."""

    def image(self, step: int, name: str, png: bytes) -> None:
        """Shows a PNG."""

    def text(self, step: int, name: str, text: str) -> None:
        """Shows a text."""

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Shows how the values of arrays are distributed."""


class Telemetry:
    """Several writers as one; the screens among them get progress and notes too. Without writers it says nothing."""

    def __init__(self, writers: Sequence[Writer] = (), warned: Warned | None = None):
        self.warned = warned
        self._take(writers)
        self._warnings: set[str] = set()
        self._step = 0  # the last one heard of

    def add(self, writer: Writer) -> None:
        """Takes one writer more: it gets what is written from now on."""
        self._take([*self.writers, writer])

    def _take(self, writers: Sequence[Writer]) -> None:
        self.writers = tuple(writers)
        self.screens = tuple(writer for writer in writers if isinstance(writer, Screen))
        self.galleries = tuple(writer for writer in writers if isinstance(writer, Gallery))
        self.live = any(screen.live for screen in self.screens)

    def write(self, step: int, split: str, figures: Mapping[str, float], *, shown: bool = True) -> None:
        """Hands `figures` to each writer in turn; to screens only if they are to be `shown`."""
        self._step = step
        for writer in self.writers:
            if writer not in self.galleries and (shown or writer not in self.screens):
                writer.write(step, split, figures)
        self._show(lambda gallery: gallery.write(step, split, figures))

    def progress(self, step: int, figures: Mapping[str, SupportsFloat] | None = None) -> None:
        """Shows how far the run is; cheap enough to call after each chunk of steps."""
        self._step = step
        for screen in self.screens:
            screen.progress(step, figures)

    def rewind(self, step: int) -> None:
        """Has the steps after this one be as if they had never been, wherever they were kept."""
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
        """Shows in each gallery how the values of arrays are distributed."""
        self._show(lambda gallery: gallery.histograms(step, values))

    def note(self, text: str) -> None:
        for screen in self.screens:
            screen.note(text)

    def warn_once(self, text: str) -> None:
        """Shows and keeps a warning, unless it was before; one that differs in its numbers alone is the same."""
        if gist(text) not in self._warnings:
            self._warnings.add(gist(text))
            self.warn(text, each=False)

    def warn(self, text: str, *, each: bool = True) -> None:
        """Shows and keeps a warning; `each`, or what a file has none of yet that differs in its numbers alone."""
        self.note(f"Warning: {text}")
        if self.warned:
            with self.sparing():
                self.warned.warn(self._step, text, each=each)

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """Warns where a disk has no room for what is done within, which a run does as well without."""
        try:
            yield
        except NoRoomError as error:
            self.warn_once(str(error))

    def close(self) -> None:
        """Closes every writer, also when one of them fails to."""
        with contextlib.ExitStack() as closing:
            for writer in self.writers:
                closing.callback(writer.close)
            if self.warned:
                closing.callback(self.warned.close)

    def _show(self, show: Callable[[Gallery], None]) -> None:
        for gallery in self.galleries:
            with self.sparing():
                show(gallery)
