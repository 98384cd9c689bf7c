"""`python -m tools.fid_peer [--environment=DIR]`: checks measures of image quality.

`pytorch-fid`, `torch-fidelity` and `lpips` compute features and distances with random weights in a separate environment
(some three gigabytes to download, mostly CUDA), unless `--environment` names one that has them. Tapeloop reads the same
files of weights, and computes the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.environments import prepare
from core import metrics
from models.features import load_inception, load_lpips

NEAR = 1e-4  # of the largest value


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the largest relative difference of each measure; returns 1 if one exceeds the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument(
        "--environment", type=Path, metavar="DIR", help="one with pytorch-fid, torch-fidelity and lpips"
    )
    flags = parser.parse_args(arguments)
    python = flags.environment / "bin" / "python" if flags.environment else prepare("image_quality")
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(__file__).with_name("in_torch.py")
        print(subprocess.run([python, program, scratch], stdout=subprocess.PIPE, text=True, check=True).stdout, end="")
        with np.load(Path(scratch) / "computed.npz") as computed:
            theirs = {name: computed[name] for name in computed}
        for name, ours, expected in compared(Path(scratch), theirs):
            size, apart = float(np.abs(expected).max()), float(np.abs(ours - expected).max())
            print(f"{name}: values up to {size:.4g} differ by at most {apart:.1e}", flush=True)
            worst = max(worst, apart / size)
    return int(not worst <= NEAR)


def compared(folder: Path, theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields what is compared: its name, our values and theirs."""
    for file in ("inception.pth", "older.pth"):
        net = tf.function(load_inception(str(folder / file)))
        for i in range(3):
            images = theirs[f"images_{i}"]
            size = "x".join(map(str, images.shape[1:3]))
            yield f"Inception features of {size} images, `{file}`", net(images).numpy(), theirs[f"features_{i}"]
    for kind in ("alex", "vgg"):
        distance = load_lpips(str(folder / f"{kind}.pth"), str(folder / f"{kind}_heads.pth"), kind)
        yield f"LPIPS of {kind}", distance(*theirs[f"{kind}_images"]).numpy(), theirs[kind]
    real, fake = (tf.constant(theirs[name]) for name in ("real", "fake"))
    yield "Fréchet distance", metrics.Frechet.of(real, fake).result().numpy(), theirs["fid"]
    kid = metrics.kernel_distance(real, fake, subsets=1, subset_size=len(real))
    yield "kernel distance", kid.numpy(), theirs["kid"]
    yield "precision", np.mean(metrics.in_manifold(fake, real)), theirs["precision"]
    yield "recall", np.mean(metrics.in_manifold(real, fake)), theirs["recall"]


if __name__ == "__main__":
    sys.exit(main())
