"""Computes what `tools.fid_peer` compares; needs torchvision, pytorch-fid, torch-fidelity and lpips.

python in_torch.py FOLDER    writes random weights, images, and what the libraries compute of them
"""

import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lpips
import numpy as np
import torch
import torchvision
from pytorch_fid import inception
from pytorch_fid.fid_score import calculate_frechet_distance
from torch_fidelity.metric_kid import kid_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

SIZES = ((32, 32), (299, 299), (400, 330))  # enlarged, as they are, and reduced
ROWS, FEATURES = 300, 64  # of the sets whose distances are compared


def random_weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns a state dict of `net` in which no tensor is as initialised, and values keep their size by layer."""
    weights = net.state_dict()
    for name, x in weights.items():
        if x.ndim == 4:
            x.copy_(torch.randn(x.shape) * (2 / x[0].numel()) ** 0.5)
        elif x.dtype == torch.float32:
            near = 1.0 if name.endswith(("running_var", "bn.weight")) else 0.0
            x.copy_(near + 0.3 * torch.rand(x.shape))
    return weights


def features(folder: Path) -> dict[str, np.ndarray]:
    """Saves weights of Inception in both formats of `torch.save`. Returns images, and their features."""
    weights = random_weights(torchvision.models.inception_v3(num_classes=1008, aux_logits=False, init_weights=False))
    torch.save(weights, folder / "inception.pth")
    torch.save(weights, folder / "older.pth", _use_new_zipfile_serialization=False)
    inception.load_state_dict_from_url = lambda *_, **__: weights  # in place of a download
    net, found = inception.InceptionV3().eval(), {}
    for i, size in enumerate(SIZES):
        images = torch.rand([2, 3, *size])
        found[f"images_{i}"] = images.permute(0, 2, 3, 1).numpy()
        with torch.no_grad():
            found[f"features_{i}"] = net(images)[0][:, :, 0, 0].numpy()
    return found


def perceptual(folder: Path, kind: str, model: str) -> dict[str, np.ndarray]:
    """Saves random weights of the network of LPIPS. Returns distances of random images, with the package's heads."""
    weights = random_weights(getattr(torchvision.models, model)())
    convolutions = {name: x for name, x in weights.items() if name.startswith("features")}
    torch.save(convolutions, folder / f"{kind}.pth")
    found = lpips.LPIPS(net=kind, pnet_rand=True, verbose=False)  # with the package's heads
    numbers = iter(range(100))
    for part in (part for stage in found.net.children() if isinstance(stage, torch.nn.Sequential) for part in stage):
        number = next(numbers)
        if isinstance(part, torch.nn.Conv2d):
            part.load_state_dict({x: weights[f"features.{number}.{x}"] for x in ("weight", "bias")})
    heads = Path(lpips.__file__).parent / "weights" / "v0.1" / f"{kind}.pth"
    shutil.copy(heads, folder / f"{kind}_heads.pth")
    images = 2 * torch.rand([2, 3, 3, 70, 90]) - 1
    with torch.no_grad():
        distance = found(*images)[:, 0, 0, 0].numpy()
    return {f"{kind}_images": images.permute(0, 1, 3, 4, 2).numpy(), kind: distance}


def distances() -> dict[str, Any]:
    """Returns two sets of features, and the libraries' distances of them. A subset of all rows needs no draw."""
    real = np.random.RandomState(0).gamma(2.0, size=[ROWS, FEATURES])
    fake = 1.1 * np.random.RandomState(1).gamma(1.5, size=[ROWS, FEATURES])
    moments = [(x.mean(0), np.cov(x, rowvar=False)) for x in (real, fake)]
    both = torch.tensor(fake), torch.tensor(real)
    kernel = kid_features_to_metric(*both, kid_subsets=1, kid_subset_size=ROWS, verbose=False)
    manifolds = prc_features_to_metric(*both, prc_neighborhood=3, prc_batch_size=100, verbose=False)
    return {
        "real": real,
        "fake": fake,
        "fid": calculate_frechet_distance(*moments[0], *moments[1]),
        "kid": kernel["kernel_inception_distance_mean"],
        "precision": manifolds["precision"],
        "recall": manifolds["recall"],
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    where = Path(sys.argv[1])
    np.savez(
        where / "computed.npz",
        **features(where),
        **distances(),
        **perceptual(where, "alex", "alexnet"),
        **perceptual(where, "vgg", "vgg16"),
    )
    names = ("torch", "torchvision", "pytorch-fid", "torch-fidelity", "lpips")
    print(", ".join(f"{name} {version(name)}" for name in names), flush=True)
