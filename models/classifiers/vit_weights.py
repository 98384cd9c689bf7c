"""Reads and writes the weights of a `ViT` under the names of `transformers`, `timm` and `torchvision`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import tensorflow as tf

from core.data.files import path_of
from core.disk import write_whole
from core.weights import StartFrom, Weights, open_state_dict
from core.weights.pretrained_folder import FILE, number, open_tensors, read_config
from models.classifiers.state_dicts import Layout, StateDict, arrays, layer, layout_of, norm
from models.classifiers.vit import ViT

ATTENTION = "blocks/{}/attention"
QKV = tuple(f"{ATTENTION}/{name}" for name in ("query", "key", "value"))
UP, DOWN = "blocks/{}/feed_forward/up", "blocks/{}/feed_forward/down"
BLOCK = "encoder/layers/encoder_layer_{}"


def _transformers(prefix: str) -> Layout:
    """Returns the layout of a ViT of `transformers`, with the `prefix` of all names but the last layer's."""
    embeddings, block = f"{prefix}embeddings", f"{prefix}encoder/layer/{{}}"
    names = {
        **layer(f"{embeddings}/patch_embeddings/projection", "patches"),
        f"{embeddings}/cls_token": ("token",),
        f"{embeddings}/position_embeddings": ("positions",),
        **norm(f"{block}/layernorm_before", "blocks/{}/norm_1"),
        **layer(f"{block}/attention/attention/query", QKV[0]),
        **layer(f"{block}/attention/attention/key", QKV[1]),
        **layer(f"{block}/attention/attention/value", QKV[2]),
        **layer(f"{block}/attention/output/dense", f"{ATTENTION}/out"),
        **norm(f"{block}/layernorm_after", "blocks/{}/norm_2"),
        **layer(f"{block}/intermediate/dense", UP),
        **layer(f"{block}/output/dense", DOWN),
        **norm(f"{prefix}layernorm", "norm"),
        **layer("classifier", "logits"),
    }
    ones = {f"{embeddings}/cls_token": (2, 0), f"{embeddings}/position_embeddings": (1, 0)}
    # Logits are computed without them.
    return Layout(names, ones=ones, needs="token", ignored=f"{prefix}(pooler/.*|embeddings/mask_token)")


TRANSFORMERS = _transformers("vit/")
WITHOUT_LOGITS = _transformers("")  # as a `ViTModel` saves it
TIMM = Layout(
    {
        **layer("patch_embed/proj", "patches"),
        "cls_token": ("token",),
        "pos_embed": ("positions",),
        **norm("blocks/{}/norm1", "blocks/{}/norm_1"),
        **layer("blocks/{}/attn/qkv", *QKV),
        **layer("blocks/{}/attn/proj", f"{ATTENTION}/out"),
        **norm("blocks/{}/norm2", "blocks/{}/norm_2"),
        **layer("blocks/{}/mlp/fc1", UP),
        **layer("blocks/{}/mlp/fc2", DOWN),
        **norm("norm", "norm"),
        **layer("head", "logits"),
    },
    ones={"cls_token": (2, 0), "pos_embed": (1, 0)},
)
TORCHVISION = Layout(
    {
        **layer("conv_proj", "patches"),
        "class_token": ("token",),
        "encoder/pos_embedding": ("positions",),
        **norm(f"{BLOCK}/ln_1", "blocks/{}/norm_1"),
        f"{BLOCK}/self_attention/in_proj_weight": tuple(f"{path}/w" for path in QKV),
        f"{BLOCK}/self_attention/in_proj_bias": tuple(f"{path}/b" for path in QKV),
        **layer(f"{BLOCK}/self_attention/out_proj", f"{ATTENTION}/out"),
        **norm(f"{BLOCK}/ln_2", "blocks/{}/norm_2"),
        **layer(f"{BLOCK}/mlp/0", UP),
        **layer(f"{BLOCK}/mlp/3", DOWN),
        **norm("encoder/ln", "norm"),
        **layer("heads/head", "logits"),
    },
    ones={"class_token": (2, 0), "encoder/pos_embedding": (1, 0)},
    needs="token",
)
# The settings of `config.json` that a `ViT` implements; missing settings have the defaults of `transformers`.
COMPUTED: Mapping[str, tuple[Any, ...]] = {"model_type": ("vit",), "hidden_act": ("gelu",), "qkv_bias": (True,)}


