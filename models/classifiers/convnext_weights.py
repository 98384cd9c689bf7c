"""Reads and writes the weights of a `ConvNeXt` under the names of `timm` and `torchvision`."""

from collections.abc import Mapping, Sequence

import gin

from core.data.files import path_of
from core.weights import StartFrom, open_state_dict
from models.classifiers.convnext import ConvNeXt
from models.classifiers.state_dicts import Layout, StateDict, layer, layout_of, norm

STAGES = 8  # more would halve an image of 512 pixels to nothing
BLOCK = "stages/{}/blocks/{}"
TIMM = Layout(
    {
        **layer("stem/0", "downs/0"),
        **norm("stem/1", "norms/0"),
        **norm("stages/{}/downsample/0", "norms/{}"),
        **layer("stages/{}/downsample/1", "downs/{}"),
        **layer(f"{BLOCK}/conv_dw", "stages/{}/{}/conv"),
        **norm(f"{BLOCK}/norm", "stages/{}/{}/norm"),
        **layer(f"{BLOCK}/mlp/fc1", "stages/{}/{}/up"),
        **layer(f"{BLOCK}/mlp/fc2", "stages/{}/{}/down"),
        f"{BLOCK}/gamma": ("stages/{}/{}/scale",),
        **norm("head/norm", "norm"),
        **layer("head/fc", "logits"),
    }
)


def _stage(i: int) -> dict[str, tuple[str, ...]]:
    """Returns the names of a stage in `torchvision`, whose numbers count convolutions between stages, too."""
    block, ours = f"features/{2 * i + 1}/{{}}", f"stages/{i}/{{}}"
    conv, first = (1, 0) if i else (0, 1)
    return {
        **layer(f"features/{2 * i}/{conv}", f"downs/{i}"),
        **norm(f"features/{2 * i}/{first}", f"norms/{i}"),
        **layer(f"{block}/block/0", f"{ours}/conv"),
        **norm(f"{block}/block/2", f"{ours}/norm"),
        **layer(f"{block}/block/3", f"{ours}/up"),
        **layer(f"{block}/block/5", f"{ours}/down"),
        f"{block}/layer_scale": (f"{ours}/scale",),
    }


TORCHVISION = Layout(
    {
        **{theirs: ours for i in range(STAGES) for theirs, ours in _stage(i).items()},
        **norm("classifier/0", "norm"),
        **layer("classifier/2", "logits"),
    },
    ones={f"features/{2 * i + 1}/{{}}/layer_scale": (0, 2) for i in range(STAGES)},
)


@gin.configurable
def convnext_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a ConvNeXt of `timm` or `torchvision`.

    `path` is a file of its state dict, `.pth` or `.safetensors`. `take` and `rename` use the names in a
    `ConvNeXtClassifier`: `net/downs/0/w`, `net/logits/w`.
    """

    def opened() -> StateDict:
        file = open_state_dict(path_of(path))
        layout = layout_of(file, {"timm": TIMM, "torchvision": TORCHVISION}, ConvNeXt)
        return StateDict(file, layout, ConvNeXt, "`ConvNeXtClassifier.blocks`")

    return StartFrom(opened, path, take, rename)
