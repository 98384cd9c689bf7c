"""Makes standard streams safe: a lost reader or full disk doesn't end a run, whose metrics are also in files.

A command may start with closed streams, lose the reader of a pipe or its terminal, fill the disk of its output, or have
a locale that can't encode its output. `keep_streams` is called before any file is opened.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO

from core.disk import disk_full

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
        """Warns once that output is lost; a loss of stderr can't be reported."""
        if self.fileno() == 1 and not self._told:
            self._told = True
            print(
                f"Warning: the standard output can't be written: {error.strerror}. Output is lost until there is room "
                "again; the command continues, and metrics are in the run's folder.",
                file=sys.stderr,
            )
