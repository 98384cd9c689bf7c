"""Adam (Kingma and Ba, 2015) over a list of variables: in the paper's efficient order, or with TensorFlow's kernel."""

from collections.abc import Callable, Sequence

import tensorflow as tf

Rate = Callable[[tf.Tensor], tf.Tensor]  # update count -> learning rate


class Adam:
    """Holds two averages per variable and one count for all."""

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        rate: float | Rate,
        *,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        kernel: bool,
    ):
        self.variables, self.rate, self.kernel = list(variables), rate, kernel
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.m = [tf.Variable(tf.zeros_like(v)) for v in self.variables]
        self.v = [tf.Variable(tf.zeros_like(v)) for v in self.variables]
        self.count = tf.Variable(0, dtype=tf.int64)

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Applies one update; returns the new update count as a float."""
        rate = self.rate(self.count.read_value()) if callable(self.rate) else self.rate
        t = tf.cast(self.count.assign_add(1), tf.float32)
        power_1, power_2 = self.beta_1**t, self.beta_2**t
        correction = tf.sqrt(1.0 - power_2)
        alpha, epsilon = rate * correction / (1.0 - power_1), self.epsilon * correction
        for variable, m, v, gradient in zip(self.variables, self.m, self.v, gradients, strict=True):
            if self.kernel:
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle, m=m.handle, v=v.handle, grad=gradient, lr=rate, beta1=self.beta_1,
                    beta2=self.beta_2, beta1_power=power_1, beta2_power=power_2, epsilon=epsilon,
                )  # fmt: skip
            else:
                new_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
                new_v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient)
                m.assign(new_m)
                v.assign(new_v)
                variable.assign_sub(alpha * new_m / (tf.sqrt(new_v) + epsilon))
        return t
