"""Maps an exception to an exit code and a report.

An error that Tapeloop raises on purpose is reported as one paragraph. So is a `ValueError`, `TypeError` or `OSError` of
Tapeloop's own code, because a configuration value caused it. An exception in the user's code, or in a package that the
user's code calls, has exit code 1 and a traceback of the user's files.
"""

import contextlib
import itertools
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from core.errors import INTERRUPTED, ConfigurationError, TapeloopError, as_said

_AS_IMPORTED = Path(__file__).absolute().parents[2]  # tracebacks don't resolve links
_ROOTS = tuple({str(Path(__file__).resolve().parents[2]): None, str(_AS_IMPORTED): None})
_OURS = tuple(os.path.join(root, name, "") for root in _ROOTS for name in ("core", "models", "trainers"))
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = {"site-packages", "dist-packages"}
# Exceptions from these packages are their caller's fault; other packages are the user's choice.
_CALLED = {"absl", "gin", "numpy", "rich", "tensorboard", "tensorflow"}
_FURTHER = "_tapeloop_further"  # attribute of an exception: the failures after it


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code for a run that ended with `error`."""
    error = _explained(error)
    if isinstance(error, TapeloopError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "exit_code", INTERRUPTED)
    return ConfigurationError.exit_code if _is_refusal(error) else TapeloopError.exit_code


def reason_of(error: BaseException) -> str:
    """Returns the text of `reason` in `result.json` for a run that ended with `error`."""
    return as_said(_reason(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"`sys.exit({error.code!r})` was called by code of the run, which isn't finished"
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted by Ctrl-C."
    message, name = plain(_explained(error)), type(error).__name__
    own = exit_code_of(error) == TapeloopError.exit_code
    if not own and isinstance(error, OSError) and error.filename and message == str(error):
        why = f"`{error.filename}` can't be opened, read or written: {error.strerror}"
        return f"{why}. Check the file and its permissions; the same command then resumes."
    return f"{name}: {message}" if own and message else message or name


def report(error: BaseException, *, verbose: bool) -> int:
    """Prints the error that ended a run, with a traceback if `verbose` or of user code. Returns the exit code."""
    code = exit_code_of(error)
    own = code == TapeloopError.exit_code and not isinstance(error, TapeloopError)
    if verbose or own:
        print("".join(_told(error, whole=verbose)), file=sys.stderr, end="")
    if not own or isinstance(error, SystemExit):
        place = "" if isinstance(error, TapeloopError | SystemExit | KeyboardInterrupt) else _place(error)
        print(f"error: {reason_of(error)}{place}{_page(error, code)}", file=sys.stderr)
    for text in getattr(error, _FURTHER, ()):
        print(f"error, after that: {text}", file=sys.stderr)
    return code


@contextlib.contextmanager
def after(error: BaseException) -> Iterator[None]:
    """Suppresses an exception in its block, and adds it to the report of `error`, which came first."""
    try:
        yield
    except Exception as second:
        said = (reason_of(error), *getattr(error, _FURTHER, ()))
        if reason_of(second) not in said:
            setattr(error, _FURTHER, (*said[1:], reason_of(second)))


def plain(error: BaseException) -> str:
    """Returns the message of `error` without the text that gin adds to an exception in a configurable."""
    return re.split(r"\n  (?:In call to configurable '|No values supplied by Gin)", str(error))[0]


def _explained(error: BaseException) -> BaseException:
    """Returns a `NoRoomError` if `error` means a full disk or memory, else `error` unchanged."""
    if isinstance(error, TapeloopError):
        return error
    from trainers.errors.out_of_memory import explain_no_room

    return explain_no_room(error) or error


def _is_refusal(error: BaseException) -> bool:
    """Returns whether `error` is a `ValueError`, `TypeError` or `OSError` of Tapeloop or of a package it called."""
    if not isinstance(error, ValueError | TypeError | OSError):
        return False
    blamed = [name for name, _ in _frames(error)]
    return not blamed or blamed[-1].startswith(_OURS)


def _place(error: BaseException) -> str:
    """Returns the user's file and line where `error` arose, in parentheses, or "" if none is known."""
    own = [(name, line) for name, line in _frames(error) if not name.startswith(_OURS)]
    return f" ({own[-1][0]}:{own[-1][1]}; `--verbose` shows the traceback)" if own else ""


def _told(error: BaseException, *, whole: bool) -> Iterator[str]:
    """Yields the lines of a traceback: all lines if `whole`, else those of the user's files."""
    found = traceback.TracebackException.from_exception(error)
    if not whole and _own_frames(found.stack):
        count, part = 0, cast("traceback.TracebackException | None", found)
        while part:
            frames = _own_frames(part.stack)
            count, part.stack = count + len(part.stack) - len(frames), traceback.StackSummary.from_list(frames)
            part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
        yield from found.format()
        yield f"({count} lines of Tapeloop, TensorFlow and others are hidden: `--verbose` shows them)\n"
    else:
        yield from found.format()


def _own_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [frame for frame in stack if not frame.filename.startswith(_OURS) and not _is_called(frame.filename)]


def _page(error: BaseException, code: int) -> str:
    """Returns ` See docs/...`, the page about such errors, or an empty text if the message already names a page."""
    from trainers.errors.pages import page_of

    said = reason_of(error)
    names = [name for name, _ in _frames(error)]
    ours = [os.path.relpath(name, next(filter(name.startswith, _ROOTS))) for name in names if name.startswith(_OURS)]
    page = page_of(ours if names and names[-1].startswith(_OURS) else [], code)
    if page is None or "docs/" in said:
        return ""
    apart = "\n" if said.rpartition("\n")[2].startswith(" ") else " "  # keeps code and tables intact
    return f"{apart}See {page}."


def _frames(error: BaseException) -> list[tuple[str, int | None]]:
    """Lists `(file, line)` of the traceback's frames that can be blamed, innermost last."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    return [(name, line) for name, line in frames if not _is_called(name)]


def _is_called(filename: str) -> bool:
    """Returns whether a file belongs to Python or to a package in `_CALLED`: errors there are the caller's fault."""
    if filename.startswith(_OURS):
        return False
    parts = Path(filename).parts
    package = [name for folder, name in itertools.pairwise(parts) if folder in _INSTALLED]
    if package:
        return package[-1] in _CALLED
    return filename.startswith(("<", _STANDARD))
