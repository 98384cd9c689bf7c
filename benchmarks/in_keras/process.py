"""The other end of `python -m benchmarks.in_keras`."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any


class KerasProcess:
    """A model of Keras elsewhere, trained when asked to."""

    def __init__(self, command: list[str], process: subprocess.Popen[str]):
        self._command, self._process = " ".join(command), process
        self.parameters = int(self._answer())

    def fit(self) -> float:
        """One run of its training: the seconds that it says it took."""
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"`{self._command}` ended with {self._process.wait()}")
        return line


@contextlib.contextmanager
def keras_process(case: str, **settings: Any) -> Iterator[KerasProcess]:
    """Runs until the block ends."""
    command = [sys.executable, "-m", "benchmarks.in_keras", case, json.dumps(settings)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield KerasProcess(command, process)
        finally:
            process.kill()
