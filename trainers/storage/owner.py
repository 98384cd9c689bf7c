"""Which process writes to an address: the object `owner.json`, written again and again while the process lives.

A process that is killed leaves it behind. On another machine a run waits until it has been silent for a while. In the
same folder the lock on the folder has already shown that the earlier process is dead.
"""

import dataclasses
import datetime
import json
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from core.disk import write_whole
from core.errors import ConfigurationError, PeerLostError
from core.signals import held_back
from core.storage import Bucket, StorageError

OWNER = "owner.json"
LOCAL = ".storage.json"  # in the run's folder: the sessions that wrote from there
BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0  # after which an owner counts as dead
LOOK_SECONDS = 2.0
CHIEF_SECONDS = 600.0  # that a worker waits for the chief, which may download large checkpoints first


@dataclasses.dataclass(frozen=True)
class Owner:
    """The content of `owner.json`."""

    session: str
    host: str
    began: str
    beats: int = 0
    ended: bool = False
    ready: bool = False  # the address has all checkpoints of the owner's folder, for its other workers

    def __str__(self) -> str:
        return f"a run on `{self.host}`, begun at {self.began}"


def read_owner(bucket: Bucket) -> Owner | None:
    """Returns the last owner of an address, or None if there is none."""
    content = bucket.read(OWNER)
    try:
        return None if content is None else Owner(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"`{bucket.address}/{OWNER}`, which says who writes there, can't be read ({error}): remove it if no run "
            "writes to this address."
        ) from None


def wrote_last(folder: Path, owner: Owner | None) -> bool:
    """Returns whether the last process that wrote to the address did so from `folder`."""
    return owner is not None and owner.session in _sessions(folder)


def wait_for_chief(bucket: Bucket, folder: Path) -> None:
    """Waits until the chief of this start owns the address, and has uploaded all checkpoints of its folder.

    An owner that shows no sign of life is a chief of before. In a folder that the workers share, all is there anyway.
    """
    first = owner = read_owner(bucket)
    end = time.monotonic() + CHIEF_SECONDS
    while not (wrote_last(folder, owner) or (owner and owner != first and owner.ready and not owner.ended)):
        if time.monotonic() > end:
            raise PeerLostError(
                f"the chief has not begun to write to `{bucket.address}` within {CHIEF_SECONDS:g} s. Look at its log, "
                "and start all workers again."
            )
        time.sleep(LOOK_SECONDS)
        owner = read_owner(bucket)


def _sessions(folder: Path) -> list[str]:
    try:
        return list(json.loads((folder / LOCAL).read_bytes())["sessions"])
    except (OSError, ValueError, TypeError, LookupError):
        return []


class Ownership:
    """This process's ownership of an address."""

    def __init__(self, bucket: Bucket, folder: Path):
        self._bucket, self._folder = bucket, folder
        began = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._owner = Owner(secrets.token_hex(8), socket.gethostname(), began)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="storage owner")
        self._lost: StorageError | None = None
        self._ready = False

    def wait_for(self, found: Owner | None, say: Callable[[str], object]) -> None:
        """Waits until the owner that was found is silent for long enough. Raises an error if it is alive."""
        if found is None or found.ended or wrote_last(self._folder, found):
            return
        say(f"waiting {SILENT_SECONDS:g} s for a sign of {found}, which writes to `{self._bucket.address}` too")
        end = time.monotonic() + SILENT_SECONDS
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            now = read_owner(self._bucket)
            if now is None or now.ended:
                return
            if now != found:
                raise ConfigurationError(
                    f"another run is writing to `{self._bucket.address}`: {now}. Wait for it, or give another address "
                    "with `--workdir`."
                )

    def take(self) -> None:
        """Writes this process as the owner, there and in the folder, and keeps the object fresh."""
        sessions = [*_sessions(self._folder), self._owner.session]
        write_whole({self._folder / LOCAL: json.dumps({"sessions": sessions}).encode()})  # first: a kill may follow
        self._write()
        with held_back(signal.SIGTERM):  # in this thread
            self._thread.start()

    def announce(self) -> None:
        """Says that the other workers of this run can download its checkpoints."""
        self._ready = True
        self._write()

    def confirm(self) -> None:
        """Raises a `StorageError` if another process has become the owner."""
        if self._lost is None:
            found = read_owner(self._bucket)
            if found is None or found.session != self._owner.session:
                self._lost = StorageError(f"{found or 'somebody'} has taken the address over", refused=True)
        if self._lost:
            raise self._lost

    @property
    def is_lost(self) -> bool:
        """Returns whether another process was seen as the owner."""
        return self._lost is not None

    def stop(self) -> None:
        """Stops keeping the object fresh."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    def release(self) -> None:
        """Says that this process has ended, so that the next needn't wait."""
        self.stop()
        self.confirm()
        self._owner = dataclasses.replace(self._owner, ended=True)
        self._write()

    def _beat(self) -> None:
        while not self._ends.wait(BEAT_SECONDS) and not self.is_lost:
            try:
                self.confirm()
                self._owner = dataclasses.replace(self._owner, beats=self._owner.beats + 1)
                self._write()
            except (ConfigurationError, StorageError):
                continue  # uploads meet the same error, and report it

    def _write(self) -> None:
        owner = dataclasses.replace(self._owner, ready=self._ready)
        self._bucket.write(OWNER, json.dumps(dataclasses.asdict(owner)).encode())
