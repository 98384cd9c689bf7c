"""Loads Llama (Touvron et al., 2023), Mistral and Qwen, as saved by Hugging Face's `transformers`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from core.data.files import path_of
from core.errors import CheckpointError, shown
from core.weights import StartFrom
from models.language.hugging_face import Layout, Pretrained, number, read_config

COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral", "qwen2", "qwen3"),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
}
LAYOUT = Layout(
    prefix="model/",
    layer="layers/{}/",
    whole={"embed_tokens/weight": ("tokens/w",), "norm/weight": ("norm/scale",)},
    block={
        "input_layernorm/weight": ("norm_1/scale",),
        "self_attn/q_proj/weight": ("attention/query/w",),
        "self_attn/k_proj/weight": ("attention/key/w",),
        "self_attn/v_proj/weight": ("attention/value/w",),
        "self_attn/q_proj/bias": ("attention/query/b",),
        "self_attn/k_proj/bias": ("attention/key/b",),
        "self_attn/v_proj/bias": ("attention/value/b",),
        "self_attn/q_norm/weight": ("attention/query_norm/scale",),
        "self_attn/k_norm/weight": ("attention/key_norm/scale",),
        "self_attn/o_proj/weight": ("attention/out/w",),
        "post_attention_layernorm/weight": ("norm_2/scale",),
        "mlp/gate_proj/weight": ("feed_forward/gate/w",),
        "mlp/up_proj/weight": ("feed_forward/up/w",),
        "mlp/down_proj/weight": ("feed_forward/down/w",),
    },
    head={"lm_head/weight": ("logits/w",)},
    transposed=True,
)


@gin.configurable
def llama_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a Llama, Mistral, Qwen2 or Qwen3 in the folder `path`, written by `save_pretrained`.

    `take` and `rename` use the names in a `LanguageModel`: `net/tokens/w`, `net/blocks/0/attention/query/w`.
    """
    return StartFrom(lambda: _opened(path_of(path)), path, take, rename)


def _opened(folder: Path) -> Pretrained:
    config = read_config(folder, COMPUTED)
    kind = config.get("model_type", "llama")

    def size(name: str, default: int | None = None) -> int:
        return int(number(config, folder, name, default))

    heads = size("num_attention_heads")
    wanted = {
        "vocabulary": size("vocab_size"),
        "size": size("hidden_size"),
        "num_heads": heads,
        "num_kv_heads": size("num_key_value_heads", heads),
        "head_size": size("head_dim", size("hidden_size") // heads),
        "hidden": size("intermediate_size"),
        "positions": "rotary",
        "rotary_base": _rotary_base(config, folder),
        "window": config.get("sliding_window") if kind == "mistral" else None,
        "norm": "rms",
        "epsilon": number(config, folder, "rms_norm_eps", 1e-6),
        "qk_norm": kind == "qwen3",
        "feed_forward": "swiglu",
        "bias": False,
        "qkv_bias": kind == "qwen2",
        "tied": bool(config.get("tie_word_embeddings", False)),
        "logit_cap": None,
    }
    return Pretrained(folder, LAYOUT, size("num_hidden_layers"), wanted)


def _rotary_base(config: Mapping[str, Any], folder: Path) -> float:
    """Returns the base of rotary positions, which later versions of `transformers` keep in a table."""
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = table.get("rope_type", table.get("type", "default")) if isinstance(table, dict) else shown(table)
    if kind != "default":
        raise CheckpointError(
            f"`{folder / 'config.json'}` scales its rotary positions by {shown(kind)}, which no `LanguageModel` "
            "computes: take a model without it, such as Llama 2, Llama 3 or Qwen."
        )
    return float(number({**config, **table}, folder, "rope_theta", 10000.0))
