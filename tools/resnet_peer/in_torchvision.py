"""Makes a ResNet with random weights, and saves it with its logits of random images; needs torchvision.

python in_torchvision.py make FOLDER resnet18     writes theirs.safetensors and computed.npz
python in_torchvision.py load FOLDER resnet18     loads ours.safetensors, and asserts that every bit is theirs
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torchvision
from safetensors.torch import load_file, save_file

SIDE = 96  # of the images, in pixels


def make(folder: Path, model: torch.nn.Module) -> None:
    """Writes the state of `model`, with images and their logits."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, x in model.state_dict().items():  # initially offsets and means are zero, scales and variances one
            if x.dtype == torch.float32 and x.ndim == 1:
                x += torch.rand_like(x) * (0.5 if name.endswith("running_var") else 0.1)
        images = torch.rand([4, 3, SIDE, SIDE])
        logits = model.eval()(images)
    save_file(model.state_dict(), folder / "theirs.safetensors")
    np.savez(folder / "computed.npz", images=images.permute(0, 2, 3, 1).numpy(), logits=logits.numpy())
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}", flush=True)


def load(folder: Path, model: torch.nn.Module) -> None:
    """Loads what Tapeloop wrote into `model`, and compares it with the saved state."""
    model.load_state_dict(load_file(folder / "ours.safetensors"))
    theirs = load_file(folder / "theirs.safetensors")
    for name, x in model.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(x, theirs[name]), name


if __name__ == "__main__":
    action, folder, name = sys.argv[1:]
    {"make": make, "load": load}[action](Path(folder), getattr(torchvision.models, name)())
