"""The losses of the works in JAX: functions of the weights by name and a batch."""

import jax
import jax.numpy as jnp
import optax


def images(levels):
    return levels.astype(jnp.float32) * (1.0 / 255.0)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def mlp(w, batch):
    hidden = jax.nn.relu(images(batch["image"]) @ w["layers/0/w"] + w["layers/0/b"])
    return cross_entropy(hidden @ w["layers/1/w"] + w["layers/1/b"], batch["label"])


def softmax(w, batch):
    return cross_entropy(images(batch["image"]) @ w["w"] + w["b"], batch["label"])


def conv(w, batch):
    x = images(batch["image"])
    for i in range(5):
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, w[f"convolutions/{i}/w"], (1, 1), "SAME", dimension_numbers=layout)
        x = jax.nn.relu(x + w[f"convolutions/{i}/b"])
        if i in (0, 2):  # an elementwise maximum: the gradient of `reduce_window` is slow on CPUs
            rows, height, width, channels = x.shape
            x = x.reshape(rows, height // 2, 2, width // 2, 2, channels).max((2, 4))
    return cross_entropy(x.mean((1, 2)) @ w["logits/w"] + w["logits/b"], batch["label"])


def transformer(w, batch, *, blocks=4, heads=4):
    tokens, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    rows, time = tokens.shape
    size = w["tokens/w"].shape[-1]

    def linear(x, name):
        return x @ w[f"{name}/w"] + w[f"{name}/b"]

    def norm(x, name):
        x = jax.nn.standardize(x, epsilon=1e-5)
        return x * w[f"{name}/scale"] + w[f"{name}/offset"]

    x = w["tokens/w"][tokens] + w["positions/w"][:time]
    for i in range(blocks):
        qkv = linear(norm(x, f"blocks/{i}/norm_1"), f"blocks/{i}/attention/qkv")
        q, k, v = (part.reshape(rows, time, heads, size // heads) for part in jnp.split(qkv, 3, axis=-1))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x += linear(y.reshape(rows, time, size), f"blocks/{i}/attention/out")
        y = jax.nn.gelu(linear(norm(x, f"blocks/{i}/norm_2"), f"blocks/{i}/feed_forward/up"))
        x += linear(y, f"blocks/{i}/feed_forward/down")
    return cross_entropy(norm(x, "norm") @ w["tokens/w"].T, targets)


LOSSES = {"mlp": mlp, "softmax": softmax, "conv": conv, "transformer": transformer}
