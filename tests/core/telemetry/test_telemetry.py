"""The console in a pipe and on a terminal, and several writers as one."""

import io
import itertools
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.telemetry import Console, JsonLines, Screen, Telemetry
from core.telemetry.console import format_figure

ESCAPE = "\x1b"


def clock_of(*times: float):
    """Returns a clock that shows these times, one per call, and then stays at the last."""
    remaining = itertools.chain(times, itertools.repeat(times[-1]))
    return lambda: next(remaining)


def test_plain_lines():
    stream = io.StringIO()
    console = Console(2000, stream, clock_of(0.0, 4.0, 5.0, 8.0, 16.0))
    console.progress(0)
    speed = {"examples_per_second": 123456.4, "data_wait": 0.021}
    console.write(500, "train", {"loss": 0.123412341234, "accuracy": 0.97103, **speed})
    console.write(500, "test", {"loss": 0.2, "accuracy": 1.0})
    console.note("saved checkpoints/step-000000500 [/red]")
    console.write(1000, "train", {"loss": 0.1, "accuracy": 0.98, **speed, "data_wait": 0.5})
    console.write(2000, "train", {"loss": float("nan"), "accuracy": 0.98, **speed})
    console.close()
    assert stream.getvalue().splitlines() == [
        "step  500/2000  train  loss 0.1234  accuracy 0.9710  examples/s 123,456  data wait 2 %  eta 0:12",
        "step  500/2000  test   loss 0.2000  accuracy 1.0000",
        "saved checkpoints/step-000000500 [/red]",
        "step 1000/2000  train  loss 0.1000  accuracy 0.9800  examples/s 123,456  data wait 50 %  eta 0:08",
        "step 2000/2000  train  loss    nan  accuracy 0.9800  examples/s 123,456  data wait  2 %",
    ]


def test_figures_of_several_phases():
    stream = io.StringIO()
    Console(10, stream).write(1, "train", {"d/loss": 1.38629, "g/gradient_penalty": 12.5, "step_seconds": 0.00125})
    assert stream.getvalue() == "step  1/10  train  d/loss 1.3863  g/gradient penalty 12.500  step time 1.250 ms\n"


def test_progress_has_no_end_for_a_run_beyond_its_announced_end():
    stream = io.StringIO()
    console = Console(200, stream, clock_of(0.0, 4.0))
    console.progress(0)
    for step in (100, 200, 300):
        console.write(step, "train", {"loss": 0.5, "examples_per_second": 1.0})
    assert stream.getvalue().splitlines() == [
        "step 100/200  train  loss 0.5000  examples/s 1  eta 0:04",
        "step 200/200  train  loss 0.5000  examples/s 1",
        "step 300  train  loss 0.5000  examples/s 1",
    ]


def test_columns_stay_below_each_other():
    stream = io.StringIO()
    console = Console(1000, stream)
    for step, loss in ((1, 123.456), (10, 1.0), (100, 0.000123), (1000, 65536.0)):
        console.write(step, "train", {"loss": loss, "accuracy": 0.5})
    assert len({line.index("accuracy") for line in stream.getvalue().splitlines()[2:]}) == 1


@pytest.mark.parametrize("width", ["20", "80"])
def test_a_pipe_gets_whole_lines_without_escapes(monkeypatch, width):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as continuous integration sets it
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", width)
    stream = io.StringIO()
    console = Console(10, stream)
    console.progress(0)
    figures = {f"figure_{i}": float(i) for i in range(60)}
    console.write(1, "train", {**figures, "examples_per_second": 1.0})
    console.progress(2, figures)
    console.note("x" * 500)
    console.close()
    assert ESCAPE not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2
    assert "figure 59 59.000" in stream.getvalue()


@pytest.mark.parametrize(
    ("first_step", "seconds", "eta"),
    [(0, 1.0, "0:09"), (0, 60.0, "9:00"), (0, 400.0, "1:00:00"), (90, 1.0, "1:30"), (100, 7.0, "-:--")],
)
def test_time_left(first_step, seconds, eta):
    stream = io.StringIO()
    console = Console(1000, stream, clock_of(1e6, 1e6 + seconds))
    console.progress(first_step)
    console.write(100, "train", {"examples_per_second": 1.0})
    assert stream.getvalue().endswith(f"eta {eta}\n")


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_figure_can_be_read(x):
    text = format_figure("loss", x)
    assert float(text.replace(",", "")) == pytest.approx(x, rel=0.01)
    if 1e-3 <= abs(x) < 1e6:
        assert len(text.lstrip("-")) <= 8
        assert "e" not in text


# --- Console on a terminal -------------------------------------------------------------------------------------------


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return FakeTerminal()


def a_run(stream: io.StringIO) -> str:
    console = Console(100, stream, clock_of(*range(0, 100, 10)))
    console.progress(0)
    console.progress(25, {"loss": 0.5, "accuracy": 0.1, "examples_per_second": 1234.0, "data_wait": 0.02})
    console.write(50, "train", {"loss": 0.25, "accuracy": 0.2, "examples_per_second": 4321.0, "data_wait": 0.03})
    console.note("saved")
    console.close()
    return stream.getvalue()


def without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)


def test_a_terminal_shows_lines_above_a_bar(terminal):
    shown = a_run(terminal)
    plain = without_escapes(shown)
    assert re.search(r"━ +25/100  eta 0:30  loss 0.5000  examples/s 1,234  data wait 2 %", plain)
    line = "step  50/100  train  loss 0.2500  accuracy 0.2000  examples/s 4,321  data wait 3 %  eta 0:20"
    assert plain.count(line) == 1
    assert plain.count("saved") == 1
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back
    assert shown.endswith("\x1b[2K")  # and the bar is gone


