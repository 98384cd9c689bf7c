"""Several writers as one."""

from core.telemetry import Telemetry


def test_a_writer_that_comes_later_gets_what_is_written_from_then_on():
    class Kept:
        def __init__(self):
            self.lines, self.closed = [], False

        def write(self, step, split, figures):
            self.lines.append((step, split, dict(figures)))

        def close(self):
            self.closed = True

    first, later = Kept(), Kept()
    telemetry = Telemetry([first])
    telemetry.write(1, "train", {"loss": 2.0})
    telemetry.add(later)
    telemetry.write(2, "eval", {"loss": 1.0})
    telemetry.close()
    assert later.lines == first.lines[1:] == [(2, "eval", {"loss": 1.0})]
    assert first.closed
    assert later.closed
