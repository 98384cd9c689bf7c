"""BERT's masked language model in NumPy, with float64 and the names of `transformers`."""

import math

import numpy as np

erf = np.vectorize(math.erf)


def tensors(config, random):
    """Returns random float32 tensors by name; no scale is one and no bias zero."""
    size, hidden, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"cls.predictions.bias": [vocabulary]}

    def linear(name, outputs, inputs):
        shapes.update({f"{name}.weight": [outputs, inputs], f"{name}.bias": [outputs]})

    def norm(name):
        shapes.update({f"{name}.LayerNorm.weight": [size], f"{name}.LayerNorm.bias": [size]})

    for name, rows in (
        ("word", vocabulary),
        ("position", config["max_position_embeddings"]),
        ("token_type", config["type_vocab_size"]),
    ):
        shapes[f"bert.embeddings.{name}_embeddings.weight"] = [rows, size]
    norm("bert.embeddings")
    for i in range(config["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{i}."
        for name in ("query", "key", "value"):
            linear(f"{layer}attention.self.{name}", size, size)
        linear(f"{layer}attention.output.dense", size, size)
        linear(f"{layer}intermediate.dense", hidden, size)
        linear(f"{layer}output.dense", size, hidden)
        norm(f"{layer}attention.output")
        norm(f"{layer}output")
    linear("cls.predictions.transform.dense", size, size)
    norm("cls.predictions.transform")
    scales = {name: float("LayerNorm.weight" in name) for name in shapes}
    return {name: np.float32(0.3 * random.randn(*x) + scales[name]) for name, x in shapes.items()}


def logits(config, tensors, tokens, types, seen):
    """Returns logits [rows, time, vocabulary]; `seen` [rows, time] is 1, and 0 for padding."""
    get = {name: np.float64(x) for name, x in tensors.items()}
    heads, time = config["num_attention_heads"], tokens.shape[1]

    def linear(x, name):
        return x @ get[f"{name}.weight"].T + get[f"{name}.bias"]

    def normed(x, name):
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return y * get[f"{name}.LayerNorm.weight"] + get[f"{name}.LayerNorm.bias"]

    def gelu(x):
        return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))

    tables = {name: get[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = normed(tables["word"][tokens] + tables["position"][:time] + tables["token_type"][types], "bert.embeddings")
    for i in range(config["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{i}."
        q, k, v = (
            linear(x, f"{layer}attention.self.{name}").reshape(*tokens.shape, heads, -1)
            for name in ("query", "key", "value")
        )
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True)) * seen[:, None, None]
        y = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v).reshape(x.shape)
        x = normed(x + linear(y, f"{layer}attention.output.dense"), f"{layer}attention.output")
        y = linear(gelu(linear(x, f"{layer}intermediate.dense")), f"{layer}output.dense")
        x = normed(x + y, f"{layer}output")
    x = normed(gelu(linear(x, "cls.predictions.transform.dense")), "cls.predictions.transform")
    return x @ tables["word"].T + get["cls.predictions.bias"]
