"""Keras 3 on TensorFlow: `compile` and `fit`, with a data set whose every element is one vectorised gather.

One epoch is one timed segment. Its mean loss is Keras's own.
"""

import json
import math
import os
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from benchmarks.peers.programs import by_hand
from benchmarks.peers.programs.keras_gans import FIGURES, GANS
from benchmarks.peers.programs.keras_nets import NETS
from benchmarks.peers.programs.work import SEGMENT_SECONDS, Work

DESCENT = {"resnet": 1e-4, "unet": 0.1}  # the rates of works without Adam


class Epochs(keras.callbacks.Callback):
    """Records when each epoch ends, and stops in time."""

    def __init__(self, seconds=math.inf):
        super().__init__()
        self.seconds, self.ends = seconds, []

    def on_train_begin(self, logs=None):
        self.ends = [time.perf_counter()]

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append(time.perf_counter())
        self.model.stop_training = self.ends[-1] - self.ends[0] >= self.seconds and len(self.ends) > 2


def settings_of(variant, work):
    """Returns the arguments of `compile`."""
    return {
        "default": {},
        "jit": {"jit_compile": True},
        "chunks": {"steps_per_execution": work.chunk},
        "jit-chunks": {"steps_per_execution": work.chunk, "jit_compile": True},
    }[variant]


def batches(work):
    """Returns an endless data set for `fit`: inputs and targets, or all features for a GAN."""

    def pair(batch):
        if work.name == "transformer":
            return batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        if work.name == "unet":
            return (batch["noisy"], batch["time"]), batch["noise"]
        return tuple(batch.values()) if work.latents is None else (batch["image"], batch["latent"])

    def decoded(image, latent):
        return tf.cast(image, tf.float32) * (1.0 / 255.0), latent

    read = by_hand.batches(work, work.order).map(pair)
    return (read.map(decoded) if work.name == "dcgan" else read).prefetch(tf.data.AUTOTUNE)


def compiled(variant, work):
    """Returns the compiled model."""
    if work.name in GANS:
        model = GANS[work.name](work)
        model.compile(**settings_of(variant, work))
        return model
    model = NETS[work.name](work.weights)
    model.compile(
        optimizer=optimizer(work.name),
        loss="mse" if work.name == "unet" else keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **settings_of(variant, work),
    )
    return model


def optimizer(name):
    if name in DESCENT:
        return keras.optimizers.SGD(DESCENT[name], momentum=0.9)
    return keras.optimizers.Adam(1e-3, epsilon=1e-9)  # which is added before the correction: 1e-8 changes the loss


def main():
    folder, variant, seconds = sys.argv[1:]
    work = Work(Path(folder))
    model = compiled(variant, work)
    data, epochs = batches(work), Epochs()
    compared = model.fit(
        data, steps_per_epoch=work.log, epochs=work.check // work.log, verbose=0, shuffle=False, callbacks=[epochs]
    )
    step = (epochs.ends[-1] - epochs.ends[-2]) / work.log
    per_epoch = max(1, math.ceil(SEGMENT_SECONDS / step / work.chunk)) * work.chunk
    timed = Epochs(float(seconds))
    model.fit(data, steps_per_epoch=per_epoch, epochs=10**6, verbose=0, shuffle=False, callbacks=[timed])
    rates = [per_epoch / (end - began) for began, end in zip(timed.ends[1:-1], timed.ends[2:], strict=True)]
    print(json.dumps({"loss": compared.history[FIGURES.get(work.name, "loss")][-1], "rates": rates}), flush=True)


if __name__ == "__main__":
    main()
