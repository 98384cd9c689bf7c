"""Softmax regression (multinomial logistic regression): p(class | x) = softmax(x w + b)."""

import gin
import tensorflow as tf

from core.module import Module
from core.optimizers import Transform
from core.random import Rng
from models.classifiers.task import Classifier, flatten


class SoftmaxRegression(Module):
    """Computes logits `x @ w + b`. `w` and `b` are plain `tf.Variable`s, without a layer."""

    def __init__(self, in_size: int, num_classes: int):
        super().__init__()
        # The loss is convex, so zeros are as good a start as any.
        self.w = tf.Variable(tf.zeros([in_size, num_classes]), name="w")
        self.b = tf.Variable(tf.zeros([num_classes]), name="b")

    def __call__(self, x: tf.Tensor, rng: Rng | None = None) -> tf.Tensor:
        return flatten(x) @ tf.cast(self.w, x.dtype) + tf.cast(self.b, x.dtype)


@gin.configurable
class LinearClassifier(Classifier):
    """Classifies images of `in_size` values each, with a `SoftmaxRegression`."""

    def __init__(
        self, *, rng: Rng, in_size: int = gin.REQUIRED, num_classes: int = 10, optimizer: Transform = gin.REQUIRED
    ):
        super().__init__(SoftmaxRegression(in_size, num_classes), num_classes=num_classes, optimizer=optimizer)
