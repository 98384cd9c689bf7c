"""Writes a transformer as a folder that `from_pretrained` of Hugging Face's `transformers` reads."""

from pathlib import Path
from typing import Any

from core.errors import ConfigurationError
from models.language import gpt2, llama
from models.language.config import TransformerConfig
from models.language.hugging_face import write_folder
from models.language.llama import scaling_settings
from models.language.transformer import Transformer

# Settings of each family; `...` stands for any value.
_GPT2: dict[str, Any] = {
    "positions": "learned",
    "rotary_scaling": None,
    "norm": "layer",
    "feed_forward": "gelu",
    "bias": True,
    "tied": True,
}
_PLAIN = {"experts": None, "window": None, "qk_norm": False, "logit_cap": None, "score_cap": None, "base_width": None}
_GPT2 |= {**_PLAIN, "qkv_bias": True}
_LLAMA: dict[str, Any] = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "tied": ...}
_LLAMA |= {**_PLAIN, "qkv_bias": False}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "window": ...},
    "qwen2": {**_LLAMA, "qkv_bias": True},
    "qwen3": {**_LLAMA, "qk_norm": True},
}
CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def save_pretrained(net: Transformer, folder: Path) -> str:
    """Writes `config.json` and `model.safetensors` into `folder`. Returns the family, such as "llama"."""
    family = family_of(net.config)
    layout = gpt2.LAYOUT if family == "gpt2" else llama.LAYOUT
    write_folder(net, layout, _described(net.config, family), folder)
    return family


def family_of(config: TransformerConfig) -> str:
    """Returns the first family of `transformers` that computes this network. Raises a `ConfigurationError` if none."""
    found = config.settings()
    wrong = {
        family: [name for name, value in wanted.items() if value is not ... and value != found[name]]
        for family, wanted in FAMILIES.items()
    }
    if found["num_kv_heads"] != config.num_heads:
        wrong["gpt2"].append("num_kv_heads")
    if found["head_size"] * config.num_heads != config.size:
        for family in ("gpt2", "qwen2"):
            wrong[family].append("head_size")
    nearest = min(wrong, key=lambda family: len(wrong[family]))
    if wrong[nearest]:
        differing = ", ".join(f"`{name} = {found[name]!r}`" for name in wrong[nearest])
        raise ConfigurationError(
            f"no model of `transformers` that Tapeloop writes computes this network. The nearest is {nearest}, which "
            f"has no {differing}: train with other settings, or read the variables with `trainers.load`."
        )
    return nearest


def _described(config: TransformerConfig, family: str) -> dict[str, Any]:
    """Returns the contents of `config.json`."""
    found = config.settings()
    common = {
        "model_type": family,
        "architectures": [CLASSES[family]],
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": config.tied,
        "torch_dtype": "float32",
    }
    if family == "gpt2":
        return common | {
            "n_positions": config.context,
            "n_embd": config.size,
            "n_layer": config.num_layers,
            "n_head": config.num_heads,
            "n_inner": found["hidden"],
            "activation_function": "gelu_new",
            "layer_norm_epsilon": config.epsilon,
            **{f"{name}_pdrop": config.dropout for name in ("attn", "embd", "resid")},
        }
    return common | {
        "max_position_embeddings": config.context,
        "hidden_size": config.size,
        "intermediate_size": found["hidden"],
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": found["num_kv_heads"],
        "head_dim": found["head_size"],
        "hidden_act": "silu",
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.rotary_base,
        **({"rope_scaling": scaling_settings(config.rotary_scaling)} if config.rotary_scaling else {}),
        "attention_bias": False,
        "attention_dropout": config.dropout,
        **({"sliding_window": config.window} if family == "mistral" else {}),
    }
