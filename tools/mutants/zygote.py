"""A process that has imported what tests import from elsewhere, and runs pytest in its forks.

It reads requests (a line of JSON each) on stdin and answers each with a line: exit code, whether time ran out, and
processor seconds. Nothing of the tree itself is imported before a fork, so that each fork sees the files as they are
by then. TensorFlow allows a fork as long as it has run no operation.
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
import traceback
import warnings
from pathlib import Path
from typing import Any

DEATH_SIGNAL = 1  # prctl(2): what a fork gets as this process ends
SUBREAPER = 36  # prctl(2): orphans of a fork become children of this process, which ends them
MEMORY = 10 << 30  # bytes: a mistake in a size ends in an error, not in the machine's last page


def serve() -> dict[str, Any]:
    """Answers requests; returns in each fork, with the request that it is for."""
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads of NumPy's, which make themselves anew in a fork
            pid = os.fork()
        if not pid:
            return dict(request)
        ended = os.pidfd_open(pid)
        ready = select.select([ended, 0], [], [], request["limit"])[0]
        if ready == [0]:  # whoever asked is gone
            os.kill(pid, signal.SIGKILL)
            _end_orphans()
            break
        late = not ready
        os.close(ended)
        if late:
            os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        spent = used.ru_utime + used.ru_stime + _end_orphans()
        answer = {"code": os.waitstatus_to_exitcode(status), "late": late, "seconds": round(spent, 2)}
        os.write(1, f"{json.dumps(answer)}\n".encode())
    os._exit(0)


def _end_orphans() -> float:
    """Kills and waits for what a fork has left behind; returns its processor seconds."""
    spent = 0.0
    while True:
        for task in Path("/proc/self/task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        try:
            _, _, used = os.wait4(-1, 0)
        except ChildProcessError:
            return spent
        spent += used.ru_utime + used.ru_stime


def become(request: dict[str, Any]) -> None:
    """Makes this fork the process of one pytest: a session, files for its streams, its environment."""
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
