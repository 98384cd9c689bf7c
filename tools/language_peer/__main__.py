"""`python -m tools.language_peer [--environment=DIR] [--only NAME ...]`: checks converted language models.

PyTorch makes and saves models with random weights in a separate environment (some three gigabytes to download, mostly
CUDA) unless `--environment` names one that has `torch` and `transformers`. Tapeloop's models load them with
`@gpt2_weights`, `@llama_weights`, `@bert_weights` or `@t5_weights`, and compute the same logits; `transformers` loads
what they write, bit for bit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.environments import prepare
from core.layers import RotaryScaling
from core.optimizers import sgd
from core.random import Rng
from core.weights import StartFrom, begin_with
from models import LanguageModel, MaskedLanguageModel, TextToText
from models.language import bert_weights, gpt2_weights, llama_weights, t5_weights
from models.language.bert_weights import save_bert
from models.language.pretrained import save_pretrained
from models.language.t5_weights import save_t5

NEAR = 1e-4  # of the largest logit


class Model(NamedTuple):
    """A model of `transformers`: its type and settings there, and the settings of Tapeloop's task."""

    kind: str
    theirs: Mapping[str, Any]
    ours: Mapping[str, Any]
    dtype: str = "float32"
    shard: str = "100GB"


_SMALL: dict[str, Any] = {"vocab_size": 500, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 100}
_SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
_LLAMA: dict[str, Any] = {"vocabulary": 500, "context": 64, "num_layers": 2, "size": 48, "hidden": 100, "num_heads": 4}
_LLAMA |= {"num_kv_heads": 2, "positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False}
_LLAMA |= {"tied": False}
_BERT: dict[str, Any] = {"vocab_size": 500, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 100}
_BERT |= {"num_attention_heads": 4, "max_position_embeddings": 64}
_ENCODER: dict[str, Any] = {
    "vocabulary": 500,
    "context": 64,
    "num_layers": 2,
    "size": 48,
    "hidden": 100,
    "num_heads": 4,
}
_T5: dict[str, Any] = {"vocab_size": 500, "d_model": 48, "d_kv": 10, "d_ff": 100, "num_layers": 3, "num_heads": 4}
_T5 |= {"num_decoder_layers": 2, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 40}
_PAIRS: dict[str, Any] = {"vocabulary": 500, "size": 48, "head_size": 10, "hidden": 100, "num_layers": 3}
_PAIRS |= {"num_heads": 4, "num_decoder_layers": 2, "buckets": 16, "farthest": 40}
_LATER: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # T5 1.1
_SCALES: dict[str, Any] = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Llama 3.2, 1 B, with two of its layers.
_LARGE: dict[str, Any] = {"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 2, "intermediate_size": 8192}
_LARGE |= {"num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
_LARGE |= {"rope_scaling": {**_SCALES, "factor": 32.0, "original_max_position_embeddings": 8192}}
MODELS = {
    "GPT-2, two layers": Model(
        "gpt2",
        {"n_layer": 2, "n_embd": 48, "n_head": 4, "n_positions": 64, "vocab_size": 500},
        {"vocabulary": 500, "context": 64, "num_layers": 2, "size": 48, "num_heads": 4},
    ),
    "GPT-2, 124 M": Model(
        "gpt2",
        {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        {"vocabulary": 50257, "context": 1024, "num_layers": 12, "size": 768, "num_heads": 12},
        shard="200MB",
    ),
    "BERT, two layers": Model(
        "bert",
        {**_BERT, "type_vocab_size": 3, "layer_norm_eps": 1e-6},
        {**_ENCODER, "types": 3, "epsilon": 1e-6, "mask_token": 0},
    ),
    "BERT, 110 M": Model(
        "bert",
        {},
        {"vocabulary": 30522, "context": 512, "num_layers": 12, "size": 768, "num_heads": 12, "mask_token": 103},
        shard="200MB",
    ),
    "T5, few layers": Model("t5", _T5, _PAIRS),
    "T5 1.1 in bfloat16, several files": Model(
        "t5", {**_T5, **_LATER}, {**_PAIRS, "feed_forward": "geglu", "tied": False}, "bfloat16", "60KB"
    ),
    "T5, 60 M": Model("t5", {}, {"vocabulary": 32128, "num_layers": 6, "size": 512, "num_heads": 8}, shard="100MB"),
    "Llama": Model("llama", _SMALL, _LLAMA),
    "Llama 3.1, scaled positions": Model(
        "llama",
        {**_SMALL, "rope_scaling": {**_SCALES, "factor": 8.0, "original_max_position_embeddings": 32}},
        {**_LLAMA, "rotary_scaling": RotaryScaling(8.0, 32)},
    ),
    "Llama in bfloat16, several files": Model("llama", _SMALL, _LLAMA, "bfloat16", "60KB"),
    "Mistral": Model("mistral", {**_SMALL, "sliding_window": 16}, {**_LLAMA, "window": 16}),
    "Qwen2": Model("qwen2", {**_SMALL, "tie_word_embeddings": True}, {**_LLAMA, "qkv_bias": True, "tied": True}),
    "Qwen3": Model("qwen3", {**_SMALL, "head_dim": 20}, {**_LLAMA, "qk_norm": True, "head_size": 20}),
    "Llama 3.2 1 B, two layers": Model(
        "llama",
        {**_LARGE, "tie_word_embeddings": True},
        {
            **_LLAMA,
            "vocabulary": 128256,
            "context": 128,
            "size": 2048,
            "hidden": 8192,
            "num_heads": 32,
            "num_kv_heads": 8,
            "rotary_base": 500000.0,
            "rotary_scaling": RotaryScaling(32.0, 8192),
            "tied": True,
        },
        shard="500MB",
    ),
}


class Family(NamedTuple):
    """Tapeloop's task for a type of model, and its two conversions."""

    task: Callable[..., Any]
    weights: Callable[[str], StartFrom]
    save: Callable[[Any, Path], str]


FAMILIES = {
    "bert": Family(MaskedLanguageModel, bert_weights, save_bert),
    "gpt2": Family(LanguageModel, gpt2_weights, save_pretrained),
    "t5": Family(TextToText, t5_weights, save_t5),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the largest difference of each model's logits; returns 1 if one exceeds the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--environment", type=Path, metavar="DIR", help="one with torch and transformers")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    flags = parser.parse_args(arguments)
    worst = 0.0
    python = flags.environment / "bin" / "python" if flags.environment else prepare("transformers")
    for name in flags.only:
        with tempfile.TemporaryDirectory() as scratch:
            folder, back = Path(scratch) / "theirs", Path(scratch) / "ours"
            model = MODELS[name]
            options = {**model.theirs, "shard": model.shard, "dtype": model.dtype}
            versions = in_transformers(python, "make", str(folder), model.kind, json.dumps(options))
            apart, size = compared(folder, back, model)
            in_transformers(python, "load", str(folder), str(back))
            files = len(list(folder.glob("*.safetensors")))
            print(
                f"{name} (files: {files}): logits up to {size:.2f} differ by at most {apart:.1e}; all come back "
                f"to the bit ({versions})",
                flush=True,
            )
            worst = max(worst, apart / size)
    return int(not worst <= NEAR)


def in_transformers(python: Path, *words: str) -> str:
    """Runs the peer's part, and returns the line that it prints."""
    command = [str(python), str(Path(__file__).with_name("in_transformers.py")), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def compared(folder: Path, back: Path, model: Model) -> tuple[float, float]:
    """Returns the largest difference from the logits in `folder`, and their largest magnitude; writes `back`."""
    family = FAMILIES.get(model.kind, Family(LanguageModel, llama_weights, save_pretrained))
    task = family.task(**model.ours, optimizer=sgd(0.1), rng=Rng.from_seed(0))
    begin_with(family.weights(str(folder)), task)
    assert family.save(task.net, back) == model.kind
    with np.load(folder / "computed.npz") as computed:
        given = {name: tf.constant(x, tf.int32) for name, x in computed.items() if name != "logits"}
        tokens, theirs = given["input_ids"], computed["logits"]
    counts = np.ones(theirs.shape[:2], bool)
    if model.kind == "bert":
        counts = given["attention_mask"].numpy() > 0
        ours = task.net(tokens, tf.where(counts, 0, -1), types=given["token_type_ids"]).numpy()
    elif model.kind == "t5":
        ours = task.net(tokens, given["decoder_input_ids"], seen=given["attention_mask"] > 0).numpy()
    else:
        ours = task.net(tokens).numpy()
    return float(abs(ours - theirs)[counts].max()), float(abs(theirs[counts]).max())


if __name__ == "__main__":
    sys.exit(main())
