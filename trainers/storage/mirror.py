"""Copies a run to its address while it trains, in a thread of the chief. The loop never waits for it."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.arguments import listed
from core.cluster.topology import cluster_from_environment
from core.errors import CheckpointError, ConfigurationError, DataError
from core.signals import held_back
from core.storage import Address, Bucket, StorageError
from trainers.errors.exit_report import after
from trainers.hooks import Hook, Run
from trainers.storage.download import download, download_checkpoints
from trainers.storage.owner import OWNER, Ownership, read_owner, wait_for_chief, wrote_last
from trainers.storage.upload import Upload
from trainers.workdir import Workdir

LOOK_SECONDS = 2.0  # between two looks for a new checkpoint
FILES_SECONDS = 30.0  # between two copies of metrics and other small files
SHARE = 4.0  # the thread rests this many times as long as a copy took
LONGEST = 60.0  # seconds until a failed copy is tried again
ENDING = 120.0  # seconds that the end of a run waits for an address that takes nothing
SAID_SECONDS = 30.0  # between two lines about the end of a run
CREDENTIALS = {
    "s3": "region, and your credentials, such as `AWS_PROFILE`, `AWS_ACCESS_KEY_ID` or `AWS_ENDPOINT_URL`",
    "gs": "your credentials, such as `GOOGLE_APPLICATION_CREDENTIALS` or `gcloud auth application-default login`",
}


def _say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def stored(address: Address, workdir: Workdir, *, writes: bool) -> Iterator[Sequence[Hook]]:
    """Downloads the run at `address` to `workdir`. If the block trains (`writes`), uploads what it makes of the run.

    Yields the hooks for the training. Raises a `DataError` if there is no run to read.
    """
    cluster = cluster_from_environment()
    bucket, folder = Bucket(address), workdir.path
    if not writes:
        with explained(address, folder):
            owner = read_owner(bucket)
            if not (wrote_last(folder, owner) or bucket.objects().keys() - {OWNER}):
                raise DataError(f"`{address}` holds no run: check the address, or list it with your storage's tools.")
            download(bucket, folder, owner, _say)
        yield []
        return
    if cluster is not None and not cluster.is_chief:
        with explained(address, folder):
            download_checkpoints(bucket, folder, _say)
            wait_for_chief(bucket, folder)
            download_checkpoints(bucket, folder, _say)  # those that only the chief had
        yield []
        return
    mirror = Mirror(bucket, workdir, leads=cluster is not None and cluster.size > 1)
    try:
        yield [Warn(mirror)]
    except KeyboardInterrupt:
        raise  # at once
    except BaseException as error:
        with after(error):
            mirror.end()
        raise
    else:
        mirror.end()
    finally:
        workdir.release()


class Mirror:
    """The thread that uploads a run, until `end`."""

    def __init__(self, bucket: Bucket, workdir: Workdir, *, leads: bool = False):
        """Takes the address for this process, and downloads what the local folder lacks.

        A process that `leads` other workers, which may have separate folders, also uploads what the address lacks.
        """
        self.address, self.folder = bucket.address, workdir.named
        self.trouble: str | None = None  # the last error, until the storage works again
        self._failing: float | None = None  # since when nothing was uploaded
        self._ownership = Ownership(bucket, workdir.path)
        with explained(self.address, workdir.path):
            found = read_owner(bucket)
        workdir.create()
        workdir.lock()
        try:
            with explained(self.address, workdir.path):
                self._ownership.wait_for(found, _say)
                download(bucket, workdir.path, found, _say)
                self._ownership.take()
                self._upload = Upload(bucket, workdir.path, self._ownership.confirm, self._note_progress)
                if leads:
                    self._upload.run()
                    self._ownership.announce()
        except BaseException:
            self._ownership.stop()
            workdir.release()
            raise
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="storage")
        with held_back(signal.SIGTERM):  # in this thread
            self._thread.start()

    def end(self) -> None:
        """Uploads the rest. Raises a `CheckpointError` that names what the address lacks if it takes no more."""
        self._failing = None
        self._ends.set()
        said = time.monotonic() - SAID_SECONDS + 2.0 * LOOK_SECONDS
        while self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - said > SAID_SECONDS:
                said = time.monotonic()
                because = f" ({self.trouble})" if self.trouble else ""
                _say(f"uploading to `{self.address}`{because}: {listed(self._upload.lacking(), most=3)} left")
        self._ownership.stop()
        if self.trouble is None:
            return
        lacking = self._upload.lacking() or ["owner.json"]  # which would say that the run has ended
        raise CheckpointError(
            f"`{self.address}` lacks {listed(lacking, most=5)}: {self.trouble}. The run is whole in `{self.folder}`. "
            f"`python -m trainers.storage {self.address}` uploads the rest once the storage works."
        )

    @property
    def what_follows(self) -> str:
        """Says what happens after `trouble`."""
        where = f"The run continues in `{self.folder}`"
        return f"{where} alone." if self._ownership.is_lost else f"{where}, and uploads follow once it does."

    def _follow(self) -> None:
        rest, copied = 0.0, -FILES_SECONDS
        while True:
            ends, began = self._ends.wait(rest), time.monotonic()
            try:
                if not (ends or self.trouble or self._upload.has_new_checkpoint or began - copied > FILES_SECONDS):
                    rest = LOOK_SECONDS
                    continue
                self._upload.run()
                if ends:
                    self._ownership.release()
            except Exception as error:  # the storage's, the disk's, or a mistake: a thread must not end in silence
                self.trouble = str(error) or type(error).__name__
                self._failing = self._failing or time.monotonic()
                if self._ownership.is_lost or (ends and time.monotonic() - self._failing > ENDING):
                    return
                rest = min(max(LOOK_SECONDS, 2.0 * rest), LONGEST)
                if ends:
                    time.sleep(LOOK_SECONDS)
                continue
            self.trouble, copied = None, time.monotonic()
            if ends:
                return
            rest = max(LOOK_SECONDS, SHARE * (copied - began))

    def _note_progress(self) -> None:
        self._failing = None


class Warn(Hook):
    """Tells a run's screen and `warnings.jsonl` about storage that takes nothing, once for each failure."""

    def __init__(self, mirror: Mirror):
        super().__init__()
        self._mirror, self._warned = mirror, False

    def after_chunk(self, run: Run) -> None:
        trouble, mirror = self._mirror.trouble, self._mirror
        if trouble and not self._warned:
            run.telemetry.warn_once(
                f"`{mirror.address}` doesn't take this run's files: {trouble}. {mirror.what_follows}"
            )
        elif self._warned and not trouble:
            run.telemetry.note(f"`{mirror.address}` takes this run's files again")
        self._warned = bool(trouble)

    def __call__(self, run: Run) -> None:
        """Does nothing: the upload follows the end of the run."""


@contextlib.contextmanager
def explained(address: Address, folder: Path) -> Iterator[None]:
    """Turns a `StorageError` before a run into an error of one paragraph."""
    try:
        yield
    except StorageError as error:
        if error.refused:
            raise ConfigurationError(
                f"`{address}` can't be used: {error}. Check the bucket's name and {CREDENTIALS[address.scheme]}."
            ) from error
        raise CheckpointError(
            f"`{address}` can't be reached, so nobody knows whether it holds a run: {error}. Nothing was changed: run "
            f"the same command again. `--workdir={folder}` trains in the local folder alone."
        ) from error
