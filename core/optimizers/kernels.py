"""What TensorFlow's fused kernels ask of a rule: scalars in the dtype of the variable, and their rounding."""

import tensorflow as tf

from core.optimizers.transform import Variables


def by_dtype(params: Variables) -> list[tuple[tf.DType, Variables]]:
    """Sorts parameters by dtype: fused kernels want scalars of their variable's, made once for all that share it."""
    dtypes = dict.fromkeys(variable.dtype for variable in params.values())
    return [(dtype, {path: v for path, v in params.items() if v.dtype == dtype}) for dtype in dtypes]


def kernel_scalar(scalar: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns `scalar` as the fused kernels want it."""
    return tf.cast(scalar, dtype) if isinstance(scalar, tf.Tensor) else tf.constant(scalar, dtype)


def kernel_beta(beta: float, dtype: tf.DType) -> float:
    """Returns β as a kernel reads it, in `dtype`: what it averages by that is to be corrected by that, too."""
    return float(dtype.as_numpy_dtype(beta))


def kernels_keep(*betas: float, to: float) -> bool:
    """Says whether each 1 - β is right as kernels compute it in float32: 0.99 to 1e-6, 0.999 to 1.3e-5, 0.9999 to 2e-4.

    Where it isn't, the rule goes without its kernel: those values would weigh and last another time than was asked for.
    """
    return all(abs((1.0 - kernel_beta(beta, tf.float32)) / (1.0 - beta) - 1.0) <= to for beta in betas)
