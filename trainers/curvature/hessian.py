"""Leading eigenvalues and trace of a loss's Hessian, computed from its products with vectors."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[np.float64]
Product = Callable[[Array], Array]  # a vector [parameters] -> the matrix times this vector

FEWEST, MOST, PRECISE = 20, 150, 1e-3  # Lanczos steps, and the relative error that ends them
ROUNDING = 1e-6  # of products in float32, relative to the largest eigenvalue


class Eigenvalues(NamedTuple):
    """The largest eigenvalues by magnitude, in descending order, and for each a bound of its error."""

    values: Array
    errors: Array
    steps: int


class Trace(NamedTuple):
    """An estimate of the trace, and its standard error."""

    mean: float
    error: float


def hessian_product(loss: Callable[[], tf.Tensor], variables: Sequence[tf.Variable]) -> Product:
    """Returns v -> H v, for the Hessian H of `loss()` in `variables`, flattened in their order (Pearlmutter, 1994)."""
    sizes = [math.prod(v.shape) for v in variables]

    @tf.function(autograph=False)
    def product(vector: tf.Tensor) -> tf.Tensor:
        parts = [tf.reshape(x, v.shape) for x, v in zip(tf.split(vector, sizes), variables, strict=True)]
        zero = tf.UnconnectedGradients.ZERO
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(variables)
            with tf.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(variables)
                value = loss()
            gradients = inner.gradient(value, variables, unconnected_gradients=zero)
            along = tf.add_n([tf.reduce_sum(g * part) for g, part in zip(gradients, parts, strict=True)])
        rows = outer.gradient(along, variables, unconnected_gradients=zero)
        return tf.concat([tf.reshape(tf.convert_to_tensor(x), [-1]) for x in rows], 0)

    return lambda vector: product(tf.constant(vector, tf.float32)).numpy().astype(np.float64)


def leading_eigenvalues(product: Product, size: int, count: int, *, seed: int = 0) -> Eigenvalues:
    """Finds the `count` largest eigenvalues by magnitude of a symmetric matrix [size, size] (Lanczos, 1950).

    All Lanczos vectors are kept, and each new one is made orthogonal to them. Otherwise rounding would make copies.
    """
    start = np.random.default_rng(seed).normal(size=size)
    basis, diagonal, beside = [start / np.linalg.norm(start)], list[float](), list[float]()
    while True:
        w = product(basis[-1])
        diagonal.append(float(w @ basis[-1]))
        for _ in range(2):  # once isn't enough: the first pass leaves its own rounding
            w -= np.stack(basis, 1) @ (np.stack(basis) @ w)
        norm, steps = float(np.linalg.norm(w)), len(diagonal)
        matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        values, vectors = np.linalg.eigh(matrix)
        leading = np.argsort(-np.abs(values))[:count]
        largest = float(np.max(np.abs(values)))
        errors = norm * np.abs(vectors[-1, leading]) + ROUNDING * largest
        exhausted = steps == size or norm <= 1e-7 * largest
        precise = steps >= FEWEST and len(leading) == count and bool(np.all(errors <= PRECISE * largest))
        if exhausted or precise or steps == MOST:
            order = np.argsort(-values[leading])
            return Eigenvalues(values[leading][order], errors[order], steps)
        beside.append(norm)
        basis.append(w / norm)


def trace(product: Product, size: int, *, probes: int, seed: int = 0) -> Trace:
    """Estimates the trace as the mean of v · H v over random vectors v of signs (Hutchinson, 1989)."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(probes):
        v = random.choice([-1.0, 1.0], size=size)
        found.append(float(v @ product(v)))
    return Trace(float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(probes)))
