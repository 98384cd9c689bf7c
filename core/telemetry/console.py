"""Console output: a live progress bar on a terminal, plain lines in a pipe or a file.

>>> times = iter([0.0, 10.0])
>>> console = Console(total_steps=2000, clock=lambda: next(times))
>>> console.progress(0)
>>> console.write(500, "train", {"loss": 0.12341, "examples_per_second": 123456.7, "data_wait": 0.018})
step  500/2000  train  loss 0.1234  examples/s 123,457  data wait 2 %  eta 0:30
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import SupportsFloat, TextIO

from rich.console import Console as Terminal
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

Figures = Mapping[str, SupportsFloat]
Piece = tuple[str, str]  # part of a line, and its style

_REFRESH_SECONDS = 1.0  # drawing takes a millisecond or two
_SPEED = "examples_per_second"  # marks lines about the progress of training
_ON_THE_BAR = ("loss", _SPEED, "utilisation", "data_wait", "memory")  # in this order


class Console:
    """Prints one line per `write`. On a terminal, a progress bar stays below the lines.

    On a terminal, lines of training metrics are printed together, at most once a second, so that a person can read
    them.
    """

    def __init__(self, total_steps: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._total = total_steps
        self._stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._start: tuple[int, float] | None = None  # the first reported step, and its time
        self._drawn = self._printed = -math.inf  # when the bar and when lines were last drawn
        self._waiting: list[Text] = []  # lines not yet printed
        self._latest: Figures = {}  # metrics on the bar
        self._widths: dict[str, int] = {}  # of the columns so far, which align metrics of one name
        self._bar = _make_bar(self._stream, total_steps)
        self.live = self._bar is not None

    def write(self, step: int, split: str, figures: Figures) -> None:
        now = self._clock()
        self._start = self._start or (step, now)
        line: list[Piece] = [(f"step {self._padded(step)}  ", ""), (self._aligned("split", split, str.ljust), "bold")]
        for name, value in figures.items():
            line.append((f"  {label(name)} ", "dim"))
            line.append((self._aligned(name, format_figure(name, value), str.rjust), _style(value)))
        if _SPEED in figures:
            if step < self._total:
                line += [("  eta ", "dim"), (self._eta(step, now), "")]
            self._latest = {**self._latest, **figures}
        self._print(*line)
        if self._bar is not None and _SPEED not in figures:
            self._print_waiting(self._bar)
        elif self._bar is not None and now - self._printed >= _REFRESH_SECONDS:
            self._draw(self._bar, step, now)

    def progress(self, step: int, figures: Figures | None = None) -> None:
        """Updates the bar, at most once a second. `figures` are converted to numbers only when the bar is drawn.

        Call it first before the first step: the remaining time is estimated from the first call on.
        """
        now = self._clock()
        self._start = self._start or (step, now)
        if figures is not None:
            self._latest = {**self._latest, **figures}
        if self._bar is not None and (now - self._drawn >= _REFRESH_SECONDS or step >= self._total):
            self._draw(self._bar, step, now)

    def note(self, text: str) -> None:
        """Prints `text` on a line, for example that a checkpoint was saved."""
        self._print((text, ""))
        if self._bar is not None:
            self._print_waiting(self._bar)

    def close(self) -> None:
        """Removes the bar from the terminal. Printed lines stay."""
        if self._bar is not None:
            self._print_waiting(self._bar)
            self._bar.stop()

    def _print(self, *line: Piece) -> None:
        if self._bar is None:
            self._stream.write("".join(text for text, _ in line) + "\n")
            self._stream.flush()
        else:
            self._waiting.append(Text.assemble(*line))

    def _print_waiting(self, bar: Progress) -> None:
        """Prints all waiting lines at once, above the bar."""
        if self._waiting:
            # The terminal wraps long lines, so that they are whole in a wider window or when copied.
            bar.console.print(Text("\n").join(self._waiting), soft_wrap=True)
            self._waiting.clear()

    def _draw(self, bar: Progress, step: int, now: float) -> None:
        self._drawn = now
        if self._waiting:
            self._printed = now
        kinds = {name: kind for name in self._latest if (kind := name.rpartition("/")[2]) in _ON_THE_BAR}
        shown = sorted(kinds, key=lambda name: _ON_THE_BAR.index(kinds[name]))
        figures = [f"{label(name)} {format_figure(name, self._latest[name])}" for name in shown]
        eta = [f"eta {self._eta(step, now)}"] if step <= self._total else []
        text = "  ".join([self._padded(step), *eta, *figures])
        bar.start()
        bar.update(bar.task_ids[0], completed=step, text=text, refresh=not self._waiting)
        self._print_waiting(bar)

    def _padded(self, step: int) -> str:
        padded = f"{step:{len(str(self._total))}}"
        # A run that exceeds its announced number of steps has an unknown length.
        return f"{padded}/{self._total}" if step <= self._total else padded

    def _aligned(self, column: str, cell: str, justify: Callable[[str, int], str]) -> str:
        width = self._widths[column] = max(self._widths.get(column, 0), len(cell))
        return justify(cell, width)

    def _eta(self, step: int, now: float) -> str:
        """Estimates the remaining time from the average speed so far, which includes evaluations and checkpoints."""
        first_step, start = self._start or (step, now)
        if step <= first_step:
            return "-:--"
        seconds = round((self._total - step) * (now - start) / (step - first_step))
        minutes, seconds = divmod(max(seconds, 0), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def label(name: str) -> str:
    """Returns a metric's name as the console shows it.

    >>> label("examples_per_second"), label("d/gradient_penalty")
    ('examples/s', 'd/gradient penalty')
    """
    return name.replace("examples_per_second", "examples/s").replace("step_seconds", "step time").replace("_", " ")


def format_figure(name: str, value: SupportsFloat) -> str:
    """Formats a number for a person, with about four significant digits.

    >>> [format_figure("loss", x) for x in (0.12341234, 1.5, 31.41592, 65536.2, 0.00012345, 1e-9, 0.0, 2e29)]
    ['0.1234', '1.5000', '31.416', '65,536', '0.000123', '1e-09', '0.0000', '2e+29']
    >>> format_figure("data_wait", 0.018), format_figure("step_seconds", 0.00125), format_figure("examples", 60000)
    ('2 %', '1.250 ms', '60,000')
    """
    kind = name.rpartition("/")[2]
    if isinstance(value, int):
        return f"{value:,}"
    x = float(value)
    if not math.isfinite(x):
        return str(x)
    if kind == _SPEED:
        return f"{x:,.0f}"
    if kind == "memory":
        return f"{x / 2**30:.2f} GiB"
    if kind in ("data_wait", "utilisation"):
        return f"{100 * x:.0f} %"
    if kind == "step_seconds":
        return f"{x:.3f} s" if x >= 1 else f"{1000 * x:.3f} ms"
    size = abs(x)
    if 0 < size < 0.01 or size >= 1e9:
        return f"{x:.3g}"
    decimals = 4 if size < 10 else 3 if size < 100 else 2 if size < 1000 else 0
    return f"{x:,.{decimals}f}"


def _style(value: SupportsFloat) -> str:
    return "" if math.isfinite(float(value)) else "bold red"


def _make_bar(stream: TextIO, total_steps: int) -> Progress | None:
    """Makes a progress bar without a refresh thread, or returns `None` if `stream` isn't a terminal."""
    terminal = Terminal(file=stream, highlight=False)
    # The stream itself is asked, because variables such as FORCE_COLOR make rich treat a pipe as a terminal.
    if not stream.isatty() or terminal.is_dumb_terminal:
        return None
    # On a terminal without the ellipsis character, it would appear as `\u2026` and break the line.
    text = Column(no_wrap=True, overflow="crop" if terminal.options.ascii_only else "ellipsis")
    columns = [
        BarColumn(bar_width=None, complete_style="cyan", finished_style="cyan", table_column=Column(ratio=1)),
        TextColumn("{task.fields[text]}", markup=False, table_column=text),
    ]
    bar = Progress(*columns, console=terminal, auto_refresh=False, transient=True, expand=True)
    bar.add_task("", total=total_steps, text="")
    return bar
