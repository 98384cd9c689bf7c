"""A real file system of a few kilobytes in a separate mount namespace, if the system allows one."""

import contextlib
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

WAYS = (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"])  # the second for who isn't root
# It ends with its stdin; what it has mounted goes with it, however it ends.
SCRIPT = 'mount -t tmpfs -o "size=$1,nr_inodes=$2" none "$3" && echo mounted && read -r line && \
mount -o remount,size=64m,nr_inodes=1000 "$3" && echo grown && cat'


@contextlib.contextmanager
def mounted(folder: Path, *, size: int, inodes: int) -> Iterator["SmallDisk"]:
    """Mounts a file system of `size` bytes at a folder, visible through `SmallDisk.path`."""
    way = _way()
    assert way is not None
    command = [*way, "sh", "-c", SCRIPT, "sh", str(size), str(inodes), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        disk = SmallDisk(process, folder)
        try:
            disk.expect("mounted")
            yield disk
        finally:
            process.kill()


@functools.cache
def _way() -> list[str] | None:
    for way in WAYS:
        with contextlib.suppress(OSError):
            tried = subprocess.run([*way, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, check=False)
            if tried.returncode == 0:
                return way
    return None


def is_allowed() -> bool:
    """Returns whether this system allows mounting."""
    return _way() is not None


class SmallDisk:
    """A mounted file system."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path):
        self._process = process
        self.path = Path(f"/proc/{process.pid}/root{folder.resolve()}")

    def grow(self) -> None:
        """Makes space."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.expect("grown")

    def expect(self, word: str) -> None:
        """Waits for a line of its output."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != word:
            raise OSError(f"the small disk isn't {word}: {said!r}")
