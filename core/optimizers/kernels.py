"""TensorFlow's fused kernels: the slots and scalars of each, and their exactness."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.optimizers.rates import updates_after
from core.optimizers.transform import Rate, Slots, Tensors, Variables


class Kernel(NamedTuple):
    """A kernel that writes one variable and its slots in place."""

    op: Callable[..., Any]  # of `tf.raw_ops`, by `var`, `grad`, the slots and the scalars
    slots: Mapping[str, str]  # by the kernel's argument
    scalars: Callable[[Rate, tf.Tensor, tf.DType], Mapping[str, Rate]]  # (rate, t, dtype)

    def apply(self, gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor, rate: Rate) -> None:
        """Writes the update of every parameter."""
        t = updates_after(step)
        for dtype in dict.fromkeys(variable.dtype for variable in params.values()):
            # Scalars have the dtype of the variable; variables of one dtype share them.
            scalars = {name: _scalar(x, dtype) for name, x in self.scalars(rate, t, dtype).items()}
            for path, variable in params.items():
                if variable.dtype == dtype:
                    own = {argument: slots[slot][path].handle for argument, slot in self.slots.items()}
                    self.op(var=variable.handle, grad=gradients[path], **own, **scalars)


def _scalar(scalar: Rate, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(scalar, dtype) if isinstance(scalar, tf.Tensor) else tf.constant(scalar, dtype)


def kernel_beta(beta: float, dtype: tf.DType) -> float:
    """Returns β as a kernel rounds it to `dtype`: the bias correction must use the same β as the average."""
    return float(dtype.as_numpy_dtype(beta))


def kernels_keep(*betas: float, to: float) -> bool:
    """Says whether kernels compute each 1 - β well enough in float32: 0.99 to 1e-6, 0.999 to 1.3e-5, 0.9999 to 2e-4.

    If not, the rule does without its kernel: the averages would have another length than requested.
    """
    return all(abs((1.0 - kernel_beta(beta, tf.float32)) / (1.0 - beta) - 1.0) <= to for beta in betas)