def test_no_color(terminal, monkeypatch):
    colour = re.compile(r"\x1b\[[0-9;]*\b[34]\d\b[0-9;]*m")
    assert colour.search(a_run(terminal))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(a_run(FakeTerminal()))


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert ESCAPE not in a_run(terminal)


def test_a_bar_that_is_too_wide_is_cut_off_in_letters_that_the_terminal_has(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert "…" in a_run(terminal)
    assert without_escapes(a_run(type("", (FakeTerminal,), {"encoding": "ascii"})())).isascii()


class Counted:
    """A metric that is still on the device: reading it costs time."""

    def __init__(self) -> None:
        self.looks = 0

    def __float__(self) -> float:
        self.looks += 1
        return 0.5


def test_progress_is_drawn_once_a_second_and_figures_are_read_only_then(terminal):
    times = [i / 1000 for i in range(4001)]  # a chunk each millisecond, for four seconds
    figure, unseen = Counted(), Counted()
    console = Console(10**6, terminal, clock_of(*times))
    for step in range(4001):
        console.progress(step, {"loss": figure, "accuracy": unseen})
    console.close()
    assert 4 <= figure.looks <= 5
    assert unseen.looks == 0

    piped = Counted()
    console = Console(10**6, io.StringIO(), clock_of(*times))
    for step in range(4001):
        console.progress(step, {"loss": piped})
    assert piped.looks == 0


def lines_shown(stream):
    return re.findall(r"step +(\d+)/1000000  (\w+)", without_escapes(stream.getvalue()))


def test_lines_of_training_are_shown_at_once_but_where_they_come_faster_than_anybody_reads(terminal):
    times = [i / 50 for i in range(101)]  # a line each fiftieth of a second, for two seconds
    console = Console(10**6, terminal, clock_of(*times, 3.0, 4.0))
    for step in range(100):
        console.write(step, "train", {"loss": 0.5, "examples_per_second": 1.0})
    early = lines_shown(terminal)
    assert 40 < len(early) < 100
    console.write(100, "eval", {"loss": 0.25})
    expected = [(str(step), "train") for step in range(100)] + [("100", "eval")]
    assert lines_shown(terminal) == expected
    for step in (200, 300):
        console.write(step, "train", {"loss": 0.5, "examples_per_second": 1.0})
        expected.append((str(step), "train"))
        assert lines_shown(terminal) == expected
    console.write(301, "train", {"loss": 0.5, "examples_per_second": 1.0})  # in the same moment
    assert lines_shown(terminal) == expected
    console.close()
    assert lines_shown(terminal) == [*expected, ("301", "train")]


# --- Several as one --------------------------------------------------------------------------------------------------


class Recorder:
    """A writer, and a screen if `screen`."""

    def __init__(self, calls: list[object]):
        self.calls = calls

    def write(self, step, split, figures):
        self.calls.append((step, split, figures))

    def close(self):
        self.calls.append("close")


class RecordingScreen(Recorder):
    live = False

    def progress(self, step, figures=None):
        self.calls.append(step)

    def note(self, text):
        self.calls.append(text)


def test_fan_out(tmp_path, terminal):
    file_calls, screen_calls, later_calls = (list[object]() for _ in range(3))
    telemetry = Telemetry([Recorder(file_calls), RecordingScreen(screen_calls)])
    telemetry.progress(0)
    telemetry.write(1, "train", {"loss": 1.0})
    telemetry.note("saved")
    telemetry.warn_once("20 % of the time was spent waiting")
    telemetry.warn_once("31 % of the time was spent waiting")
    telemetry.warn_once("something else")
    telemetry.add(Recorder(later_calls))
    telemetry.write(2, "eval", {"loss": 0.5})
    telemetry.close()
    assert file_calls == [(1, "train", {"loss": 1.0}), (2, "eval", {"loss": 0.5}), "close"]
    assert later_calls == file_calls[1:]  # from then on
    assert screen_calls == [
        0,
        (1, "train", {"loss": 1.0}),
        "saved",
        "Warning: 20 % of the time was spent waiting",
        "Warning: something else",
        (2, "eval", {"loss": 0.5}),
        "close",
    ]
    assert isinstance(Console(1, io.StringIO()), Screen)
    assert [Telemetry([Console(1, stream)]).live for stream in (io.StringIO(), terminal)] == [False, True]
    assert not isinstance(JsonLines(tmp_path / "metrics.jsonl", 0), Screen)


def test_without_writers_it_says_nothing(capsys):
    telemetry = Telemetry()
    telemetry.progress(0)
    telemetry.write(1, "train", {"loss": 1.0})
    telemetry.warn_once("x")
    telemetry.close()
    assert capsys.readouterr() == ("", "")


def test_all_are_closed_even_if_one_fails():
    class Failing(Recorder):
        def close(self):
            raise OSError("disk full")

    calls: list[object] = []
    with pytest.raises(OSError, match="disk full"):
        Telemetry([Recorder(calls), Failing(calls), Recorder(calls)]).close()
    assert calls == ["close", "close"]


def test_the_console_writes_to_the_stdout_of_its_time(capsys):
    Console(10).note("hello")
    assert capsys.readouterr().out == f"hello{os.linesep}"
