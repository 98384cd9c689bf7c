"""Loads Llama (Touvron et al., 2023), Mistral and Qwen, as saved by Hugging Face's `transformers`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from core.data.files import path_of
from core.errors import CheckpointError, shown
from core.layers import RotaryScaling
from core.weights import StartFrom
from core.weights.pretrained_folder import number, read_config
from models.language.hugging_face import Layout, Pretrained

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
    config = read_config(folder, COMPUTED, "LanguageModel")
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
        **_rotations(config, folder),
        "window": config.get("sliding_window") if kind == "mistral" else None,
        "norm": "rms",
        "epsilon": number(config, folder, "rms_norm_eps", 1e-6),
        "qk_norm": kind == "qwen3",
        "feed_forward": "swiglu",
        "experts": None,
        "bias": False,
        "qkv_bias": kind == "qwen2",
        "tied": bool(config.get("tie_word_embeddings", False)),
        "logit_cap": None,
        "score_cap": None,
    }
    return Pretrained(folder, LAYOUT, size("num_hidden_layers"), wanted)


def _rotations(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the settings of rotary positions, which later versions of `transformers` keep in a table."""
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = table.get("rope_type", table.get("type", "default")) if isinstance(table, dict) else shown(table)
    if kind not in ("default", "llama3"):
        raise CheckpointError(
            f"`{folder / 'config.json'}` scales its rotary positions by {shown(kind)}, which no `LanguageModel` "
            "computes: take a model without it, such as Llama 3 or Qwen."
        )
    base = float(number({**config, **table}, folder, "rope_theta", 10000.0))
    return {"rotary_base": base, "rotary_scaling": _scaling(table, folder) if kind == "llama3" else None}


def _scaling(table: Mapping[str, Any], folder: Path) -> RotaryScaling:
    numbers = {ours: number(table, folder, theirs) for ours, theirs in _SCALES.items()}
    try:
        return RotaryScaling(**numbers)
    except ValueError as error:
        raise CheckpointError(
            f"`{folder / 'config.json'}` has a `rope_scaling` that can't be computed: {error}"
        ) from None


_SCALES = {  # of `RotaryScaling`, in `config.json`
    "factor": "factor",
    "context": "original_max_position_embeddings",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
}


def scaling_settings(scaling: RotaryScaling) -> dict[str, Any]:
    """Returns a scaling as `config.json` has it."""
    return {"rope_type": "llama3", **{theirs: getattr(scaling, ours) for ours, theirs in _SCALES.items()}}
