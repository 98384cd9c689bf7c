"""Environments of their own for what Tapeloop is compared with: made once from the package registry, and kept.

A peer is no dependency of Tapeloop. Its packages lie in `build/peers/<name>`, with what they were made of beside them;
an environment that was made of something else, or not to its end, is made anew.
"""

import shutil
import subprocess
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "build" / "peers"
MADE_OF = "made_of.txt"

# What `pip install` is called with, one call after the other.
PEERS = {
    "keras": ["tensorflow>=2.21,<2.22"],  # which brings Keras 3
    "orbit": [
        "tensorflow>=2.21,<2.22 dm-sonnet tf-keras",
        "--no-deps tf-models-official",
    ],  # its dependencies are of models
    "jax": ["jax optax flax"],
    "torch": ["torch lightning"],
}


def python_of(peer: str) -> Path | None:
    """Returns the Python that has the peer's packages; None where `prepare` hasn't made it."""
    folder = FOLDER / peer
    made_of = folder / MADE_OF
    if made_of.is_file() and made_of.read_text() == _recipe(peer):
        return folder / "bin" / "python"
    return None


def prepare(peer: str) -> Path:
    """Makes the environment of a peer, unless it is there; returns its Python."""
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
