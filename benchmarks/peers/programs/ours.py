"""Tapeloop: the command that a user types, with the work's gin file. A hook of the run records the times.

The time between two metric lines is counted in full, with input, hooks and the writing of these lines.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers.programs import start
from benchmarks.peers.programs.work import SEGMENT_SECONDS

TWO_REPLICAS = Path(__file__).resolve().parents[3] / "configs" / "runtime" / "mirrored.gin"
ONE = "one-"  # prefix of variants that train on one device, whatever the work


def main() -> None:
    """Trains, and prints what the run recorded."""
    folder, variant, seconds = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if not (folder / "work.json").exists():
        start.main()
        return
    said = json.loads((folder / "work.json").read_text())
    gin_files = list(said["gin"])
    bindings = {
        "npz.path": str(folder / "data.npz"),
        "Trainer.log_every": said["log"],
        "Clock.every": said["log"],
        "Clock.check": said["check"],
        "Clock.seconds": float(seconds),
    }
    if said["replicas"] and not variant.startswith(ONE):
        gin_files.append(str(TWO_REPLICAS))
    if (compiled := variant.removeprefix(ONE)) != "default":
        bindings["Trainer.compile"] = compiled
    with tempfile.TemporaryDirectory() as scratch:
        run = trained(gin_files, bindings, scratch)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        clock = [(step, now) for step, now in json.loads((run / "clock.json").read_text())]
    (loss,) = (line[said["figure"]] for line in lines if line["step"] == said["check"] and line["split"] == "train")
    print(json.dumps({"loss": loss, "rates": rates_of([each for each in clock if each[0] >= said["check"]])}))


def trained(gin_files: Sequence[str], bindings: Mapping[str, Any], scratch: str) -> Path:
    """Runs the command; returns its workdir, or ends with its exit code if it failed."""
    command = [
        *(sys.executable, "-m", "trainers.main", f"--workdir={scratch}/run"),
        *(f"--gin_file={path}" for path in gin_files),
        *(f"--gin_param={name} = {value!r}" for name, value in bindings.items()),
    ]
    done = subprocess.run(command, check=False, stdout=sys.stderr)
    if done.returncode:
        sys.exit(done.returncode)
    return Path(scratch, "run")


def rates_of(clock: list[tuple[Any, ...]]) -> list[float]:
    """Returns steps a second per segment that lasts long enough; one segment of everything if none does."""
    segments = [clock[0]]
    for step, now in clock[1:]:
        if now - segments[-1][1] >= SEGMENT_SECONDS:
            segments.append((step, now))
    if len(segments) == 1:
        segments.append(clock[-1])
    return [(last - first) / (end - began) for (first, began), (last, end) in pairwise(segments)]


if __name__ == "__main__":
    main()
