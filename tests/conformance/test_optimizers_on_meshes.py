"""Optimizers and transforms on a mesh: each moves sharded variables as on one device, or raises an error.

Fused kernels are for whole variables, so a mesh computes the pure rule either way.
"""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.optimizers import Optimizer
from core.parallel.mesh.program import kept_in_order
from core.parallel.mesh.unsafe_ops import refuse_unsafe
from core.testing import on_virtual_mesh

from .optimizer_rows import OPTIMIZERS, TRANSFORMS

AXES = {"net/0/w": ("-", "model"), "net/0/b": ("model",), "scale": ()}
SHAPES = {"net/0/w": [4, 6], "net/0/b": [6], "scale": []}
# These decompose matrices or solve with them, and noise is drawn at a size that is then sharded.
ERRORS = {
    "shampoo": (ConfigurationError, r"`tf\.where` of one condition for two tensors"),
    "soap": (ConfigurationError, "`Qr`, which `shampoo`, `soap` and `psgd_kron` need"),
    "psgd_kron": (ConfigurationError, "`MatrixTriangularSolve`, which `shampoo`, `soap` and `psgd_kron` need"),
    "gradient_noise": (tf.errors.UnknownError, "Expected shape: <4,12> got shape: <4,6>"),
}
# One row per part, with the most options; only a factored Adafactor has means of rows and columns.
ROWS = list({row.part: row for row in [*OPTIMIZERS, *TRANSFORMS]}.values())
ROWS += [row for row in OPTIMIZERS if row.id == "adafactor"]


def numbers(seed):
    random = np.random.RandomState(seed)
    return {path: np.asarray(random.randn(*shape), "f4") for path, shape in SHAPES.items()}


def trained(row, strategy):
    """Returns the parameters and slots after three updates."""

    def variable(path, value):
        if strategy is None:
            return tf.Variable(value)
        with strategy.scope(lambda _: AXES[path]):
            return tf.Variable(value)

    def slot_axes(shape):
        return next((AXES[path] for path, x in SHAPES.items() if x == list(shape)), ("-",) * len(shape))

    variables = {path: variable(path, value) for path, value in numbers(0).items()}
    with strategy.scope(slot_axes) if strategy else contextlib.nullcontext():
        optimizer = Optimizer(row.make(), variables)

    def step(gradients, value):
        gradients = {path: tf.cast(x, tf.float32) for path, x in gradients.items()}
        value = tf.cast(value, tf.float32)
        optimizer.apply(gradients, value=value, apply_if=tf.math.is_finite(value))

    function = tf.function(lambda *args: strategy.run(step, args), autograph=False)
    for i in range(3):
        handed = strategy.handed if strategy else tf.identity
        args = {path: handed(tf.constant(x)) for path, x in numbers(i + 1).items()}, handed(tf.constant(1.5))
        if strategy is None:
            step(*args)
            continue
        traced = function.get_concrete_function(*args)
        refuse_unsafe(traced, (2, 2))
        with kept_in_order(traced):
            function(*args)
    return {path: v.numpy() for path, v in {**variables, **optimizer.variables}.items()}


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_an_update_on_a_mesh_is_that_of_one_device(row):
    strategy = on_virtual_mesh(2, 2)
    if row.part in ERRORS:
        error, says = ERRORS[row.part]
        with pytest.raises(error, match=says):
            trained(row, strategy)
        return
    expected = trained(row, None)
    for path, value in trained(row, strategy).items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-5, atol=1e-5, err_msg=path)
