"""Errors that end a run: each carries the exit code of `python -m trainers.main`.

For a caller's mistake, library code raises a plain `ValueError` or `TypeError`. The classes here end a whole run, so
that a script or a scheduler can tell the reasons apart.
"""

import difflib
import re
import reprlib
from collections.abc import Iterable

_MOST = 200  # characters of a value in a message
_MOST_OF_A_LINE = 2000


class TapeloopError(Exception):
    """Ends a run with a message of one paragraph and the exit code `exit_code`."""

    exit_code = 1


class ConfigurationError(TapeloopError, ValueError):
    """The configuration is invalid: a flag, a gin binding, or sizes that don't fit each other."""

    exit_code = 2


class NotFiniteError(TapeloopError):
    """A loss or a gradient is infinite or NaN."""

    exit_code = 3


class DataError(TapeloopError):
    """The data is missing, unreadable, or not what the task expects."""

    exit_code = 4


class CheckpointError(TapeloopError):
    """A checkpoint is damaged or doesn't fit the model."""

    exit_code = 5


class PeerLostError(TapeloopError):
    """Another worker is missing, dead or hanging, or this worker hangs. A restart resumes the run."""

    exit_code = 6


class DriftError(TapeloopError):
    """Two replicas hold different values of a variable that must be equal on all replicas."""

    exit_code = 7


class NoRoomError(TapeloopError):
    """A disk, the machine's memory or a device's memory is full."""

    exit_code = 8


class PreemptedError(TapeloopError):
    """The run was asked to stop, and has saved its state. The same command resumes it."""

    exit_code = 75


INTERRUPTED = 130  # the shells' exit code for SIGINT: 128 plus the number of the signal

EXIT_CODES = {
    0: "finished",
    TapeloopError.exit_code: "an error in your own code",
    ConfigurationError.exit_code: "configuration",
    NotFiniteError.exit_code: "not finite",
    DataError.exit_code: "data",
    CheckpointError.exit_code: "checkpoint",
    PeerLostError.exit_code: "another worker was lost, or a section hung",
    DriftError.exit_code: "replicas drifted apart",
    NoRoomError.exit_code: "no room, on disk or in memory",
    PreemptedError.exit_code: "stopped and saved: run it again",
    INTERRUPTED: "interrupted at once by Ctrl-C",
}


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns " Did you mean `...`?" with the candidate most similar to `name`, or "" if none is similar."""
    names = list(candidates)
    near = [x for x in names if x.lower() == name.lower()] or difflib.get_close_matches(name[:_MOST], names, 1, 0.6)
    return f" Did you mean `{near[0]}`?" if near else ""


def shown(value: object) -> str:
    """Returns `repr(value)` for a message, on one line of at most 200 characters.

    >>> shown([0.5, "a"]), len(shown(list(range(1_000_000)))) <= 200
    ("[0.5, 'a']", True)
    """
    try:
        text = _REPR.repr(value)
    except Exception:  # a value's own `repr` may fail, and an integer may have too many digits
        text = f"<a {type(value).__name__} that can't be written out>"
    return _cut(_printable(text), _MOST)


def as_said(message: str) -> str:
    """Returns `message` in a form that is safe to print on a terminal.

    Long lines are shortened, and control characters escaped: a message may quote file names and flags.

    >>> as_said("`--mode` is \\x1b[2J"), len(as_said("x" * 10_000_000)) <= 2000
    ('`--mode` is \\\\x1b[2J', True)
    """
    return "\n".join(_printable(_cut(line, _MOST_OF_A_LINE)) for line in message.split("\n"))


def without_password(url: str) -> str:
    """Returns an address, safe to print.

    >>> without_password("postgresql://me:secret@host/db"), without_password("sqlite:///runs/a/study.db")
    ('postgresql://me:***@host/db', 'sqlite:///runs/a/study.db')
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - most // 10]}...{text[3 - most // 10 :]}"


class _Repr(reprlib.Repr):
    """A `repr` that reads only the first elements of a long value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = 20
        self.maxdict = 10
        self.maxstring = self.maxlong = self.maxother = _MOST


_REPR = _Repr()
