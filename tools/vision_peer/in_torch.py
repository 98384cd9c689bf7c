"""Makes an image classifier of another library with random weights; needs torchvision, timm or transformers.

python in_torch.py make FOLDER torchvision resnet18 '{}'    writes their weights, and logits of random images
python in_torch.py load FOLDER torchvision resnet18 '{}'    loads ours, and asserts that every bit is theirs
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

SIDE = 64  # of the images, in pixels


def model_of(library: str, kind: str, settings: dict[str, Any]) -> torch.nn.Module:
    """Returns a model in evaluation mode."""
    module = importlib.import_module(library)
    if library == "transformers":
        model = module.ViTForImageClassification(module.ViTConfig(**settings))
    elif library == "timm":
        model = module.create_model(kind, **settings)
    else:
        model = getattr(module.models, kind)(**settings)
    return model.eval()


def logits_of(model: torch.nn.Module, images: torch.Tensor) -> np.ndarray:
    """Returns the logits of `images`."""
    with torch.no_grad():
        found = model(images)
    return getattr(found, "logits", found).numpy()


def make(folder: Path, library: str, kind: str, settings: dict[str, Any]) -> None:
    """Writes a model, with images and their logits."""
    torch.manual_seed(0)
    model = model_of(library, kind, settings)
    with torch.no_grad():
        for name, x in model.state_dict().items():  # many are zero or one initially
            scales = name.endswith(("running_var", "layer_scale", "gamma"))
            if x.dtype == torch.float32 and (x.ndim == 1 or scales):
                x += torch.rand_like(x) * (0.5 if scales else 0.1)
            elif x.dtype == torch.float32 and not kind.startswith("resnet"):
                x += torch.randn_like(x) * 0.02
    images = torch.rand([4, 3, SIDE, SIDE])
    if library == "transformers":
        model.save_pretrained(folder / "theirs")
    else:
        save_file(model.state_dict(), folder / "theirs.safetensors")
    np.savez(folder / "computed.npz", images=images.permute(0, 2, 3, 1).numpy(), logits=logits_of(model, images))
    version = importlib.import_module(library).__version__
    print(f"PyTorch {torch.__version__}, {library} {version}", flush=True)


def load(folder: Path, library: str, kind: str, settings: dict[str, Any]) -> None:
    """Loads what Tapeloop wrote, and compares it with the saved weights and logits."""
    if library == "transformers":
        read = importlib.import_module(library).ViTForImageClassification.from_pretrained
        model, theirs = read(folder / "ours"), read(folder / "theirs").state_dict()
    else:
        model, theirs = model_of(library, kind, settings), load_file(folder / "theirs.safetensors")
        model.load_state_dict(load_file(folder / "ours" / "model.safetensors"))
    for name, x in model.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(x, theirs[name]), name
    with np.load(folder / "computed.npz") as computed:
        images = torch.from_numpy(computed["images"]).permute(0, 3, 1, 2)
        assert np.allclose(logits_of(model.eval(), images), computed["logits"], rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    action, where, library, kind, settings = sys.argv[1:]
    {"make": make, "load": load}[action](Path(where), library, kind, json.loads(settings))
