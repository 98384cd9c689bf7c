"""A minimal script of Keras, which says when its first step was done."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import json
import sys
import time

import keras
import numpy as np

FOLDER, VARIANT = sys.argv[1:3]


class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            print(json.dumps({"finished": time.perf_counter()}), flush=True)
            self.model.stop_training = True


data = np.load(f"{FOLDER}/data.npz")
model = keras.Sequential([keras.Input([64]), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
model.compile(
    optimizer=keras.optimizers.AdamW(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    **({"jit_compile": False} if VARIANT == "plain" else {}),
)
model.fit(data["image"], data["label"], batch_size=32, verbose=0, callbacks=[FirstStep()])
