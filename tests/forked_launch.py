"""Makes `trainers.launch` fork its processes, if it is a fork of `tests.fork_server`.

They behave like started processes: sessions, pipes and signals are separate, and they die with it. But they have
already imported TensorFlow, which takes most of a start.
"""

import atexit
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from trainers.launch import processes

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def begin() -> None:
    """Makes this process fork instead of starting processes."""
    processes.subprocess = Forks


class Forks:
    """Replaces the module `subprocess` in `trainers.launch`."""

    PIPE, DEVNULL = -1, -3

    class Popen:
        """A fork that has become `python -m trainers.main`."""

        def __init__(
            self,
            arguments: Sequence[str],
            *,
            env: Mapping[str, str],
            preexec_fn: Callable[[], None],
            **_: Any,
        ) -> None:
            self.returncode: int | None = None
            (out, our_out), (err, our_err) = os.pipe(), os.pipe()
            sys.stdout.flush()
            self.pid = os.fork()
            if not self.pid:
                _become(arguments, env, preexec_fn, our_out, our_err)
            os.close(our_out)
            os.close(our_err)
            self.stdout, self.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)

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
    arguments: Sequence[str], env: Mapping[str, str], preexec_fn: Callable[[], None], out: int, err: int
) -> NoReturn:
    """Acts as a new process and `python -m`; never returns to the launcher's code."""
    code = 1
    try:
        os.setsid()
        for number in HEARD:
            handler = signal.getsignal(number)
            signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else signal.SIG_DFL)
        preexec_fn()
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(file, number)
        os.closerange(3, 1024)  # the launcher's ends of others' pipes
        os.environ.clear()
        os.environ.update(env)
        module, *sys.argv[1:] = arguments[2:]  # after the interpreter and `-m`
        sys.modules.pop(module, None)  # the launcher has imported it
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
