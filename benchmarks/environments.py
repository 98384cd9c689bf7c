"""Virtual environments for Tapeloop's peers: made once from the package registry, and kept.

No peer is a dependency of Tapeloop. `build/peers/<name>` holds a peer's packages and the list they were installed from;
an environment with another list, or one whose installation was interrupted, is made anew.
"""

import shutil
import subprocess
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "build" / "peers"
MADE_OF = "made_of.txt"

# arguments of `pip install`, one call after the other
PEERS = {
    "keras": ["tensorflow>=2.21,<2.22"],  # which brings Keras 3
    "orbit": [
        "tensorflow>=2.21,<2.22 dm-sonnet tf-keras",
        "--no-deps tf-models-official",
    ],  # its dependencies are only needed by its models
    "jax": ["jax optax flax"],
    "torch": ["torch lightning"],
    "transformers": ["torch transformers"],
    "vision": ["torchvision timm transformers safetensors numpy"],
    "image_quality": ["torch torchvision pytorch-fid torch-fidelity lpips scipy numpy"],
    "kubernetes": ["kubeflow-training"],  # with the client of Kubernetes
}


def python_of(peer: str) -> Path | None:
    """Returns the Python that has the peer's packages; None before `prepare` has made it."""
    folder = FOLDER / peer
    made_of = folder / MADE_OF
    if made_of.is_file() and made_of.read_text() == _recipe(peer):
        return folder / "bin" / "python"
    return None


def prepare(peer: str) -> Path:
    """Makes the environment of a peer unless it exists; returns its Python."""
    python = python_of(peer)
    if python is None:
        folder = FOLDER / peer
        print(f"{peer}: {_recipe(peer)!r}, into `{folder}`", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        for wanted in PEERS[peer]:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted.split()], check=True)
        (folder / MADE_OF).write_text(_recipe(peer))
    return python


def _recipe(peer: str) -> str:
    return "; ".join(PEERS[peer])