@gin.configurable
def vit_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a ViT of `transformers`, `timm` or `torchvision`.

    `path` is a folder that `save_pretrained` of `transformers` wrote, or a file of a state dict of `timm` or
    `torchvision`, `.pth` or `.safetensors`. `take` and `rename` use the names in a `ViTClassifier`:
    `net/patches/w`, `net/logits/w`.
    """
    return StartFrom(lambda: _opened(path_of(path)), path, take, rename)


class ViTWeights(StateDict):
    """The arrays of a ViT, for a network that computes with the settings `wanted`."""

    def __init__(self, tensors: Weights, layout: Layout, wanted: Mapping[str, Any]):
        super().__init__(tensors, layout, ViT, "`num_layers`, `pool` and `registers` of `ViTClassifier`")
        self._wanted = wanted

    def refusal(self, task: tf.Module) -> str | None:
        for net in (module for module in task.submodules if isinstance(module, ViT)):
            found = _settings(net)
            if wrong := [
                f"`{name} = {x!r}`, not {found[name]!r}" for name, x in self._wanted.items() if x != found[name]
            ]:
                return f"the ViT in {self.place} needs a `ViTClassifier` with {', '.join(wrong)}: bind these."
        return super().refusal(task)


def _settings(net: ViT) -> dict[str, Any]:
    return {"num_heads": net.blocks[0].attention.num_heads, "epsilon": net.norm.epsilon, "pool": net.pool}


def _opened(path: Path) -> ViTWeights:
    if not path.is_dir():
        file = open_state_dict(path)
        return ViTWeights(file, layout_of(file, {"timm": TIMM, "torchvision": TORCHVISION}, ViT), {})
    config = read_config(path, COMPUTED, "ViTClassifier")
    heads, epsilon = number(config, path, "num_attention_heads", 12), number(config, path, "layer_norm_eps", 1e-12)
    tensors = open_tensors(path)
    layout = layout_of(tensors, {"ViTForImageClassification": TRANSFORMERS, "ViTModel": WITHOUT_LOGITS}, ViT)
    return ViTWeights(tensors, layout, {"num_heads": heads, "epsilon": epsilon, "pool": "token"})


def save_vit(net: ViT, folder: Path) -> str:
    """Writes `net` as a folder for `from_pretrained` of a `ViTForImageClassification`. Returns the model's type."""
    from safetensors.numpy import save

    tensors = save(arrays(net, TRANSFORMERS, "transformers"), metadata={"format": "pt"})
    text = json.dumps(_described(net), indent=2)
    folder.mkdir(parents=True)
    write_whole({folder / FILE: tensors, folder / "config.json": text.encode()}, then="repeat the command")
    return "vit"


def _described(net: ViT) -> dict[str, Any]:
    """Returns the contents of `config.json`."""
    height, width, channels = net.image_shape
    size, classes = net.logits.w.shape
    labels = [f"LABEL_{i}" for i in range(classes)]
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": height if height == width else [height, width],
        "patch_size": net.patches.w.shape[0],
        "num_channels": channels,
        "hidden_size": size,
        "intermediate_size": 4 * size,
        "num_hidden_layers": len(net.blocks),
        "num_attention_heads": net.blocks[0].attention.num_heads,
        "hidden_act": "gelu",
        "layer_norm_eps": net.norm.epsilon,
        "qkv_bias": True,
        **{f"{name}_prob": net.dropout.rate for name in ("hidden_dropout", "attention_probs_dropout")},
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
        "torch_dtype": "float32",
    }
