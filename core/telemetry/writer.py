"""The `Writer` interface, and `Telemetry`, which passes metrics to several writers."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy.typing as npt

from core.errors import NoRoomError
from core.telemetry.jsonl import Warned, gist


class Writer(Protocol):
    """Receives metrics by step and by split of the data (`train`, `eval`, ...)."""

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """Writes `figures` at once, without buffering."""

    def close(self) -> None:
        """Closes the writer; nothing is written after this."""


@runtime_checkable
class Screen(Writer, Protocol):
    """A writer that a person watches while the run lasts, such as the console."""

    live: bool  # whether it shows progress as it is made, not only written lines

    def progress(self, step: int, figures: Mapping[str, SupportsFloat] | None = None) -> None:
        """Shows that the run has reached `step`, with some metrics."""

    def note(self, text: str) -> None:
        """Shows a line of text."""


@runtime_checkable
class Rewinding(Writer, Protocol):
    """A writer whose records can be removed again, if a run goes back to an earlier step."""

    def rewind(self, step: int) -> None:
        """Removes the records of all steps after `step`."""


@runtime_checkable
class Gallery(Writer, Protocol):
    """A writer that also shows images, texts and histograms, such as TensorBoard. It skips them on a full disk."""

    def describe(self, text: str, settings: Mapping[str, str]) -> None:
        """Shows the configuration: its `text`, and the value of each setting."""

    def image(self, step: int, name: str, png: bytes) -> None:
        """Shows a PNG image."""

    def text(self, step: int, name: str, text: str) -> None:
        """Shows a text."""

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Shows a histogram of each array."""


class Telemetry:
    """Passes metrics to all `writers` (perhaps none), and progress and notes to those that are screens."""

    def __init__(self, writers: Sequence[Writer] = (), warned: Warned | None = None):
        self.warned = warned
        self._take(writers)
        self._warnings: set[str] = set()
        self._step = 0  # the last reported one

    def add(self, writer: Writer) -> None:
        """Adds a writer, which gets everything that is written after this call."""
        self._take([*self.writers, writer])

    def _take(self, writers: Sequence[Writer]) -> None:
        self.writers = tuple(writers)
        self.screens = tuple(writer for writer in writers if isinstance(writer, Screen))
        self.galleries = tuple(writer for writer in writers if isinstance(writer, Gallery))
        self.live = any(screen.live for screen in self.screens)

    def write(self, step: int, split: str, figures: Mapping[str, float], *, shown: bool = True) -> None:
        """Passes `figures` to each writer. With `shown=False`, screens don't get them."""
        self._step = step
        for writer in self.writers:
            if writer not in self.galleries and (shown or writer not in self.screens):
                writer.write(step, split, figures)
        self._show(lambda gallery: gallery.write(step, split, figures))

    def progress(self, step: int, figures: Mapping[str, SupportsFloat] | None = None) -> None:
        """Passes the step and metrics to the screens. It is cheap enough to call after each chunk of steps."""
        self._step = step
        for screen in self.screens:
            screen.progress(step, figures)

    def rewind(self, step: int) -> None:
        """Removes the records of all steps after `step` from each writer that can remove them."""
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
        """Shows a histogram of each array in each gallery."""
        self._show(lambda gallery: gallery.histograms(step, values))

    def note(self, text: str) -> None:
        for screen in self.screens:
            screen.note(text)

    def warn_once(self, text: str) -> None:
        """Shows and stores a warning once. Texts that differ only in numbers count as the same warning."""
        if gist(text) not in self._warnings:
            self._warnings.add(gist(text))
            self.warn(text, each=False)

    def warn(self, text: str, *, each: bool = True) -> None:
        """Shows a warning and stores it. With `each=False`, one that differs only in numbers isn't stored again."""
        self.note(f"Warning: {text}")
        if self.warned:
            with self.sparing():
                self.warned.warn(self._step, text, each=each)

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """For optional output: turns a `NoRoomError` in its `with` block into a warning."""
        try:
            yield
        except NoRoomError as error:
            self.warn_once(str(error))

    def close(self) -> None:
        """Closes every writer, even if closing another one raises an error."""
        with contextlib.ExitStack() as closing:
            for writer in self.writers:
                closing.callback(writer.close)
            if self.warned:
                closing.callback(self.warned.close)

    def _show(self, show: Callable[[Gallery], None]) -> None:
        for gallery in self.galleries:
            with self.sparing():
                show(gallery)
