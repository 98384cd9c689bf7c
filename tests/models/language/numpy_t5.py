"""T5 in NumPy, with float64 and the names of `transformers`."""

import math

import numpy as np


def tensors(config, random):
    """Returns random float32 tensors by name; no scale is one."""
    size, hidden, width = config["d_model"], config["d_ff"], config["num_heads"] * config["d_kv"]
    shapes = {"shared.weight": [config["vocab_size"], size]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], size]
    for stack, layers in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        buckets = [config["relative_attention_num_buckets"], config["num_heads"]]
        shapes[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = buckets
        shapes[f"{stack}.final_layer_norm.weight"] = [size]
        parts = ["SelfAttention", "DenseReluDense"]
        parts = parts if stack == "encoder" else [parts[0], "EncDecAttention", parts[1]]
        for i in range(layers):
            for j, part in enumerate(parts):
                layer = f"{stack}.block.{i}.layer.{j}."
                shapes[f"{layer}layer_norm.weight"] = [size]
                if part == "DenseReluDense":
                    ups = ["wi"] if config["feed_forward_proj"] == "relu" else ["wi_0", "wi_1"]
                    shapes |= {f"{layer}{part}.{up}.weight": [hidden, size] for up in ups}
                    shapes[f"{layer}{part}.wo.weight"] = [size, hidden]
                else:
                    shapes |= {f"{layer}{part}.{name}.weight": [width, size] for name in "qkv"}
                    shapes[f"{layer}{part}.o.weight"] = [size, width]
    return {name: np.float32(0.3 * random.randn(*x) + ("norm" in name)) for name, x in shapes.items()}


def bucket(distance, buckets, farthest, causal):
    """Returns the bucket of one distance, key minus query."""
    if not causal:
        half = buckets // 2
        return (half if distance > 0 else 0) + bucket(-abs(distance), half, farthest, True)
    far, exact = max(-distance, 0), buckets // 2
    if far < exact:
        return far
    share = math.log(far / exact) / math.log(farthest / exact)
    return min(exact + math.floor(share * (buckets - exact) + 1e-6), buckets - 1)


def logits(config, tensors, source, inputs, seen):
    """Returns logits [rows, time, vocabulary]; `seen` [rows, source time] is false for padding."""
    get = {name: np.float64(x) for name, x in tensors.items()}

    def linear(x, name):
        return x @ get[f"{name}.weight"].T

    def normed(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["layer_norm_epsilon"]) * get[f"{name}.weight"]

    def attention(x, memory, name, bias, mask):
        heads = config["num_heads"]
        q, k, v = (
            linear(y, f"{name}.{part}").reshape(*y.shape[:2], heads, -1)
            for y, part in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = np.where(mask, np.einsum("bqhd,bkhd->bhqk", q, k) + bias, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
        return linear(y.reshape(*x.shape[:2], -1), f"{name}.o")

    def feed_forward(x, name):
        if config["feed_forward_proj"] == "relu":
            return linear(np.maximum(linear(x, f"{name}.wi"), 0.0), f"{name}.wo")
        gate = linear(x, f"{name}.wi_0")
        gate = 0.5 * gate * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate**3)))
        return linear(gate * linear(x, f"{name}.wi_1"), f"{name}.wo")

    def bias_of(stack, time):
        table = get[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        settings = config["relative_attention_num_buckets"], config["relative_attention_max_distance"]
        rows = [[table[bucket(k - q, *settings, stack == "decoder")] for k in range(time)] for q in range(time)]
        return np.array(rows).transpose(2, 0, 1)

    x, mask = get["shared.weight"][source], seen[:, None, None]
    bias = bias_of("encoder", source.shape[1])
    for i in range(config["num_layers"]):
        layer = f"encoder.block.{i}.layer."
        y = normed(x, f"{layer}0.layer_norm")
        x = x + attention(y, y, f"{layer}0.SelfAttention", bias, mask)
        x = x + feed_forward(normed(x, f"{layer}1.layer_norm"), f"{layer}1.DenseReluDense")
    memory, time = normed(x, "encoder.final_layer_norm"), inputs.shape[1]
    x, bias = get["shared.weight"][inputs], bias_of("decoder", time)
    for i in range(config["num_decoder_layers"]):
        layer = f"decoder.block.{i}.layer."
        y = normed(x, f"{layer}0.layer_norm")
        x = x + attention(y, y, f"{layer}0.SelfAttention", bias, np.tri(time, dtype=bool))
        x = x + attention(normed(x, f"{layer}1.layer_norm"), memory, f"{layer}1.EncDecAttention", 0.0, mask)
        x = x + feed_forward(normed(x, f"{layer}2.layer_norm"), f"{layer}2.DenseReluDense")
    x = normed(x, "decoder.final_layer_norm")
    if config["tie_word_embeddings"]:
        return x * config["d_model"] ** -0.5 @ get["shared.weight"].T
    return linear(x, "lm_head")
