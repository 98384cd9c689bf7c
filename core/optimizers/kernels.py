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


def kernel_shortfall(beta: float, dtype: tf.DType) -> float:
    """Returns 1 - β as a kernel computes it in `dtype`, over 1 - β: for 0.999 in float32 that is 1 - 1.3e-5."""
    return float(1.0 - dtype.as_numpy_dtype(beta)) / (1.0 - beta)
