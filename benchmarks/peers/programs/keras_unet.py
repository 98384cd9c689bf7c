"""DDPM's U-Net in Keras, with its layers."""

import math

import keras
from keras import layers, ops

from benchmarks.peers.programs.keras_vision import attention_weights

SCALES, BLOCKS, GROUPS = 4, 2, 32  # of 32x32 pixels


class Waves(layers.Layer):
    """Embeds times in sines and cosines."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def call(self, time):
        rates = ops.exp(-math.log(10_000.0) * ops.arange(self.size // 2, dtype="float32") / (self.size // 2))
        angles = 1000.0 * time[:, None] * rates
        return ops.concatenate([ops.sin(angles), ops.cos(angles)], -1)


class Net:
    """Makes layers that begin with Tapeloop's weights once all are built."""

    def __init__(self, weights):
        self.weights, self.given = weights, []

    def conv(self, name, stride=1):
        w = self.weights[f"{name}/w"]
        layer = layers.Conv2D(w.shape[-1], w.shape[0], stride, padding="same")
        self.given.append((layer, [w, self.weights[f"{name}/b"]]))
        return layer

    def dense(self, name):
        w = self.weights[f"{name}/w"]
        layer = layers.Dense(w.shape[-1])
        self.given.append((layer, [w, self.weights[f"{name}/b"]]))
        return layer

    def norm(self, name):
        layer = layers.GroupNormalization(GROUPS, epsilon=1e-6)
        self.given.append((layer, [self.weights[f"{name}/scale"], self.weights[f"{name}/offset"]]))
        return layer

    def attend(self, x, name):
        height, width, size = x.shape[1:]
        attention = layers.MultiHeadAttention(1, size)
        self.given.append((attention, attention_weights(self.weights, f"{name}/attention/", size, 1)))
        pixels = layers.Reshape([height * width, size])(self.norm(f"{name}/norm")(x))
        return layers.Add()([x, layers.Reshape([height, width, size])(attention(pixels, pixels))])

    def block(self, x, embedded, name):
        silu = keras.activations.silu
        h = self.conv(f"{name}/conv_1")(silu(self.norm(f"{name}/norm_1")(x)))
        h = layers.Add()([h, layers.Reshape([1, 1, h.shape[-1]])(self.dense(f"{name}/time")(silu(embedded)))])
        h = self.conv(f"{name}/conv_2")(silu(self.norm(f"{name}/norm_2")(h)))
        x = self.conv(f"{name}/shortcut")(x) if f"{name}/shortcut/w" in self.weights else x
        h = layers.Add()([h, x])
        return self.attend(h, f"{name}/attention") if f"{name}/attention/norm/scale" in self.weights else h


def unet(weights):
    net, silu = Net(weights), keras.activations.silu
    image, time = keras.Input([32, 32, 3]), keras.Input([])
    embedded = net.dense("time_2")(silu(net.dense("time_1")(Waves(weights["time_1/w"].shape[0])(time))))
    x = net.conv("first")(image)
    skips = [x]
    for i in range(SCALES):
        for j in range(BLOCKS):
            x = net.block(x, embedded, f"down/{i}/blocks/{j}")
            skips.append(x)
        if i < SCALES - 1:
            x = net.conv(f"down/{i}/resize", 2)(x)
            skips.append(x)
    for i in range(2):
        x = net.block(x, embedded, f"middle/{i}")
    for i in range(SCALES):
        for j in range(BLOCKS + 1):
            x = net.block(layers.Concatenate()([x, skips.pop()]), embedded, f"up/{i}/blocks/{j}")
        if i < SCALES - 1:
            x = net.conv(f"up/{i}/resize/layers/1")(layers.UpSampling2D(2)(x))
    x = net.conv("last")(silu(net.norm("norm")(x)))
    model = keras.Model([image, time], x)
    for layer, values in net.given:
        layer.set_weights(values)
    return model
