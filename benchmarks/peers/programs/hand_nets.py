"""The losses of the works in plain TensorFlow: functions of the weights by name and a batch."""

import tensorflow as tf


def images(levels):
    return tf.cast(levels, tf.float32) * (1.0 / 255.0)


def cross_entropy(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def mlp(w, batch):
    hidden = tf.nn.relu(images(batch["image"]) @ w["layers/0/w"] + w["layers/0/b"])
    return cross_entropy(hidden @ w["layers/1/w"] + w["layers/1/b"], batch["label"])


def softmax(w, batch):
    return cross_entropy(images(batch["image"]) @ w["w"] + w["b"], batch["label"])


def conv(w, batch):
    x = images(batch["image"])
    for i in range(5):
        x = tf.nn.relu(tf.nn.conv2d(x, w[f"convolutions/{i}/w"], 1, "SAME") + w[f"convolutions/{i}/b"])
        if i in (0, 2):
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return cross_entropy(tf.reduce_mean(x, [1, 2]) @ w["logits/w"] + w["logits/b"], batch["label"])


def transformer(w, batch, *, blocks=4, heads=4):
    tokens, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    rows, time = tokens.shape
    size = w["tokens/w"].shape[-1]
    hidden = tf.constant(-1e9) * (1.0 - tf.linalg.band_part(tf.ones([time, time]), -1, 0))

    def linear(x, name):
        return x @ w[f"{name}/w"] + w[f"{name}/b"]

    def norm(x, name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, w[f"{name}/offset"], w[f"{name}/scale"], 1e-5)

    x = tf.reshape(tf.gather(w["tokens/w"], tokens) + w["positions/w"][:time], [rows * time, size])
    for i in range(blocks):
        qkv = linear(norm(x, f"blocks/{i}/norm_1"), f"blocks/{i}/attention/qkv")
        qkv = tf.transpose(tf.reshape(qkv, [rows, time, 3, heads, size // heads]), [2, 0, 3, 1, 4])
        scores = tf.matmul(qkv[0] * (size // heads) ** -0.5, qkv[1], transpose_b=True) + hidden
        y = tf.transpose(tf.nn.softmax(scores) @ qkv[2], [0, 2, 1, 3])
        x += linear(tf.reshape(y, [rows * time, size]), f"blocks/{i}/attention/out")
        y = tf.nn.gelu(linear(norm(x, f"blocks/{i}/norm_2"), f"blocks/{i}/feed_forward/up"), approximate=True)
        x += linear(y, f"blocks/{i}/feed_forward/down")
    logits = tf.matmul(norm(x, "norm"), w["tokens/w"], transpose_b=True)
    return cross_entropy(logits, tf.reshape(targets, [-1]))


LOSSES = {"mlp": mlp, "softmax": softmax, "conv": conv, "transformer": transformer}
