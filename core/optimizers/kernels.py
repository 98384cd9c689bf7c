"""TensorFlow's fused optimizer kernels: the slots and scalars of each kernel, and the kernels' rounding of β."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from core.optimizers.rates import updates_after
from core.optimizers.transform import Rate, Slots, Tensors, Variables


class Kernel(NamedTuple):
    """A TensorFlow kernel that updates one variable and the variable's slots in place."""

    op: Callable[..., Any]  # of `tf.raw_ops`, by `var`, `grad`, the slots and the scalars
    slots: Mapping[str, str]  # by the kernel's argument
    scalars: Callable[[Rate, tf.Tensor, tf.DType], Mapping[str, Rate]]  # (rate, t, dtype)

    def apply(self, gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor, rate: Rate) -> None:
        """Updates all variables of `params` and their slots in place."""
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
    """Returns `beta` rounded to `dtype`, as a kernel rounds it: bias correction and average need the same β."""
    return float(dtype.as_numpy_dtype(beta))


def kernels_keep(*betas: float, to: float) -> bool:
    """Says whether the relative error of 1 - β in float32 is at most `to` for each β in `betas`.

    The error is 1e-6 for β = 0.99, 1.3e-5 for 0.999 and 2e-4 for 0.9999. If it is larger, the rule uses no kernel.
    """
    if any(isinstance(beta, tf.Tensor) for beta in betas):
        return False
    return all(abs((1.0 - kernel_beta(beta, tf.float32)) / (1.0 - beta) - 1.0) <= to for beta in betas)
