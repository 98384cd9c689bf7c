"""T5 as Hugging Face's `transformers` saves it (`T5ForConditionalGeneration`): loads a folder, and writes one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from core.data.files import path_of
from core.errors import CheckpointError
from core.weights import StartFrom
from core.weights.pretrained_folder import number, read_config
from models.language.hugging_face import Layout, Names, Pretrained, write_folder
from models.language.t5 import T5

COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("t5",),
    "feed_forward_proj": ("relu", "gated-gelu"),
    "is_encoder_decoder": (True,),
    "pad_token_id": (0,),
    "decoder_start_token_id": (0, None),
}
_FEED_FORWARD = {"relu": "relu", "gated-gelu": "geglu"}
_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "out"}


@gin.configurable
def t5_weights(path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}) -> StartFrom:
    """Starts a run from a T5 in the folder `path`, written by `save_pretrained` of `transformers`.

    `take` and `rename` use the names in a `TextToText`: `net/tokens/w`, `net/encoder/blocks/0/attention/query/w`.
    """
    return StartFrom(lambda: _opened(path_of(path)), path, take, rename)


def layout_of(config: Mapping[str, Any]) -> Layout:
    """Returns the names of the tensors of a `T5` with these `settings`."""
    whole: dict[str, tuple[str, ...]] = {"shared/weight": ("tokens/w",)}
    for stack, layers in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        whole[f"{stack}/block/0/layer/0/SelfAttention/relative_attention_bias/weight"] = (f"{stack}/positions/table",)
        for i in range(layers):
            for theirs, ours in _block(stack == "decoder", config["feed_forward"] == "geglu").items():
                whole[f"{stack}/block/{i}/layer/{theirs}/weight"] = tuple(f"{stack}/blocks/{i}/{x}" for x in ours)
        whole[f"{stack}/final_layer_norm/weight"] = (f"{stack}/norm/scale",)
    head = {} if config["tied"] else {"lm_head/weight": ("logits/w",)}
    # A model whose matrices were equal when it was saved has one of them in its file.
    older = {"lm_head/weight": "shared/weight"}
    return Layout(prefix="", layer="", whole=whole, block={}, head=head, transposed=True, older=older)


def _block(decodes: bool, gated: bool) -> Names:
    last = 2 if decodes else 1
    names = {"0/layer_norm": "norm_1/scale", f"{last}/layer_norm": "norm_3/scale"}
    names |= {f"0/SelfAttention/{theirs}": f"attention/{ours}/w" for theirs, ours in _ATTENTION.items()}
    if decodes:
        names["1/layer_norm"] = "norm_2/scale"
        names |= {f"1/EncDecAttention/{theirs}": f"cross/{ours}/w" for theirs, ours in _ATTENTION.items()}
    matrices = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if gated else {"wi": "up", "wo": "down"}
    names |= {f"{last}/DenseReluDense/{theirs}": f"feed_forward/{ours}/w" for theirs, ours in matrices.items()}
    return {theirs: (ours,) for theirs, ours in names.items()}


def _opened(folder: Path) -> Pretrained:
    config = read_config(folder, COMPUTED, "TextToText")
    # Later versions of `transformers` save `tie_word_embeddings = true` with each model, and whether logits are scaled.
    tied = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    if not isinstance(tied, bool):
        raise CheckpointError(
            f"`{folder / 'config.json'}` has `tie_word_embeddings` = {tied!r}, where true or false is needed: save the "
            "model by `save_pretrained` again."
        )
    layers = int(number(config, folder, "num_layers", 6))
    names = (
        ("vocabulary", "vocab_size", 32128),
        ("size", "d_model", 512),
        ("num_heads", "num_heads", 8),
        ("head_size", "d_kv", 64),
        ("hidden", "d_ff", 2048),
        ("buckets", "relative_attention_num_buckets", 32),
        ("farthest", "relative_attention_max_distance", 128),
        ("epsilon", "layer_norm_epsilon", 1e-6),
    )
    wanted = {
        **{ours: number(config, folder, theirs, default) for ours, theirs, default in names},
        "feed_forward": _FEED_FORWARD[config.get("feed_forward_proj", "relu")],
        "tied": tied,
    }
    decoder_layers = int(number(config, folder, "num_decoder_layers", layers))
    layout = layout_of({**wanted, "num_layers": layers, "num_decoder_layers": decoder_layers})
    return Pretrained(folder, layout, 0, wanted, network=T5, task="TextToText")


def save_t5(net: T5, folder: Path) -> str:
    """Writes `config.json` and `model.safetensors` into `folder`, for `T5ForConditionalGeneration.from_pretrained`."""
    found = net.config.settings()
    described = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": found["vocabulary"],
        "d_model": found["size"],
        "d_kv": found["head_size"],
        "d_ff": found["hidden"],
        "num_layers": found["num_layers"],
        "num_decoder_layers": found["num_decoder_layers"],
        "num_heads": found["num_heads"],
        "relative_attention_num_buckets": found["buckets"],
        "relative_attention_max_distance": found["farthest"],
        "dropout_rate": found["dropout"],
        "layer_norm_epsilon": found["epsilon"],
        "feed_forward_proj": {ours: theirs for theirs, ours in _FEED_FORWARD.items()}[found["feed_forward"]],
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "tie_word_embeddings": found["tied"],
        "torch_dtype": "float32",
    }
    write_folder(net, layout_of(found), described, folder)
    return "t5"
