"""Llama, Mistral, Qwen2 and Qwen3 in NumPy, with float64 and the names of `transformers`."""

import numpy as np


def tensors(config, random):
    """Returns random float32 tensors by name; no scale is one and no bias zero."""
    size, hidden, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    width = config.get("head_dim", size // heads)
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], size], "model.norm.weight": [size]}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = [config["vocab_size"], size]
    for i in range(config["num_hidden_layers"]):
        block = f"model.layers.{i}."
        shapes |= {f"{block}{name}.weight": [size] for name in ("input_layernorm", "post_attention_layernorm")}
        for name, n in (("q", heads), ("k", config["num_key_value_heads"]), ("v", config["num_key_value_heads"])):
            shapes[f"{block}self_attn.{name}_proj.weight"] = [n * width, size]
            if config["model_type"] == "qwen2":
                shapes[f"{block}self_attn.{name}_proj.bias"] = [n * width]
            if config["model_type"] == "qwen3" and name != "v":
                shapes[f"{block}self_attn.{name}_norm.weight"] = [width]
        shapes[f"{block}self_attn.o_proj.weight"] = [size, heads * width]
        shapes |= {f"{block}mlp.{name}_proj.weight": [hidden, size] for name in ("gate", "up")}
        shapes[f"{block}mlp.down_proj.weight"] = [size, hidden]
    return {name: np.float32(0.3 * random.randn(*x) + ("norm" in name)) for name, x in shapes.items()}


def slowed(speeds, scaling):
    """Returns the speeds of Llama 3.1, by wave lengths as in the reference implementation."""
    if not scaling:
        return speeds
    factor, length = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    found = []
    for speed in speeds:
        wave = 2 * np.pi / speed
        if wave < length / high:
            found.append(speed)
        elif wave > length / low:
            found.append(speed / factor)
        else:
            smooth = (length / wave - low) / (high - low)
            found.append((1 - smooth) * speed / factor + smooth * speed)
    return np.array(found)


def logits(config, tensors, tokens):
    """Returns logits [rows, time, vocabulary] of `tokens` [rows, time]."""
    get = {name: np.float64(x) for name, x in tensors.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim", config["hidden_size"] // heads)
    time = tokens.shape[1]
    distance = np.arange(time)[:, None] - np.arange(time)
    seen = (distance >= 0) & (distance < (config.get("sliding_window") or time))

    def normed(x, name):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + config["rms_norm_eps"]) * get[f"{name}.weight"]

    def projected(x, name):
        return x @ get[f"{name}.weight"].T + get.get(f"{name}.bias", 0.0)

    def turned(x):
        speeds = config["rope_theta"] ** (-2.0 * np.arange(width // 2) / width)
        angles = np.arange(time)[:, None, None] * slowed(speeds, config.get("rope_scaling"))
        first, second = np.split(x, 2, -1)
        return np.concatenate(
            [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], -1
        )

    x = get["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        block = f"model.layers.{i}."
        y, attention = normed(x, f"{block}input_layernorm"), f"{block}self_attn."
        q, k, v = (
            projected(y, f"{attention}{name}_proj").reshape(*tokens.shape, n, width)
            for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        if config["model_type"] == "qwen3":
            q, k = normed(q, f"{attention}q_norm"), normed(k, f"{attention}k_norm")
        k, v = (np.repeat(z, heads // kv_heads, 2) for z in (turned(k), v))
        scores = np.einsum("bqhd,bkhd->bhqk", turned(q), k) / np.sqrt(width)
        weights = np.exp(scores - scores.max(-1, keepdims=True)) * seen
        y = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
        x = x + projected(y.reshape(*tokens.shape, -1), f"{attention}o_proj")
        y = normed(x, f"{block}post_attention_layernorm")
        gate, up = projected(y, f"{block}mlp.gate_proj"), projected(y, f"{block}mlp.up_proj")
        x = x + projected(gate / (1 + np.exp(-gate)) * up, f"{block}mlp.down_proj")
    return normed(x, "model.norm") @ get.get("lm_head.weight", get["model.embed_tokens.weight"]).T
