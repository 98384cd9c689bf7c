"""A minimal Keras script: network, batch and optimizer of `configs/digits_mlp.gin`, up to its first finished step.

Run as `python first_step.py digits.npz fit|train_on_batch` with a Python that has Keras but not this project. It prints
a line when the step is done.
"""

import sys
from typing import Any

import numpy as np

import keras  # type: ignore[import-untyped]  # isort: skip


class Finished(keras.callbacks.Callback):
    """Prints a line after the first batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            print("the first step is finished", flush=True)


arrays = np.load(sys.argv[1])
mine = ~arrays["is_test"]
images = arrays["images"][mine].reshape(-1, 64).astype("float32") / 16.0
labels = arrays["labels"][mine].astype("int32")
rate = keras.optimizers.schedules.CosineDecay(0.0, 2900, warmup_target=3e-3, warmup_steps=100)
model = keras.Sequential([keras.Input([64]), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
model.compile(
    optimizer=keras.optimizers.AdamW(rate),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
if sys.argv[2] == "fit":
    model.fit(images, labels, batch_size=32, epochs=1, verbose=0, callbacks=[Finished()])
else:
    model.train_on_batch(images[:32], labels[:32])
    print("the first step is finished", flush=True)
