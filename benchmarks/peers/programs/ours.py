"""Tapeloop: the command that a user types, with the gin file of the work. A hook of the run notes the clock.

Whatever lies between two lines of metrics is timed, input, hooks and the writing of these lines among it.
"""

import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers.programs.work import SEGMENT_SECONDS

COMPILE = {"off": False, "xla": True, "auto": "auto"}  # as `Trainer.compile` has them; the default isn't bound


def main() -> None:
    """Trains, and prints what the run has kept."""
    folder, variant, seconds = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    said = json.loads((folder / "work.json").read_text())
    bindings = {
        "npz.path": str(folder / "data.npz"),
        "Trainer.log_every": said["log"],
        "Clock.every": said["log"],
        "Clock.check": said["check"],
        "Clock.seconds": float(seconds),
    }
    if variant != "default":
        bindings["Trainer.compile"] = COMPILE[variant]
    gin_files = [Path(__file__).parents[1] / "works" / name for name in ("common.gin", f"{said['name']}.gin")]
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            *(sys.executable, "-m", "trainers.main", f"--workdir={scratch}/run"),
            *(f"--gin_file={path}" for path in gin_files),
            *(f"--gin_param={name} = {value!r}" for name, value in bindings.items()),
        ]
        done = subprocess.run(command, check=False, stdout=sys.stderr)
        if done.returncode:
            sys.exit(done.returncode)
        lines = [json.loads(line) for line in Path(scratch, "run", "metrics.jsonl").read_text().splitlines()]
        clock = json.loads(Path(scratch, "run", "clock.json").read_text())
    (loss,) = (line["loss"] for line in lines if line["step"] == said["check"] and line["split"] == "train")
    print(json.dumps({"loss": loss, "rates": rates_of([tuple(x) for x in clock if x[0] >= said["check"]])}))


def rates_of(clock: list[tuple[Any, ...]]) -> list[float]:
    """Returns steps a second, by segments that last long enough; all is one segment where none does."""
    segments = [clock[0]]
    for step, now in clock[1:]:
        if now - segments[-1][1] >= SEGMENT_SECONDS:
            segments.append((step, now))
    if len(segments) == 1:
        segments.append(clock[-1])
    return [(last - first) / (end - began) for (first, began), (last, end) in pairwise(segments)]


if __name__ == "__main__":
    main()
