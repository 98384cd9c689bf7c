"""The one interface behind which console, JSON lines and TensorBoard look the same, and several of them as one."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Protocol, SupportsFloat, runtime_checkable

from core.telemetry.warned import Warned, gist


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
class Gallery(Writer, Protocol):
    """A writer that can show pictures."""

    def image(self, step: int, name: str, png: bytes) -> None:
        """Shows a PNG."""


class Telemetry:
    """Several writers as one; the screens among them get progress and notes too. Without writers it says nothing."""

    def __init__(self, writers: Sequence[Writer] = (), warned: Warned | None = None):
        self.writers, self.warned = tuple(writers), warned
        self.screens = tuple(writer for writer in writers if isinstance(writer, Screen))
        self.live = any(screen.live for screen in self.screens)
        self._warnings: set[str] = set()
        self._step = 0  # the last one heard of

    def write(self, step: int, split: str, figures: Mapping[str, float], *, shown: bool = True) -> None:
        """Hands `figures` to each writer in turn; to screens only if they are to be `shown`."""
        self._step = step
        for writer in self.writers:
            if shown or writer not in self.screens:
                writer.write(step, split, figures)

    def progress(self, step: int, figures: Mapping[str, SupportsFloat] | None = None) -> None:
        """Shows how far the run is; cheap enough to call after each chunk of steps."""
        self._step = step
        for screen in self.screens:
            screen.progress(step, figures)

    def image(self, step: int, name: str, png: bytes) -> None:
        """Hands a picture to each writer that has a place for one."""
        for writer in self.writers:
            if isinstance(writer, Gallery):
                writer.image(step, name, png)

    def note(self, text: str) -> None:
        """Shows a line of text."""
        for screen in self.screens:
            screen.note(text)

    def warn_once(self, text: str) -> None:
        """Shows and keeps a warning, unless it was before; one that differs in its numbers alone is the same."""
        if gist(text) not in self._warnings:
            self._warnings.add(gist(text))
            self.note(f"Warning: {text}")
            if self.warned:
                self.warned.warn(self._step, text)

    def close(self) -> None:
        """Closes every writer, also when one of them fails to."""
        with contextlib.ExitStack() as closing:
            for writer in self.writers:
                closing.callback(writer.close)
            if self.warned:
                closing.callback(self.warned.close)
