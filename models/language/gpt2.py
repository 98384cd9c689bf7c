"""Loads GPT-2 (Radford et al., 2019), as saved by Hugging Face's `transformers`, into a `LanguageModel`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from core.data.files import path_of
from core.weights import StartFrom
from core.weights.pretrained_folder import number, read_config
from models.language.hugging_face import Layout, Pretrained

# The settings of `config.json` that a `Transformer` implements; missing settings have GPT-2's defaults.
COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
LAYOUT = Layout(
    prefix="transformer/",
    layer="h/{}/",
    whole={
        "wte/weight": ("tokens/w",),
        "wpe/weight": ("positions/w",),
        "ln_f/weight": ("norm/scale",),
        "ln_f/bias": ("norm/offset",),
    },
    block={
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
    },
    head={},
    transposed=False,
)


@gin.configurable
def gpt2_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a GPT-2 in the folder `path`, written by `save_pretrained` of `transformers`.

    `take` and `rename` use the names in a `LanguageModel`: `net/tokens/w`, `net/blocks/0/attention/query/w`.
    """
    return StartFrom(lambda: _opened(path_of(path)), path, take, rename)


def _opened(folder: Path) -> Pretrained:
    config = read_config(folder, COMPUTED, "LanguageModel")
    heads = number(config, folder, "n_head")
    wanted = {
        "num_heads": heads,
        "num_kv_heads": heads,
        "positions": "learned",
        "window": None,
        "norm": "layer",
        "epsilon": number(config, folder, "layer_norm_epsilon", 1e-5),
        "qk_norm": False,
        "feed_forward": "gelu",
        "experts": None,
        "bias": True,
        "qkv_bias": True,
        "tied": True,
        "logit_cap": None,
        "score_cap": None,
    }
    return Pretrained(folder, LAYOUT, number(config, folder, "n_layer", 12), wanted)
