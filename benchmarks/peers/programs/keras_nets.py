"""The works' networks in Keras, with its layers."""

import keras
from keras import layers

from benchmarks.peers.programs import keras_unet, keras_vision


def mlp(weights):
    model = keras.Sequential(
        [
            keras.Input([784], dtype="uint8"),
            layers.Rescaling(1.0 / 255.0),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.set_weights([weights[f"layers/{i}/{part}"] for i in range(2) for part in "wb"])
    return model


def softmax(weights):
    model = keras.Sequential([keras.Input([784], dtype="uint8"), layers.Rescaling(1.0 / 255.0), layers.Dense(10)])
    model.set_weights([weights["w"], weights["b"]])
    return model


def conv(weights):
    model = keras.Sequential([keras.Input([32, 32, 3], dtype="uint8"), layers.Rescaling(1.0 / 255.0)])
    for i in range(5):
        channels = weights[f"convolutions/{i}/w"].shape[-1]
        model.add(layers.Conv2D(channels, 3, padding="same", activation="relu"))
        if i in (0, 2):
            model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    names = [*(f"convolutions/{i}/" for i in range(5)), "logits/"]
    model.set_weights([weights[name + part] for name in names for part in "wb"])
    return model


class Positions(layers.Layer):
    """Adds learnt position embeddings."""

    def build(self, shape):
        self.w = self.add_weight(shape=shape[1:], name="w")

    def call(self, x):
        return x + self.w


def transformer(weights, *, blocks=4, heads=4):
    time, size = weights["positions/w"].shape
    embedding = layers.ReversibleEmbedding(weights["tokens/w"].shape[0], size, tie_weights=True)
    tokens = keras.Input([time], dtype="int32")
    x = Positions(name="positions")(embedding(tokens))
    for i in range(blocks):
        y = layers.LayerNormalization(epsilon=1e-5, name=f"{i}_norm_1")(x)
        attention = layers.MultiHeadAttention(heads, size // heads, name=f"{i}_attention")
        x = layers.Add()([x, attention(y, y, use_causal_mask=True)])
        y = layers.LayerNormalization(epsilon=1e-5, name=f"{i}_norm_2")(x)
        y = layers.Dense(4 * size, name=f"{i}_up")(y)
        y = layers.Activation(lambda x: keras.activations.gelu(x, approximate=True))(y)
        x = layers.Add()([x, layers.Dense(size, name=f"{i}_down")(y)])
    x = layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    model = keras.Model(tokens, embedding(x, reverse=True))
    embedding.set_weights([weights["tokens/w"]])
    model.get_layer("positions").set_weights([weights["positions/w"]])
    model.get_layer("norm").set_weights([weights["norm/scale"], weights["norm/offset"]])
    for i in range(blocks):
        name = f"blocks/{i}/"
        for norm in ("norm_1", "norm_2"):
            values = [weights[f"{name}{norm}/scale"], weights[f"{name}{norm}/offset"]]
            model.get_layer(f"{i}_{norm}").set_weights(values)
        for part in ("up", "down"):
            values = [weights[f"{name}feed_forward/{part}/w"], weights[f"{name}feed_forward/{part}/b"]]
            model.get_layer(f"{i}_{part}").set_weights(values)
        split = keras_vision.attention_weights(weights, f"{name}attention/", size, heads)
        model.get_layer(f"{i}_attention").set_weights(split)
    return model


NETS = {
    "mlp": mlp,
    "softmax": softmax,
    "conv": conv,
    "transformer": transformer,
    "resnet": keras_vision.resnet,
    "vit": keras_vision.vit,
    "unet": keras_unet.unet,
}
