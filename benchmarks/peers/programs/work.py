"""Input and timing of each program. Imports NumPy alone, which every peer's environment has.

A program's arguments are the work's folder, one of its variants, and the seconds to train. It takes the steps whose
losses are compared, trains on for that time, and prints its results as JSON on its last line.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SEGMENT_SECONDS = 0.4  # of steps that are timed as one
IMAGES = ("image", "label")
READ = {  # all others read images and labels
    "transformer": ("tokens",),
    "dcgan": ("image",),
    "cyclegan": ("a", "b"),
    "unet": ("noisy", "time", "noise"),
}


class Work:
    """Data by feature, initial weights by name, and the examples [steps, batch] that each step reads."""

    def __init__(self, folder: Path):
        said = json.loads((folder / "work.json").read_text())
        self.name, self.batch = said["name"], said["batch"]
        self.chunk, self.log, self.check = said["chunk"], said["log"], said["check"]
        with np.load(folder / "data.npz") as data:  # Tapeloop's has more
            self.data = {name: data[name] for name in READ.get(self.name, IMAGES)}
        self.weights = dict(np.load(folder / "weights.npz"))
        self.order = np.load(folder / "order.npy")  # its length is a multiple of `chunk`; read cyclically
        latents = folder / "latents.npy"  # a GAN's, equal for all programs
        self.latents = np.load(latents) if latents.exists() else None

    @property
    def chunks(self) -> Any:
        """Returns the same examples as [chunks, steps, batch]."""
        return self.order.reshape(-1, self.chunk, self.batch)


Advance = Callable[[], Any]  # takes a chunk of steps; returns their mean loss, which may not be computed yet


def main(variants: Mapping[str, Callable[[Work], Advance]]) -> None:
    """Runs the variant that the command line names."""
    folder, variant, seconds = sys.argv[1:]
    work = Work(Path(folder))
    print(json.dumps(measured(work, variants[variant](work), seconds=float(seconds))))


def measured(work: Work, advance: Advance, *, seconds: float) -> dict[str, Any]:
    """Returns the mean loss of the last `log` of the first `check` steps, and then steps a second, by segment."""
    losses, took = [], 0.0
    for _ in range(work.check // work.chunk):
        began = time.perf_counter()
        losses.append(float(advance()))
        took = time.perf_counter() - began
    per_segment, rates = max(1, math.ceil(SEGMENT_SECONDS / took)), list[float]()
    until = time.perf_counter() + seconds
    while not rates or time.perf_counter() < until:
        began = time.perf_counter()
        for _ in range(per_segment):
            loss = advance()
        float(loss)
        rates.append(per_segment * work.chunk / (time.perf_counter() - began))
    return {"loss": float(np.mean(losses[-(work.log // work.chunk) :])), "rates": rates}
