"""`python -m tools.vision_peer [--environment=DIR] [--only NAME ...]`: checks converted image classifiers.

`torchvision`, `timm` and `transformers` make and save models with random weights in a separate environment (some three
gigabytes to download, mostly CUDA), unless `--environment` names one that has them. Tapeloop's models load them with
`@resnet_weights`, `@vit_weights` and `@convnext_weights`, and compute the same logits. Each library loads the weights
that `python -m trainers.weights` writes, bit for bit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.environments import prepare
from core.optimizers import sgd
from core.random import Rng
from core.weights import StartFrom, begin_with
from models import ConvNeXtClassifier, ResNetClassifier, ViTClassifier
from models.classifiers import Classifier, convnext_weights, resnet_weights, vit_weights
from trainers.weights.__main__ import WRITERS

NEAR = 1e-4  # of the largest logit


class Model(NamedTuple):
    """A model of a library: its name and settings there, and how to make and read the same network here."""

    library: str
    kind: str
    theirs: Mapping[str, Any]
    task: Callable[..., Classifier]
    ours: Mapping[str, Any]
    weights: Callable[[str], StartFrom]


def _resnet(depth: int) -> Model:
    ours = {"depth": depth, "num_classes": 1000}
    return Model("torchvision", f"resnet{depth}", {}, ResNetClassifier, ours, resnet_weights)


def _vit(library: str, kind: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Model:
    return Model(library, kind, theirs, ViTClassifier, ours, vit_weights)


def _convnext(library: str) -> Model:
    ours = {"num_classes": 1000}
    return Model(library, "convnext_tiny", {}, ConvNeXtClassifier, ours, convnext_weights)


_TINY = {"size": 192, "num_layers": 12, "num_heads": 3, "num_classes": 1000}
_BASE = {"size": 768, "num_layers": 12, "num_heads": 12}
_MEAN = {"class_token": False, "global_pool": "avg", "fc_norm": False}
MODELS = {
    "ResNet-18 of torchvision": _resnet(18),
    "ResNet-50 of torchvision": _resnet(50),
    "ViT-B/16 of torchvision": _vit("torchvision", "vit_b_16", {"image_size": 64}, {**_BASE, "num_classes": 1000}),
    "ConvNeXt-T of torchvision": _convnext("torchvision"),
    "ViT-Ti/16 of timm": _vit("timm", "vit_tiny_patch16_224", {"img_size": 64}, _TINY),
    "ViT-Ti/16 of timm, mean of patches": _vit(
        "timm", "vit_tiny_patch16_224", {"img_size": 64, **_MEAN}, {**_TINY, "pool": "mean"}
    ),
    "ConvNeXt-T of timm": _convnext("timm"),
    "ViT-B/16 of transformers": _vit(
        "transformers", "vit", {"image_size": 64, "num_labels": 10}, {**_BASE, "num_classes": 10, "epsilon": 1e-12}
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the largest difference of each model's logits; returns 1 if one exceeds the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--environment", type=Path, metavar="DIR", help="one with torchvision, timm and transformers")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    flags = parser.parse_args(arguments)
    worst = 0.0
    python = flags.environment / "bin" / "python" if flags.environment else prepare("vision")
    for name in flags.only:
        with tempfile.TemporaryDirectory() as scratch:
            versions = in_torch(python, "make", scratch, MODELS[name])
            apart, size = compared(Path(scratch), MODELS[name])
            in_torch(python, "load", scratch, MODELS[name])
            print(f"{name}: logits up to {size:.2f} differ by at most {apart:.1e} ({versions})", flush=True)
            worst = max(worst, apart / size)
    return int(not worst <= NEAR)


def in_torch(python: Path, action: str, folder: str, model: Model) -> str:
    """Runs the peer's part, and returns the line that it prints."""
    program = Path(__file__).with_name("in_torch.py")
    command = [python, program, action, folder, model.library, model.kind, json.dumps(model.theirs)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def compared(folder: Path, model: Model) -> tuple[float, float]:
    """Returns the largest difference from the logits in `folder`, and their largest magnitude; writes our arrays."""
    with np.load(folder / "computed.npz") as computed:
        images, logits = computed["images"], computed["logits"]
    task = model.task(image_shape=images.shape[1:], **model.ours, optimizer=sgd(0.1), rng=Rng.from_seed(0))
    hf = model.library == "transformers"
    begin_with(model.weights(str(folder / ("theirs" if hf else "theirs.safetensors"))), task)
    WRITERS["hf" if hf else model.library](task, folder / "ours")
    ours = task.net(tf.constant(images)).numpy()
    return float(abs(ours - logits).max()), float(abs(logits).max())


if __name__ == "__main__":
    sys.exit(main())
