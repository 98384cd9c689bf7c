"""Classifies digits with a network written in JAX; the variables, the step and the optimizer are Tapeloop's."""

import gin
import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.experimental import jax2tf

from core import losses, metrics
from core.module import Module
from core.task import Loss, Served, Task, Update

SIZES = (64, 96, 10)


def init(key):
    """Returns the parameters, a tree of arrays. `init` and `apply` of a Flax module have these forms, too."""
    draw = jax.nn.initializers.lecun_uniform()
    keys = jax.random.split(key, len(SIZES) - 1)
    shapes = zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    return {f"layer_{i}": {"w": draw(k, (m, n)), "b": jnp.zeros(n)} for i, (k, m, n) in enumerate(shapes)}


def apply(params, image):
    """Returns logits [rows, 10] of images [rows, 8, 8, 1]."""
    hidden, out = params["layer_0"], params["layer_1"]
    x = jax.nn.gelu(image.reshape(image.shape[0], -1) @ hidden["w"] + hidden["b"])
    return x @ out["w"] + out["b"]


class JaxModule(Module):
    """A module that computes `apply(params, x)`, a function of JAX; its variables are the arrays of `init(key)`."""

    def __init__(self, init, apply, *, rng):
        super().__init__()
        drawn = jax2tf.convert(lambda bits: init(jax.random.wrap_key_data(bits)))(rng.bits([2]))
        self.params = tf.nest.map_structure(tf.Variable, drawn)
        self.apply = jax2tf.convert(apply, polymorphic_shapes=[None, "(rows, ...)"])  # and gradients, by default

    def __call__(self, x):
        return self.apply(in_dtype(self.params, x.dtype), x)


def in_dtype(params, dtype):
    """Returns tensors in the dtype of `Trainer.precision`, in plain dictionaries: JAX doesn't know TensorFlow's."""
    if isinstance(params, tf.Variable | tf.Tensor):
        return tf.cast(params, dtype)
    return {name: in_dtype(part, dtype) for name, part in params.items()}


@gin.configurable
class JaxClassifier(Task):
    def __init__(self, *, rng, optimizer=gin.REQUIRED):
        super().__init__()
        self.net = JaxModule(init, apply, rng=rng)
        self.optimizer = optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        logits = self.net(batch["image"])
        per_example = losses.softmax_cross_entropy(logits, batch["label"])
        return Loss(per_example, metrics={"accuracy": metrics.accuracy(logits, batch["label"])})

    def evaluate(self, batch):
        return self.loss(batch, rng=None)

    def serve(self, features):
        return {"classify": Served(self.classify, {"image": features["image"]}, scores=["logits"])}

    def classify(self, batch):
        return {"logits": self.net(batch["image"])}
