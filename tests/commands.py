"""Runs the command without Keras: `run` in a fork of a process that has imported TensorFlow, `run_process` for real.

Use `run_process` for what only a new process shows: its start, the signal that ends it, the README's promises.
"""

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import IO, Any

from tests.forwarded import settings

CHECKOUT = Path(__file__).resolve().parent.parent
CONFIGS = CHECKOUT / "configs"
Done = subprocess.CompletedProcess[str]


def environment() -> dict[str, str]:
    """Returns the user's environment without Keras; of the test runner's variables only its choice of kernels stays."""
    ours = {key for key in os.environ if key.startswith(("TF_", "DTENSOR_", "PYTEST"))} - {"TF_ENABLE_ONEDNN_OPTS"}
    kept = {key: x for key, x in os.environ.items() if key not in ours}
    # Their imports are cached already; on a full disk half a bytecode file would stay.
    return {**kept, "PYTHONPATH": str(CHECKOUT / "tests" / "no_keras"), "PYTHONDONTWRITEBYTECODE": "1"}


def let_children_hear() -> None:
    """Resets SIGHUP and SIGINT for child processes, which `nohup` and a shell's background jobs would ignore."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # still nothing here; a new process begins with the default


def run_process(*arguments: str, cwd: Path, timeout: float = 300) -> Done:
    """Runs `python -m trainers.main ...` in `cwd`."""
    command = [sys.executable, "-m", "trainers.main", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def said(stream: IO[bytes], timeout: float | None) -> bool:
    """Waits until data or the end of the stream can be read; returns False after the time limit.

    `select.select` handles a process's first 1,024 files only; a process of many tests may have more.
    """
    ready = select.poll()
    ready.register(stream, select.POLLIN)
    return bool(ready.poll(None if timeout is None else 1000.0 * timeout))


class ForkServer:
    """A process of `tests.fork_server`, started at the first command and ended with the test runner."""

    def __init__(self, stderr: int | None = None) -> None:
        self.environment = environment()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"],
            cwd=CHECKOUT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stderr, bufsize=0,
        )  # fmt: skip
        atexit.register(self.process.kill)

    def run(self, *arguments: str, cwd: Path, timeout: float, **settings: Any) -> Done:
        """Runs a command in a fork, with the settings of `begin`."""
        with tempfile.NamedTemporaryFile("r") as stdout, tempfile.NamedTemporaryFile("r") as stderr:
            pid = self.begin(*arguments, cwd=cwd, stdout=stdout.name, stderr=stderr.name, **settings)
            try:
                code = self.answer(timeout)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self.answer()
                raise subprocess.TimeoutExpired(arguments, timeout, stdout.read(), stderr.read()) from None
            return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())

    def begin(
        self,
        *arguments: str,
        cwd: Path,
        stdout: str,
        stderr: str,
        before: Mapping[str, Any] | None = None,
        command: str = "trainers.main",
    ) -> int:
        """Starts a command with files for its output; returns its pid. The next `answer` is its exit code.

        It gets the variables of this moment. `become` in `tests.fork_server` explains `before`.
        """
        assert self.process.stdin
        now, then = environment(), self.environment
        variables = {key: now.get(key) for key in now.keys() | then.keys() if now.get(key) != then.get(key)}
        request = {
            "command": command, "arguments": arguments, "cwd": str(cwd), "before": before, "variables": variables,
            "stdout": stdout, "stderr": stderr,
        }  # fmt: skip
        self.process.stdin.write(f"{json.dumps(request)}\n".encode())
        return self.answer()

    def answer(self, timeout: float | None = None) -> int:
        """Returns the server's next number; raises `TimeoutError` if none comes in time."""
        assert self.process.stdout
        if not said(self.process.stdout, timeout):
            raise TimeoutError
        return int(self.process.stdout.readline())

    @contextlib.contextmanager
    def listening(self, pipe: Path) -> Iterator[list[str]]:
        """Makes a fork listen for `tests.forwarded`; yields the words that stand for `python` in a shell."""
        os.mkfifo(pipe)
        name = f"tapeloop-tests-{self.process.pid}"
        # It opens the pipe as this does.
        pid = self.begin(name, cwd=CHECKOUT, stdout=str(pipe), stderr=os.devnull, command="tests.forwarded")
        try:
            with pipe.open() as said_there:
                assert said_there.readline() == "listening\n"
            yield [sys.executable, str(CHECKOUT / "tests" / "forwarded.py"), name]
        finally:
            os.kill(pid, signal.SIGTERM)
            self.answer()


fork_server = functools.cache(ForkServer)


def forkable() -> bool:
    """Tells whether a fork does what a new process would: Python and TensorFlow read settings when they start."""
    return sys.platform == "linux" and settings(fork_server().environment) == settings(environment())


def run(*arguments: str, cwd: Path, timeout: float = 300) -> Done:
    """Runs the command in `cwd`; the result is `run_process`'s without the time."""
    if not forkable():
        return run_process(*arguments, cwd=cwd, timeout=timeout)
    return fork_server().run(*arguments, cwd=cwd, timeout=timeout)


def launch(*arguments: str, cwd: Path, timeout: float = 300) -> Done:
    """Runs `trainers.launch` in a fork, which forks its workers."""
    forks = {"command": "trainers.launch", "before": {"module": "tests.forked_launch", "arguments": {}}}
    from tests import ports  # the launcher needs it; CONTRIBUTING.md's first change runs without

    return fork_server().run(*ports.flags(), *arguments, cwd=cwd, timeout=timeout, **forks)


def passed(*arguments: str, cwd: Path, timeout: float = 300, run: Callable[..., Done] = run) -> Done:
    """Runs a command that must exit with 0; returns its output."""
    done = run(*arguments, cwd=cwd, timeout=timeout)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done


def python(*words: str, cwd: Path, **variables: str) -> Done:
    """Runs a fresh Python with these arguments, and these variables on top of `environment`."""
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**environment(), **variables}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def in_fresh_process(call: Callable[..., object], *arguments: object) -> None:
    """Calls a function of a module in a fresh process with this one's variables, and raises what it raises."""
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(call, *arguments).result()


def one_paragraph(error: str, *says: str) -> None:
    """Asserts that this is one line of an error that contains all of the texts."""
    assert error.startswith("error: "), error
    assert error.count("\n") == 1, error
    for text in says:
        assert text in error, (text, error)


def refused(*arguments: str, cwd: Path, exit_code: int, says: list[str], run: Callable[..., Done] = run) -> str:
    """Returns the one paragraph on stderr of a run that must be refused; it contains all of `says`."""
    done = run(*arguments, cwd=cwd)
    assert done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr
    assert "\n\n" not in done.stderr.strip()
    for text in says:
        assert text in done.stderr, (text, done.stderr)
    return done.stderr
