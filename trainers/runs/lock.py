"""Whether a run is going on, asked without taking its lock: held for a moment only, it would refuse a run its start."""

import os
from pathlib import Path

LOCKS = Path("/proc/locks")  # Linux; a run on another machine or system isn't seen


def is_locked(path: Path) -> bool:
    """Tells whether a process of this machine holds the lock on a file."""
    try:
        lock, lines = path.stat(), LOCKS.read_text().splitlines()
    except OSError:
        return False
    # As in `7: FLOCK  ADVISORY  WRITE 4711 08:02:131 0 EOF`; of one who waits, the words are moved by an arrow. The
    # device's number isn't the one that `stat` returns on btrfs and overlays, and so the process is asked.
    locks = [line.split() for line in lines if " FLOCK " in line]
    return any(_has_open(int(words[4]), lock) for words in locks if words[5].endswith(f":{lock.st_ino}"))


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Tells whether a process has the file open; one that can't be asked is believed."""
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return True
    for descriptor in opened:
        try:
            if os.path.samestat(descriptor.stat(), file):
                return True
        except OSError:  # closed since
            continue
    return False
