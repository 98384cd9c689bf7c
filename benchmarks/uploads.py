"""Training time that uploads take: `python -m benchmarks.uploads [--rounds=6] [--page=docs/checkpoints.md]`

Trains as `benchmarks.saves`, and saves every 100 steps in the background. A run whose checkpoints are uploaded to an S3
server takes turns with one that keeps them on its disk. The server, moto's, is a process of this machine, so it takes
processor time from the steps too. Each turn begins once the last upload is complete.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from benchmarks.pages import table, written
from benchmarks.pairs import interleaved, ratio
from benchmarks.saves import SIZES, STEPS, Side
from core.storage import Bucket, parse_address
from trainers.launch.commands import free_ports
from trainers.storage.mirror import Mirror
from trainers.workdir import Workdir

HEAD = ["checkpoints", "a step", "the loop waits", "of its time", "turns take", "95 %"]
LOOK_SECONDS = 0.05


class UploadedSide(Side):
    """A run whose checkpoints are uploaded while it takes its steps."""

    def __init__(self, folder: Path, *, examples: int, sizes: Sequence[int] = SIZES, steps: int = STEPS):
        super().__init__(folder, examples=examples, sizes=sizes, steps=steps)
        workdir = Workdir(folder)
        self.bucket = Bucket(parse_address(f"s3://bucket/{folder.name}", "address"))
        self.mirror = Mirror(self.bucket, workdir)

    def settle(self) -> None:
        """Waits until the last checkpoint is at the address."""
        name = f"checkpoints/{self.trainer.workdir.newest_name()}/manifest.json"
        while self.bucket.read(name) is None:
            time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[None]:
    """Runs moto's server, with an empty bucket, and points this process's variables to it until the block ends."""
    before = dict(os.environ)
    url = f"http://127.0.0.1:{(port := free_ports(1)[0])}"
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update({"AWS_ENDPOINT_URL": url, **keys})
    with open(folder / "server.log", "wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
                break
            time.sleep(LOOK_SECONDS)
            if server.poll() is not None:
                raise RuntimeError((folder / "server.log").read_text())
        yield
    finally:
        server.kill()
        server.wait()
        os.environ.clear()
        os.environ.update(before)


def measured(rounds: int, *, examples: int, sizes: Sequence[int] = SIZES, steps: int = STEPS) -> list[list[str]]:
    """Returns the rows of the table."""
    with tempfile.TemporaryDirectory() as scratch, s3_server(Path(scratch)):
        local = Side(Path(scratch, "local"), examples=examples, sizes=sizes, steps=steps)
        uploaded = UploadedSide(Path(scratch, "uploaded"), examples=examples, sizes=sizes, steps=steps)

        def take_turn() -> float:
            seconds = uploaded.seconds()
            uploaded.settle()
            return seconds + uploaded.waits[-1]

        def take_local_turn() -> float:
            return local.seconds() + local.waits[-1]

        seconds = interleaved({"uploaded": take_turn, "local": take_local_turn}, pairs=rounds)
        uploaded.mirror.end()
        sides = {"uploaded": uploaded, "local": local}
        return [_row(name, sides[name], seconds[name], seconds["local"]) for name in ("uploaded", "local")]


def _row(name: str, side: Side, seconds: np.ndarray, plain: np.ndarray) -> list[str]:
    median, low, high = ratio(seconds, plain)
    wait, share = (np.median(found[-len(seconds) :]) for found in (side.waits, side.shares))  # without the first turn
    compared = [f"{median:.3f} times as long", f"{low:.3f} to {high:.3f}"] if name != "local" else ["", ""]
    return [name, f"{1e3 * np.median(seconds) / side.steps:.0f} ms", f"{wait:.2f} s", f"{share:.1%}", *compared]


def main() -> None:
    """Prints a table, and writes it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="turns of each kind (default: 6)")
    parser.add_argument("--examples", type=int, default=128, help="of a step, which makes it longer (default: 128)")
    parser.add_argument("--width", type=int, default=SIZES[1], help=f"of the three layers (default: {SIZES[1]})")
    parser.add_argument("--page", type=Path, help="page that has this table")
    flags = parser.parse_args()
    about = machine()
    sizes = [SIZES[0], *[flags.width] * 3, SIZES[-1]]
    rows = measured(flags.rounds, examples=flags.examples, sizes=sizes)
    found = (
        f"{table(HEAD, rows)}\nMedians of {flags.rounds} turns of {STEPS} steps, after one that isn't counted: "
        f"{about['processor']}, {about['cores']} cores, load {about['load_before']}, "
        f"TensorFlow {about['tensorflow']}.\n"
    )
    print(found)
    if flags.page:
        flags.page.write_text(written(flags.page.read_text(), {"uploads": found}))


if __name__ == "__main__":
    main()
