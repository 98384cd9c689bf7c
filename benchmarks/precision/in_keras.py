"""Keras's program: `train_on_batch` on TensorFlow, with the policy `mixed_bfloat16` for bfloat16."""

import os
import sys
from itertools import cycle
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

from benchmarks.elsewhere import answer
from benchmarks.peers.programs.keras_nets import transformer
from benchmarks.precision.works import WORKS


def perceptron(weights, sizes):
    model = keras.Sequential([keras.Input([sizes[0]])])
    for size in sizes[1:-1]:
        model.add(layers.Dense(size, activation="relu"))
    model.add(layers.Dense(sizes[-1]))
    model.set_weights([weights[f"layers/{i}/{part}"] for i in range(len(sizes) - 1) for part in "wb"])
    return model


def main():
    name, folder, variant = sys.argv[1:]
    precision, _, compiled = variant.partition("-")
    work = WORKS[name]
    if precision == "bfloat16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    weights = dict(np.load(Path(folder) / "weights.npz"))
    model = (
        perceptron(weights, work.sizes) if work.sizes else transformer(weights, blocks=work.blocks, heads=work.heads)
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=compiled == "xla",
    )
    arrays = np.load(Path(folder) / "data.npz")
    if work.sizes:
        x, y = arrays["image"], arrays["label"]
    else:
        x, y = arrays["tokens"][:, :-1], arrays["tokens"][:, 1:]
    starts = cycle(range(0, len(x) - work.batch + 1, work.batch))

    def step():
        begin = next(starts)
        return model.train_on_batch(x[begin : begin + work.batch], y[begin : begin + work.batch])

    def run():
        for _ in range(work.steps):
            loss = step()
        float(loss)

    step()
    answer(work.steps, run)


if __name__ == "__main__":
    main()
