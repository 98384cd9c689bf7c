"""`python -m tools.gpt2_peer [--environment=DIR]`: checks that a converted GPT-2 computes the same logits.

PyTorch makes and saves models with random weights in a separate environment (some three gigabytes to download, mostly
CUDA) unless `--environment` names one that has `torch` and `transformers`. Tapeloop's models load them with
`@gpt2_weights`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.environments import prepare
from core.optimizers import sgd
from core.random import Rng
from core.weights import begin_with
from models import LanguageModel
from models.language import gpt2_weights

MODELS = {
    "two layers": {"n_layer": 2, "n_embd": 48, "n_head": 4, "n_positions": 64, "vocab_size": 500},
    "GPT-2, 124 M": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
}
NEAR = 1e-4


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the largest difference of each model's logits; returns 1 if one exceeds the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--environment", type=Path, metavar="DIR", help="one with torch and transformers")
    flags = parser.parse_args(arguments)
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        python = flags.environment / "bin" / "python" if flags.environment else prepare("transformers")
        for name, settings in MODELS.items():
            folder = Path(scratch) / name
            program = Path(__file__).with_name("in_transformers.py")
            command = [python, program, folder, json.dumps(settings)]
            versions = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            apart, size = compared(folder, settings)
            print(f"{name}: logits up to {size:.2f} differ by at most {apart:.1e} ({versions})", flush=True)
            worst = max(worst, apart)
    return int(not worst <= NEAR)


def compared(folder: Path, settings: dict[str, int]) -> tuple[float, float]:
    """Returns the largest difference from the logits of the model in `folder`, and their largest magnitude."""
    task = LanguageModel(
        vocabulary=settings["vocab_size"],
        context=settings["n_positions"],
        num_layers=settings["n_layer"],
        size=settings["n_embd"],
        num_heads=settings["n_head"],
        optimizer=sgd(0.1),
        rng=Rng.from_seed(0),
    )
    begin_with(gpt2_weights(str(folder)), task)
    with np.load(folder / "computed.npz") as computed:
        ours = task.net(tf.constant(computed["tokens"], tf.int32)).numpy()
        return float(abs(ours - computed["logits"]).max()), float(abs(computed["logits"]).max())


if __name__ == "__main__":
    sys.exit(main())
