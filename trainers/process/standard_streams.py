"""Standard streams that never end a run: figures go to files as well, so a reader who has left is no failure.

A command may be started with its streams closed, lose the reader of a pipe or its terminal on the way, fill the disk
that its output goes to, or have a locale without the letters that it prints. `keep_streams` is called before anything
is opened.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO

from core.disk import disk_full

GONE = (errno.EPIPE, errno.EIO)  # nobody reads the pipe any more; the terminal has vanished


def keep_streams() -> None:
    """Gives this process descriptors 0, 1 and 2, and a `sys.stdout` and `sys.stderr` that can always be written to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is handed out: left free, it would be that of the first file that is opened, and
            # what is printed would end up in there.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # for the programs that this one starts, too
    sys.stdout = lasting_stream(1, like=sys.stdout)
    sys.stderr = lasting_stream(2, like=sys.stderr)


def lasting_stream(descriptor: int, *, like: TextIO | None) -> TextIO:
    """Returns a stream to `descriptor`, in the encoding of `like`; a letter that this lacks is written as an escape."""
    buffer = io.BufferedWriter(_Lasting(descriptor, "w", closefd=False))
    encoding = getattr(like, "encoding", None) or "utf-8"
    at_once = bool(getattr(like, "write_through", False))
    by_line = bool(getattr(like, "line_buffering", False)) or descriptor != 1  # stderr is, also into a file
    return _Open(buffer, encoding, errors="backslashreplace", line_buffering=by_line, write_through=at_once)


class _Open(io.TextIOWrapper):
    """A stream that code of the user's may close, and the command goes on to write to."""

    def close(self) -> None:
        self.flush()


class _Lasting(io.FileIO):
    """A descriptor that leads nowhere from the moment on when nobody reads it, or for as long as its disk is full."""

    _told = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if disk_full(error):
                self._tell(error)
            elif error.errno in GONE:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())  # also for what is written by other ways than this
                os.close(nowhere)
            else:
                raise
            return len(data)

    def _tell(self, error: OSError) -> None:
        """Says once that what is printed is lost; for what is lost of stderr there is no place to say it."""
        if self.fileno() == 1 and not self._told:
            self._told = True
            print(
                f"Warning: the standard output can't be written: {error.strerror}. What is printed is lost until there "
                "is room again; the command goes on, and figures are in the folder of the run.",
                file=sys.stderr,
            )
