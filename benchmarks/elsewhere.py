"""Programs that run in a separate process and measure themselves there, once per request.

Such a program first writes an integer, its size; then it answers each line of input with the seconds of one run.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


class Elsewhere:
    """The parent's end of such a program."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process
        self.size = int(self._answer())

    def run(self) -> float:
        """Requests one run and returns the seconds that the program reports."""
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"error: `{self._process.args!r}` ended with {self._process.wait()}")
        return line


def answer(size: int, run: Callable[[], object]) -> None:
    """Serves at the program's end: writes `size` and then, for each line of input, the seconds of one `run`."""
    print(size, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        run()
        print(time.perf_counter() - began, flush=True)


@contextlib.contextmanager
def elsewhere(command: Sequence[str], folder: Path | None = None) -> Iterator[Elsewhere]:
    """Keeps `command` running in `folder` until the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Elsewhere(process)
        finally:
            process.kill()
