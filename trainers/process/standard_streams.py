"""Makes standard streams safe: a run doesn't end for a lost reader or full disk, since files have its metrics.

A command may start with closed streams, lose the reader of a pipe or its terminal, fill the disk of its output, or have
a locale that can't encode its output. `keep_streams` is called before any file is opened. TensorFlow's C++ code writes
to the same stderr; `native_stderr_in` redirects that to a file.
"""

import contextlib
import errno
import faulthandler
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from absl import logging

from core.disk import disk_full
from core.errors import TapeloopError
from trainers.errors.exit_report import exit_code_of

GONE = (errno.EPIPE, errno.EIO)  # the pipe has no reader; the terminal is gone


def keep_streams() -> None:
    """Ensures that descriptors 0, 1 and 2 are open, and that `sys.stdout` and `sys.stderr` are always writable."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system assigns the lowest free number: a free one would become that of the first opened file, which
            # would then receive the output.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # child processes inherit it
    sys.stdout = lasting_stream(1, like=sys.stdout)
    sys.stderr = lasting_stream(2, like=sys.stderr)


def lasting_stream(descriptor: int, *, like: TextIO | None) -> TextIO:
    """Returns a stream to `descriptor` in the encoding of `like`, which escapes characters that it can't encode."""
    buffer = io.BufferedWriter(_Lasting(descriptor, "w", closefd=False))
    encoding = getattr(like, "encoding", None) or "utf-8"
    at_once = bool(getattr(like, "write_through", False))
    by_line = bool(getattr(like, "line_buffering", False)) or descriptor != 1  # stderr is line-buffered, even to a file
    return _Open(buffer, encoding, errors="backslashreplace", line_buffering=by_line, write_through=at_once)


class _Open(io.TextIOWrapper):
    """A stream that stays usable when user code closes it."""

    def close(self) -> None:
        self.flush()


class _Lasting(io.FileIO):
    """A descriptor that discards output once its reader is gone, or while its disk is full."""

    _told = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if disk_full(error):
                self._tell(error)
            elif error.errno in GONE:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())  # for writes that bypass this object too
                os.close(nowhere)
            else:
                raise
            return len(data)

    def _tell(self, error: OSError) -> None:
        """Warns once that output is lost. A loss of stderr can't be reported."""
        if self.fileno() == 1 and not self._told:
            self._told = True
            print(
                f"Warning: the standard output can't be written: {error.strerror}. Output is lost until there is room "
                "again; the command continues, and metrics are in the run's folder.",
                file=sys.stderr,
            )


@contextlib.contextmanager
def native_stderr_in(workdir: Path | None, *, ends_process: bool = False) -> Iterator[None]:
    """Redirects stderr of TensorFlow's C++ code to a file in the workdir. `sys.stderr` isn't redirected.

    No environment variable silences TensorFlow's start-up lines, and level 3 would hide real errors too. If the block
    raises an error and `ends_process` is set, the redirection stays, because prefetch threads may still print errors.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    path = workdir.absolute() / log_name() if workdir else Path(os.devnull)
    if workdir:
        from trainers.workdir import Workdir

        Workdir(workdir).create()
    logging.debug("TensorFlow's own messages go to `%s`", path)
    sys.stderr.flush()
    original = os.dup(2)
    with open(path, "ab") as sink:
        os.dup2(sink.fileno(), 2)
    spare = os.dup(original)
    visible = lasting_stream(spare, like=sys.stderr)
    python_stderr, sys.stderr = sys.stderr, visible
    faulthandler.enable(visible)  # a crash in C++ prints Python's stack visibly
    failed = False
    try:
        yield
    except BaseException as error:
        failed = True
        plain = isinstance(error, ValueError | TypeError | OSError) or exit_code_of(error) != TapeloopError.exit_code
        if workdir and not plain:
            _show_tail(path, visible)
        raise
    finally:
        if not (failed and ends_process):
            faulthandler.disable()
            sys.stderr = python_stderr
            os.dup2(original, 2)
            os.close(original)
            visible.close()
            os.close(spare)


def move_native_stderr(workdir: Path) -> None:
    """Redirects C++'s stderr to a file in a workdir that another process has made. Without a workdir, does nothing."""
    with contextlib.suppress(OSError), open(workdir / log_name(), "ab") as sink:
        os.dup2(sink.fileno(), 2)


def log_name() -> str:
    """Returns the log file's name: workers share a workdir, but not a log."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG", ""))
        task = config["task"]
        if "ps" in config["cluster"] and task["type"] != "chief":
            return f"native_stderr_{'ps' if task['type'] == 'ps' else 'worker'}_{int(task['index'])}.log"
        index = str(0 if task["type"] == "chief" else int(task["index"]) + ("chief" in config["cluster"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        rank = os.environ.get("SLURM_PROCID", "0")
        index = "0" if rank == "0" else f"rank_{rank}"  # the worker's index isn't known yet
    return "native_stderr.log" if index == "0" else f"native_stderr_{index}.log"


def _show_tail(path: Path, stream: TextIO, lines: int = 20) -> None:
    tail = path.read_text("utf-8", errors="replace").splitlines()[-lines:]
    if tail:
        print(f"--- the last of `{path}` (TensorFlow's own messages)", *tail, "---", sep="\n", file=stream)
