"""A process that has imported the tests' packages, and runs pytest in its forks.

It reads requests (a line of JSON each) on stdin and answers each with a line: exit code, whether time ran out, and
processor seconds. It imports nothing of the tree before a fork, so that each fork sees the current files. TensorFlow
allows a fork as long as it has run no operation.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

DEATH_SIGNAL = 1  # prctl(2): the signal to a fork when this process ends
SUBREAPER = 36  # prctl(2): orphans of a fork become children of this process, which ends them
MEMORY = 10 << 30  # bytes: a mistake in a size raises an error, and spares the machine


def serve() -> dict[str, Any]:
    """Answers requests; returns in each fork, with its request."""
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's threads, which restart in a fork
            pid = os.fork()
        if not pid:
            return dict(request)
        ended = os.pidfd_open(pid)
        late = _late(pid, ended, request["limit"])
        if late is None:  # the parent has ended
            os.kill(pid, signal.SIGKILL)
            _end_orphans()
            break
        os.close(ended)
        if late:
            os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        spent = used.ru_utime + used.ru_stime + _end_orphans()
        answer = {"code": os.waitstatus_to_exitcode(status), "late": late, "seconds": round(spent, 2)}
        os.write(1, f"{json.dumps(answer)}\n".encode())
    os._exit(0)


def _late(pid: int, ended: int, limit: float) -> bool | None:
    """Waits for a fork's end, at most its seconds; returns None if stdin ends first.

    Seconds in which a runnable thread waited for a processor don't count (proc(5), `schedstat`).
    """
    begun, delays = time.monotonic(), dict[str, int]()
    while not (ready := select.select([ended, 0], [], [], 1.0)[0]):
        for process in _descendants(pid):
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{process}/task").iterdir():
                    delays[task.name] = int((task / "schedstat").read_text().split()[1])
        if time.monotonic() - begun - sum(delays.values()) / 1e9 > limit:
            return True
    return False if ended in ready else None


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # which grows
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _end_orphans() -> float:
    """Kills and waits for a fork's remaining children; returns their processor seconds."""
    spent = 0.0
    while True:
        for child in _descendants(os.getpid())[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            _, _, used = os.wait4(-1, 0)
        except ChildProcessError:
            return spent
        spent += used.ru_utime + used.ru_stime


def become(request: dict[str, Any]) -> None:
    """Makes this fork the process of one pytest: session, output files, environment."""
    os.setsid()
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    for number, path in ((0, os.devnull), (1, request["log"]), (2, request["log"])):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.environ.update(request["environment"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.argv[1:] = []


def main() -> None:
    """Serves, and runs the tests of each fork."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != here]
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu")
    sys.modules["keras"] = sys.modules["tf_keras"] = None  # type: ignore[assignment]
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path.insert(0, str(here))
    import hook  # type: ignore[import-not-found]
    import plugin  # type: ignore[import-not-found]

    del sys.path[0]
    gc.collect()
    gc.freeze()
    request = serve()
    become(request)
    sys.path.insert(0, "")
    code = 70
    try:
        if hook.FOLDER in os.environ:
            covered = hook.begin(None)
            hook.watch_forks()
            now = Path(os.environ[hook.FOLDER]) / "now"

            def switch(context: str) -> None:
                now.write_text(context)
                covered.switch_context(context)

            code = plugin.run(request, switch)
            hook.end()
        else:
            code = plugin.run(request)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
