"""`python -m tools.resnet_peer [--environment=DIR]`: checks that a converted ResNet computes the same logits.

torchvision makes and saves models with random weights in a separate environment, unless `--environment` names one that
has `torchvision` and `safetensors`. Tapeloop's models load them with `@resnet_weights`, and torchvision loads what
`torchvision_arrays` returns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

from benchmarks.environments import prepare
from core.optimizers import sgd
from core.random import Rng
from core.weights import begin_with
from models import ResNetClassifier
from models.classifiers import resnet_weights, torchvision_arrays

DEPTHS = (18, 50)
NEAR = 1e-4  # of the largest logit


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the largest difference of each model's logits; returns 1 if one exceeds the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--environment", type=Path, metavar="DIR", help="one with torchvision and safetensors")
    flags = parser.parse_args(arguments)
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        python = flags.environment / "bin" / "python" if flags.environment else prepare("torchvision")
        for depth in DEPTHS:
            folder = Path(scratch) / str(depth)
            folder.mkdir()
            versions = in_torchvision(python, "make", folder, depth)
            apart, size = compared(folder, depth)
            in_torchvision(python, "load", folder, depth)
            print(f"ResNet-{depth}: logits up to {size:.2f} differ by at most {apart:.1e} ({versions})", flush=True)
            worst = max(worst, apart / size)
    return int(not worst <= NEAR)


def in_torchvision(python: Path, action: str, folder: Path, depth: int) -> str:
    """Runs the peer's part, and returns the line that it prints."""
    program = Path(__file__).with_name("in_torchvision.py")
    command = [python, program, action, folder, f"resnet{depth}"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def compared(folder: Path, depth: int) -> tuple[float, float]:
    """Returns the largest difference from the logits in `folder`, and their largest magnitude; writes our arrays."""
    with np.load(folder / "computed.npz") as computed:
        images, logits = computed["images"], computed["logits"]
    task = ResNetClassifier(
        image_shape=images.shape[1:], depth=depth, num_classes=1000, optimizer=sgd(0.1), rng=Rng.from_seed(0)
    )
    begin_with(resnet_weights(str(folder / "theirs.safetensors")), task)
    save_file(torchvision_arrays(task.net), folder / "ours.safetensors")
    ours = task.net(tf.constant(images)).numpy()
    return float(abs(ours - logits).max()), float(abs(logits).max())


if __name__ == "__main__":
    sys.exit(main())
