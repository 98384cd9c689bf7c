"""A cluster under `trainers.launch`: its processes, its progress, and what it leaves behind."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests import ports
from tests.commands import ForkServer
from tools.campaign.lab import HungError, last_line

LEAVING = 20.0  # seconds in which killed processes disappear
LOOK = 0.005  # seconds between two polls


class Launched:
    """One launch in a fork of `server`; its processes are forks as well."""

    def __init__(self, server: ForkServer, folder: Path, cluster: Sequence[str], flags: Sequence[str]):
        self._server, self._journal = server, folder / "journal.txt"
        self._output = {name: folder / f"{name}.txt" for name in ("stdout", "stderr")}
        for path in self._output.values():
            path.write_text("")
        self._journal.write_text("")
        self.code: int | None = None
        self.pid = server.begin(
            *(*cluster, *ports.flags(), "--", *flags),
            cwd=folder,
            before={"module": "tests.forked_launch", "arguments": {}},
            command="trainers.launch",
            **{name: str(path) for name, path in self._output.items()},
        )

    @property
    def said(self) -> str:
        """Returns the launch's output on both streams."""
        return "".join(path.read_text(errors="replace") for path in self._output.values())

    def pids(self) -> dict[str, int]:
        """Returns the pids by name, such as `worker 0`: the last one of a restarted process."""
        return {"launch": self.pid, **dict(self._started())}

    def count(self, section: str) -> int:
        """Returns how often the launch has entered a section."""
        return self._journal.read_text().split().count(section)

    def comes_to(self, section: str, times: int, seconds: float) -> bool:
        """Waits until the launch has entered a section this often; returns False if it ends first."""
        until = time.monotonic() + seconds
        while self.count(section) < times:
            if self.ends_within(LOOK):
                return False
            if time.monotonic() > until:
                raise HungError(f"comes to no {section} {times} within {seconds:g} s: {self._last_words()}")
        return True

    def ends_within(self, seconds: float) -> bool:
        """Waits up to `seconds` for the launch to end; returns whether it ended."""
        if self.code is None:
            with contextlib.suppress(TimeoutError):
                self.code = self._server.answer(seconds)
        return self.code is not None

    def end(self, seconds: float) -> int:
        """Waits for the launch's end, and returns its exit code."""
        if not self.ends_within(seconds):
            raise HungError(f"hangs: no end within {seconds:g} s; {self._last_words()}")
        assert self.code is not None
        return self.code

    def left_behind(self) -> list[str]:
        """Names the processes that are still alive some time after the launch's end."""
        until = time.monotonic() + LEAVING
        while (left := self._alive()) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def close(self) -> None:
        """Kills the launch's remaining processes."""
        self._kill(self.pid)
        for _, pid in self._started():
            self._kill(pid)
        self.ends_within(LEAVING)

    def _started(self) -> list[tuple[str, int]]:
        lines = re.findall(r"^started (.*)$", self._output["stdout"].read_text(errors="replace"), re.MULTILINE)
        return [
            (name, int(pid)) for line in lines for name, pid in re.findall(r"([a-z]+(?: \d+)?) \(process (\d+)\)", line)
        ]

    def _alive(self) -> list[str]:
        """Names the members in whose session a process is alive."""
        sessions = set()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
                sessions |= {int(session)} if state not in "ZX" else set()
        return [f"{name} ({pid})" for name, pid in self._started() if pid in sessions]

    def _kill(self, pid: int) -> None:
        if self.code is None or any(str(pid) in left for left in self._alive()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _last_words(self) -> str:
        return "; ".join(last_line(path.read_text(errors="replace")) for path in self._output.values())
