"""BERT as Hugging Face's `transformers` saves it (`BertForMaskedLM`): loads a folder into a `Bert`, and writes one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from core.data.files import path_of
from core.weights import StartFrom
from core.weights.pretrained_folder import number, read_config
from models.language.bert import Bert
from models.language.hugging_face import Layout, Pretrained, write_folder

COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
_NORM = "LayerNorm/"
LAYOUT = Layout(
    prefix="bert/",
    layer="encoder/layer/{}/",
    whole={
        "embeddings/word_embeddings/weight": ("tokens/w",),
        "embeddings/position_embeddings/weight": ("positions/w",),
        "embeddings/token_type_embeddings/weight": ("types/w",),
        f"embeddings/{_NORM}weight": ("norm/scale",),
        f"embeddings/{_NORM}bias": ("norm/offset",),
    },
    block={
        "attention/self/query/weight": ("attention/query/w",),
        "attention/self/query/bias": ("attention/query/b",),
        "attention/self/key/weight": ("attention/key/w",),
        "attention/self/key/bias": ("attention/key/b",),
        "attention/self/value/weight": ("attention/value/w",),
        "attention/self/value/bias": ("attention/value/b",),
        "attention/output/dense/weight": ("attention/out/w",),
        "attention/output/dense/bias": ("attention/out/b",),
        f"attention/output/{_NORM}weight": ("norm_1/scale",),
        f"attention/output/{_NORM}bias": ("norm_1/offset",),
        "intermediate/dense/weight": ("up/w",),
        "intermediate/dense/bias": ("up/b",),
        "output/dense/weight": ("down/w",),
        "output/dense/bias": ("down/b",),
        f"output/{_NORM}weight": ("norm_2/scale",),
        f"output/{_NORM}bias": ("norm_2/offset",),
    },
    head={
        "cls/predictions/transform/dense/weight": ("transform/w",),
        "cls/predictions/transform/dense/bias": ("transform/b",),
        f"cls/predictions/transform/{_NORM}weight": ("transform_norm/scale",),
        f"cls/predictions/transform/{_NORM}bias": ("transform_norm/offset",),
        "cls/predictions/bias": ("b",),
    },
    transposed=True,
    older={f"{_NORM}weight": f"{_NORM}gamma", f"{_NORM}bias": f"{_NORM}beta"},
)


@gin.configurable
def bert_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a BERT in the folder `path`, written by `save_pretrained` of `transformers`.

    `take` and `rename` use the names in a `MaskedLanguageModel`: `net/tokens/w`, `net/blocks/0/attention/query/w`.
    """
    return StartFrom(lambda: _opened(path_of(path)), path, take, rename)


def _opened(folder: Path) -> Pretrained:
    config = read_config(folder, COMPUTED, "MaskedLanguageModel")
    wanted = {
        ours: number(config, folder, theirs, default)
        for ours, theirs, default in (
            ("vocabulary", "vocab_size", 30522),
            ("size", "hidden_size", 768),
            ("num_heads", "num_attention_heads", 12),
            ("hidden", "intermediate_size", 3072),
            ("types", "type_vocab_size", 2),
            ("epsilon", "layer_norm_eps", 1e-12),
        )
    }
    layers = int(number(config, folder, "num_hidden_layers", 12))
    return Pretrained(folder, LAYOUT, layers, wanted, network=Bert, task="MaskedLanguageModel")


def save_bert(net: Bert, folder: Path) -> str:
    """Writes `config.json` and `model.safetensors` into `folder`, for `BertForMaskedLM.from_pretrained`."""
    found = net.config.settings()
    described = {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": found["vocabulary"],
        "max_position_embeddings": found["context"],
        "hidden_size": found["size"],
        "intermediate_size": found["hidden"],
        "num_hidden_layers": found["num_layers"],
        "num_attention_heads": found["num_heads"],
        "type_vocab_size": found["types"],
        "hidden_act": "gelu",
        "layer_norm_eps": found["epsilon"],
        "hidden_dropout_prob": found["dropout"],
        "attention_probs_dropout_prob": found["dropout"],
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    write_folder(net, LAYOUT, described, folder)
    return "bert"
