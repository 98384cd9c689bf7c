"""Orthogonal factors of matrices, by polynomials that need matrix products only."""

from collections.abc import Mapping

import tensorflow as tf

from core.tracing import only_cpus

Coefficients = tuple[tuple[float, float, float], ...]  # of each step: a X + b (XXᵀ)X + c (XXᵀ)²X

NEWTON_SCHULZ, POLAR_EXPRESS = "newton_schulz", "polar_express"
_STEEPEST = (3.4445, -4.7750, 2.0315)  # has the steepest rise at zero
_POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
_LIMIT = (1.875, -1.25, 0.375)  # of the steps after these
SAFETY = 1.01  # keeps rounded singular values within the range of the next polynomial


def coefficients(method: str, steps: int) -> Coefficients:
    """Returns the polynomials of `steps` steps: Jordan's quintic, or those of Amsel et al. (2025), "The Polar Express".

    Polar Express has the best polynomial for each step, and the singular values converge to one.
    """
    if method == NEWTON_SCHULZ:
        return (_STEEPEST,) * steps
    safe = tuple((a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in _POLAR_EXPRESS)
    a, b, c = safe[0]  # the paper also divides the matrix by the factor
    safe = ((a / SAFETY, b / SAFETY**3, c / SAFETY**5), *safe[1:])
    return (*safe, *(_LIMIT,) * steps)[:steps]


def orthogonalise(x: tf.Tensor, polynomials: Coefficients, epsilon: float) -> tf.Tensor:
    """Returns about U Vᵀ for x = U S Vᵀ: each polynomial moves the singular values towards one.

    `x` is one matrix [rows, columns], or a batch of them [n, rows, columns].
    """
    rows, columns = x.shape[-2:]
    if rows > columns:  # the smaller of the two squares is cheaper
        return tf.linalg.matrix_transpose(orthogonalise(tf.linalg.matrix_transpose(x), polynomials, epsilon))
    # The squares of large values would overflow in the norm.
    x /= tf.maximum(tf.reduce_max(tf.abs(x), [-2, -1], keepdims=True), 1.0)
    x /= tf.norm(x, axis=[-2, -1], keepdims=True) + epsilon
    for a, b, c in polynomials:
        square = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * square + c * tf.matmul(square, square), x)
    return x


def batches_pay() -> bool:
    """Says whether one batched product is faster than a product for each matrix: if there is a GPU or TPU.

    It is launched once for all matrices. On two CPU cores, it took 1.1 to 1.5 times as long.
    """
    return not only_cpus()


def cost(matrix: tf.Tensor) -> float:
    """Returns the multiplications of one step for a matrix, up to a factor."""
    small, large = sorted(matrix.shape)
    return float(small * small * (2 * large + small))


def orthogonalise_all(
    matrices: Mapping[str, tf.Tensor], polynomials: Coefficients, epsilon: float
) -> dict[str, tf.Tensor]:
    """Returns `{path: orthogonalise(matrix)}`; on GPUs, matrices of equal shape share batched products."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for path, x in matrices.items():
        alike.setdefault(tuple(x.shape), []).append(path)
    found: dict[str, tf.Tensor] = {}
    for paths in alike.values():
        if len(paths) > 1 and batches_pay():
            together = orthogonalise(tf.stack([matrices[path] for path in paths]), polynomials, epsilon)
            found |= dict(zip(paths, tf.unstack(together), strict=True))
        else:
            found |= {path: orthogonalise(matrices[path], polynomials, epsilon) for path in paths}
    return found
