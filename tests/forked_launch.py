"""Makes `trainers.launch` and `trainers.sweep` fork their processes, in a fork of `tests.fork_server`.

They behave like started processes: sessions, pipes and signals are separate, and they die with it. But they have
already imported TensorFlow, which takes most of a start.
"""

import atexit
import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from trainers.launch import processes
from trainers.sweep import pool

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def begin() -> None:
    """Makes this process fork instead of starting processes."""
    processes.subprocess = pool.subprocess = Forks
    subprocess.run = Forks.run


class Forks:
    """Replaces the module `subprocess` in `trainers.launch` and `trainers.sweep`."""

    PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
    real_run = subprocess.run

    @classmethod
    def run(cls, arguments: Sequence[str], *, input: bytes | None = None, **settings: Any) -> Any:
        """Forks for a module with an input, as the sweep's check is, and starts a process for anything else."""
        if input is None or arguments[1] != "-m":
            return cls.real_run(arguments, input=input, **settings)
        read, write = os.pipe()
        os.write(write, input)
        os.close(write)
        process = cls.Popen(arguments, preexec_fn=settings["preexec_fn"], streams=(read, 1, 2))
        os.close(read)
        process.wait()
        return process

    class Popen:
        """A fork that has become `python -m` and a module."""

        def __init__(
            self,
            arguments: Sequence[str],
            *,
            preexec_fn: Callable[[], None],
            env: Mapping[str, str] | None = None,
            stdout: Any = None,
            streams: Sequence[int] = (),
            **_: Any,
        ) -> None:
            self.returncode: int | None = None
            ours = []
            if not streams and stdout != Forks.PIPE:  # a sweep's log
                streams = (os.open(os.devnull, os.O_RDONLY), stdout.fileno(), stdout.fileno())
                ours = [streams[0]]
            elif not streams:
                (out, our_out), (err, our_err) = os.pipe(), os.pipe()
                streams = (os.open(os.devnull, os.O_RDONLY), our_out, our_err)
                ours = list(streams)
                self.stdout, self.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
            sys.stdout.flush()
            self.pid = os.fork()
            if not self.pid:
                _become(arguments, env, preexec_fn, streams)
            for number in ours:
                os.close(number)

        def poll(self) -> int | None:
            return self._wait(os.WNOHANG)

        def wait(self) -> int | None:
            return self._wait(0)

        def send_signal(self, number: int) -> None:
            if self.poll() is None:
                os.kill(self.pid, number)

        def _wait(self, options: int) -> int | None:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, options)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode


def _become(
    arguments: Sequence[str], env: Mapping[str, str] | None, preexec_fn: Callable[[], None], streams: Sequence[int]
) -> NoReturn:
    """Acts as a new process and `python -m`; never returns to the parent's code."""
    code = 1
    try:
        os.setsid()
        for number in HEARD:
            handler = signal.getsignal(number)
            signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else signal.SIG_DFL)
        preexec_fn()
        for number, file in enumerate(streams):
            os.dup2(file, number)
        gc.freeze()  # the parent's garbage mustn't close the files that get these numbers
        os.closerange(3, 1024)  # the parent's ends of others' pipes
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        module, *sys.argv[1:] = arguments[2:]  # after the interpreter and `-m`
        sys.modules.pop(module, None)  # the parent has imported it
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
