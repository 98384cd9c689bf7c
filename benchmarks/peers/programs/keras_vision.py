"""ResNet-50 and ViT-S in Keras, with its layers."""

import keras
from keras import layers

BLOCKS = (3, 4, 6, 3)  # of ResNet-50


def resnet(weights):
    image = keras.Input([224, 224, 3], dtype="uint8")
    x = layers.Rescaling(1.0 / 255.0)(image)

    def conv_norm(x, name, stride=1):
        kernel = weights[f"{name}/conv/w"]
        size, channels = kernel.shape[0], kernel.shape[-1]
        if size > 1:
            x = layers.ZeroPadding2D(size // 2)(x)
        conv = layers.Conv2D(channels, size, stride, use_bias=False)
        norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        x = norm(conv(x))
        conv.set_weights([kernel])
        norm.set_weights([weights[f"{name}/norm/scale"], weights[f"{name}/norm/offset"], *norm.get_weights()[2:]])
        return x

    x = layers.ReLU()(conv_norm(x, "stem", 2))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for i, count in enumerate(BLOCKS):
        for j in range(count):
            name, stride = f"stages/{i}/{j}", 2 if i > 0 and j == 0 else 1
            y = layers.ReLU()(conv_norm(x, f"{name}/convs/0"))
            y = layers.ReLU()(conv_norm(y, f"{name}/convs/1", stride))
            y = conv_norm(y, f"{name}/convs/2")
            shortcut = conv_norm(x, f"{name}/shortcut", stride) if j == 0 else x
            x = layers.ReLU()(layers.Add()([y, shortcut]))
    logits = layers.Dense(10)
    model = keras.Model(image, logits(layers.GlobalAveragePooling2D()(x)))
    logits.set_weights([weights["logits/w"], weights["logits/b"]])
    return model


class Tokens(layers.Layer):
    """Puts the class's token before those of the patches, and adds learnt positions."""

    def build(self, shape):
        self.token = self.add_weight(shape=[shape[-1]], name="token")
        self.w = self.add_weight(shape=[shape[1] + 1, shape[2]], name="w")

    def call(self, x):
        token = keras.ops.broadcast_to(self.token, [keras.ops.shape(x)[0], 1, x.shape[-1]])
        return keras.ops.concatenate([token, x], 1) + self.w


def vit(weights, *, heads=6):
    size = weights["token"].shape[0]
    image, given = keras.Input([224, 224, 3], dtype="uint8"), []

    def dense(name, activation=None):
        layer = layers.Dense(weights[f"{name}/w"].shape[-1], activation=activation)
        given.append((layer, [weights[f"{name}/w"], weights[f"{name}/b"]]))
        return layer

    def norm(name):
        layer = layers.LayerNormalization(epsilon=1e-6)
        given.append((layer, [weights[f"{name}/scale"], weights[f"{name}/offset"]]))
        return layer

    patches, tokens = layers.Conv2D(size, 16, 16), Tokens()
    given += [(patches, [weights["patches/w"], weights["patches/b"]])]
    given += [(tokens, [weights["token"], weights["positions"]])]
    x = patches(layers.Rescaling(1.0 / 255.0)(image))
    x = tokens(layers.Reshape([-1, size])(x))
    for i in range(sum(name.endswith("norm_1/scale") for name in weights)):
        name = f"blocks/{i}/"
        attention = layers.MultiHeadAttention(heads, size // heads)
        given.append((attention, attention_weights(weights, f"{name}attention/", size, heads)))
        y = norm(f"{name}norm_1")(x)
        x = layers.Add()([x, attention(y, y)])
        y = dense(f"{name}feed_forward/up", keras.activations.gelu)(norm(f"{name}norm_2")(x))
        x = layers.Add()([x, dense(f"{name}feed_forward/down")(y)])
    model = keras.Model(image, dense("logits")(norm("norm")(x)[:, 0]))
    for layer, values in given:
        layer.set_weights(values)
    return model


def attention_weights(weights, name, size, heads):
    """Splits the weights of queries, keys, values and outputs by heads."""
    split = [size, heads, size // heads]
    qkv = [
        weights[f"{name}qkv/{part}"][..., j * size : (j + 1) * size].reshape(split[part == "b" :])
        for j in range(3)
        for part in "wb"
    ]
    return [*qkv, weights[f"{name}out/w"].reshape(heads, size // heads, size), weights[f"{name}out/b"]]
