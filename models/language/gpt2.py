"""Loads GPT-2 (Radford et al., 2019), as saved by Hugging Face's `transformers`, into a `LanguageModel`."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data.files import open_file, path_of
from core.errors import CheckpointError, DataError, shown
from core.layers import LayerNorm
from core.weights import ArrayType, StartFrom, Weights, open_safetensors
from models.language.transformer import EPSILON, Transformer

# The settings of `config.json` that a `Transformer` implements; missing settings have GPT-2's defaults.
COMPUTES: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
FILE = "model.safetensors"
MOST_BYTES = 1 << 20  # of `config.json`

# Our names, by those of `transformers` after its `transformer.`; several names mean parts of one matrix there.
PARTS = {
    "wte/weight": ("tokens/w",),
    "wpe/weight": ("positions/w",),
    "ln_f/weight": ("norm/scale",),
    "ln_f/bias": ("norm/offset",),
    "ln_1/weight": ("norm_1/scale",),
    "ln_1/bias": ("norm_1/offset",),
    "attn/c_attn/weight": ("attention/query/w", "attention/key/w", "attention/value/w"),
    "attn/c_attn/bias": ("attention/query/b", "attention/key/b", "attention/value/b"),
    "attn/c_proj/weight": ("attention/out/w",),
    "attn/c_proj/bias": ("attention/out/b",),
    "ln_2/weight": ("norm_2/scale",),
    "ln_2/bias": ("norm_2/offset",),
    "mlp/c_fc/weight": ("feed_forward/up/w",),
    "mlp/c_fc/bias": ("feed_forward/up/b",),
    "mlp/c_proj/weight": ("feed_forward/down/w",),
    "mlp/c_proj/bias": ("feed_forward/down/b",),
}


@gin.configurable
def gpt2_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a GPT-2 in the folder `path`, written by `save_pretrained` of `transformers`.

    `take` and `rename` use the names in a `LanguageModel`: `net/tokens/w`, `net/blocks/0/attention/query/w`.
    """
    return StartFrom(lambda: Gpt2Weights(path_of(path)), path, take, rename)


class Gpt2Weights(Weights):
    """The tensors of a GPT-2, under their names in a `LanguageModel`."""

    def __init__(self, folder: Path):
        self._folder, self._config = folder, _read_config(folder)
        if (folder / "model.safetensors.index.json").is_file() and not (folder / FILE).exists():
            raise CheckpointError(
                f"`{folder}` holds a GPT-2 in several files: load it in `transformers`, and save it as one by "
                "`save_pretrained(folder, max_shard_size='100GB')`."
            )
        self._tensors = open_safetensors(folder / FILE)
        self._places: dict[str, tuple[str, int, int]] = {}  # the tensor, the index of the part, the number of parts
        types = {}
        for name, kind in self._tensors.types.items():
            layer, rest = _taken_apart(name)
            ours = PARTS.get(rest, ())  # others are masks, which earlier versions saved, and a copy of the table
            for i, path in enumerate(ours):
                path = f"net/{layer}{path}"
                self._places[path] = (name, i, len(ours))
                types[path] = ArrayType(kind.dtype, self._cut(name, kind.shape, len(ours)))
        super().__init__(f"`{folder}`", types, {**self._tensors.record, "path": str(folder)})

    def _cut(self, name: str, shape: tuple[int, ...], parts: int) -> tuple[int, ...]:
        """Returns the shape of each part if the last axis of `shape` is split into `parts` equal parts."""
        if parts == 1:
            return shape
        if not shape or shape[-1] % parts:
            raise CheckpointError(
                f"`{name}` of `{self._folder}` has the shape {list(shape)}, but a GPT-2 keeps {parts} equal parts in "
                "it: save it by `save_pretrained` again."
            )
        return (*shape[:-1], shape[-1] // parts)

    def read(self, name: str) -> npt.NDArray[Any]:
        tensor, part, parts = self._places[name]
        return np.split(self._tensors.read(tensor), parts, axis=-1)[part]

    def refusal(self, task: tf.Module) -> str | None:
        heads = self._config.get("n_head")
        wanted = {"num_heads": heads, "num_kv_heads": heads, "positions": "learned", "norm": "layer"}
        wanted |= {"feed_forward": "gelu", "bias": True, "window": None}
        for net in (module for module in task.submodules if isinstance(module, Transformer)):
            found = _shape_of(net)
            wrong = [f"`{name} = {wanted[name]!r}`, not {x!r}" for name, x in found.items() if x != wanted[name]]
            if wrong:
                return f"the GPT-2 in `{self._folder}` needs a `LanguageModel` with {', '.join(wrong)}: bind these."
        return None


def _shape_of(net: Transformer) -> dict[str, Any]:
    """Returns those settings of `net` that can't be told from variable shapes, such as `{"norm": "layer"}`."""
    block = net.blocks[0]
    return {
        "num_heads": block.attention.num_heads,
        "num_kv_heads": block.attention.num_kv_heads,
        "positions": "alibi" if block.attention.alibi else "rotary" if net.positions is None else "learned",
        "window": block.attention.window,
        "norm": "layer" if isinstance(block.norm_1, LayerNorm) else "rms",
        "feed_forward": "gelu" if block.feed_forward.gate is None else "swiglu",
        "bias": block.feed_forward.up.b is not None,
    }


def _taken_apart(name: str) -> tuple[str, str]:
    """Splits a GPT-2 name: `h/0/attn/c_attn/weight` gives `("blocks/0/", "attn/c_attn/weight")`."""
    found = re.fullmatch(r"(?:transformer/)?(?:h/(\d+)/)?(.*)", name)
    assert found
    return (f"blocks/{found[1]}/" if found[1] else ""), found[2]


def _read_config(folder: Path) -> dict[str, Any]:
    """Returns the contents of `config.json`, after checking that a `Transformer` can compute this GPT-2."""
    path = folder / "config.json"
    advice = "Give the folder in which `save_pretrained` has written a GPT-2: `config.json` and `model.safetensors`"
    try:
        with open_file(path) as file:
            config = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't JSON"
        raise CheckpointError(f"`{path}` can't be read: {reason}. {advice}.") from error
    if not isinstance(config, dict) or type(config.get("n_head")) is not int:
        raise CheckpointError(f"`{path}` has no number of heads, `n_head`. {advice}.")
    for name, known in COMPUTES.items():
        if config.get(name, known[0]) not in known:
            raise CheckpointError(
                f"`{path}` has `{name}` = {shown(config[name])}, which no `LanguageModel` computes: only "
                f"{shown(known[0])} is supported."
            )
    return config
