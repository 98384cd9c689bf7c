"""A digit's class from its pixels, with Keras."""

import keras
import numpy as np

train, test = np.load("train.npz"), np.load("test.npz")

model = keras.Sequential([keras.Input([64]), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
model.compile(
    optimizer=keras.optimizers.AdamW(3e-3, weight_decay=1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    train["image"],
    train["label"],
    batch_size=32,
    epochs=44,
    verbose=0,
    callbacks=[keras.callbacks.ModelCheckpoint("keras.weights.h5", save_weights_only=True)],
)
figures = model.evaluate(test["image"], test["label"], verbose=0, return_dict=True)
print("accuracy", figures["accuracy"])
