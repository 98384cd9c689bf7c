"""Is what an update writes right: a gradient for each variable, the loss' own, and finite?

assert_gradients(task, batch)
assert_gradients(task, batch, except_for=["net/key/b"])  # an attention's scores don't change with it
"""

import fnmatch
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from core.graphs import everything
from core.module import named_variables
from core.random import Rng
from core.task import Batch, Task
from core.testing.batch import HALFWAY
from core.testing.plain import optimizers_of, plain_step
from core.testing.traced import Seen, Step, kept, near_the_ends, nudged, steps

STEPS = (
    1e-2,
    1e-3,
    3e-4,
    1e-4,
)  # of finite differences, along a direction of length one; a bend may ask for short ones
SHARE = 0.05  # of a slope that the gradient may miss
ROUNDING = 2e-7  # of a loss, which a short step makes much of
NARROW = {tf.bfloat16: 2.0**-7, tf.float16: 2.0**-10}  # the same, where a step computes in these,
WIDE_STEPS = (0.3, 0.2, 0.1)  # and what it takes there to see a slope at all


def assert_gradients(task: Task, batch: Batch, *, except_for: Sequence[str] = (), seed: int = 0) -> None:
    """Asserts that every trained variable has a gradient, the slope of the loss, and that updates are finite.

    `except_for` are paths, or patterns of them (`"net/key/*"`), of variables whose gradient is zero by nature, or isn't
    meant to be the slope (the encoder of a `tf.stop_gradient(z)` that stands for the other view, say).
    """
    for step in steps(task, batch, seed=seed):
        check_gradients(step, except_for)
    check_updates(task, batch, seed=seed)


def check_gradients(step: Step, except_for: Sequence[str]) -> None:
    """Asserts it of one traced step."""
    if step.phase is None:
        return
    check_finite(step, step())
    with nudged(step.task):
        seen = step()
        for path, variable in step.variables.items():
            gradient = seen.gradients[path]
            if any(fnmatch.fnmatch(path, pattern) for pattern in except_for):
                continue
            found = np.any(gradient != 0.0)
            assert found or _shifts_nothing(step, path, variable, seen) or _comes_or_goes(step, path), (
                f"the gradient of `{path}` in {step.name} is zero everywhere: nothing that it computes reaches the "
                "loss. Look for a `tf.stop_gradient`, a mask or a product with zero on the way, and for an activation "
                f'that is flat there. Where that is by nature: `except_for=["{path}"]`.'
            )
            if found:
                _check_slope(step, path, variable, gradient, seen.mean)


def check_finite(step: Step, seen: Seen) -> None:
    """Asserts that losses and gradients are finite."""
    counts = seen.weight != 0.0
    bad = np.argwhere(counts & ~np.isfinite(seen.per_example))[:5].tolist()
    assert not bad, (
        f"the loss of {step.name} isn't finite at {bad}: look for a division, logarithm or square root of zero, and "
        "for labels out of range."
    )
    bad = np.argwhere(~np.isfinite(seen.weight))[:5].tolist()
    assert not bad, f"the weight of {step.name} isn't finite at {bad}: look for a division by zero."
    for path, gradient in seen.gradients.items():
        assert np.all(np.isfinite(gradient)), (
            f"the gradient of `{path}` in {step.name} isn't finite, though the loss is: an update would make it NaN. "
            "Look for a square root or norm of zero, and for a `tf.where` whose other branch isn't finite (its "
            "gradient is zero times infinity): make the argument safe, not the result."
        )


def check_updates(task: Task, batch: Batch, *, seed: int = 0, count: int = 2) -> None:
    """Asserts that some steps on the batch leave all variables finite; they are undone."""
    values = {key: tf.convert_to_tensor(x) for key, x in batch.items()}
    variables = named_variables(task)
    with kept(list(variables.values())):
        optimizers = optimizers_of(task)
        for i in range(count):
            plain_step(task, optimizers, values, Rng.from_seed(seed, **HALFWAY).fold(i))
            for path, variable in variables.items():
                assert not variable.dtype.is_floating or np.all(np.isfinite(variable.numpy())), (
                    f"update {i + 1} makes `{path}` NaN or infinite. Look for a learning rate or a loss that is too "
                    "large, and for a division, logarithm, square root or norm of zero."
                )


def _shifts_nothing(step: Step, path: str, variable: tf.Variable, seen: Seen) -> bool:
    """Says whether the loss is invariant to a variable of a layer that is trained: a bias that cancels, say."""
    layer = path.rpartition("/")[0]
    siblings = [other for other in step.variables if other != path and other.rpartition("/")[0] == layer]
    if not layer or not any(np.any(seen.gradients[other] != 0.0) for other in siblings):
        return False
    with kept([variable]):
        variable.assign(variable.numpy() + np.random.RandomState(2).standard_normal(variable.shape))
        moved = step()
    return bool(np.allclose(moved.per_example, seen.per_example, rtol=1e-4, atol=1e-4))


def _comes_or_goes(step: Step, path: str) -> bool:
    """Says whether a variable has a gradient near the beginning of a run, or near its end."""
    return any(bool(np.any(other().gradients[path] != 0.0)) for other in near_the_ends([step]))


def _check_slope(step: Step, path: str, variable: tf.Variable, gradient: np.ndarray, mean: float) -> None:
    """Compares the gradient along one direction with differences of the loss, where these agree among themselves."""
    random = np.random.RandomState(1).standard_normal(gradient.shape)
    direction = gradient / np.linalg.norm(gradient) + 0.7 * random / np.linalg.norm(random)
    direction /= np.linalg.norm(direction)
    expected = float(np.sum(gradient * direction, dtype=np.float64))
    rounding = max([ROUNDING, *(NARROW.get(x.dtype, 0.0) for op in everything(step.operations) for x in op.outputs)])
    with kept([variable]):
        start = variable.numpy()

        def slope(size: float) -> float:
            means = []
            for sign in (1.0, -1.0):
                variable.assign(start + np.asarray(sign * size * direction, start.dtype))
                means.append(step().mean)
            return (means[0] - means[1]) / (2.0 * size)

        slopes = list[float]()
        for size in STEPS if rounding == ROUNDING else WIDE_STEPS:
            slopes.append(slope(size))
            error = abs(slopes[-1] - expected)
            if error <= SHARE * max(abs(slopes[-1]), abs(expected)) + rounding * max(1.0, abs(mean)) / size:
                return
    fine = slopes[-2]
    spread = min(abs(fine - slopes[-1]), abs(fine - slopes[-3]))
    wrong = spread < 0.2 * abs(fine - expected)  # else the differences themselves say nothing
    assert not wrong, (
        f"the gradient of `{path}` in {step.name} isn't the slope of its loss: along one direction it is "
        f"{expected:.4g}, but the loss changes by {fine:.4g}. One of the ways to the loss has no gradient: look for "
        "`tf.stop_gradient`, rounding, `argmax` or a cast to integers on one of two paths, and for an own gradient. "
        f'Where that is meant (a target that isn\'t trained through): `except_for=["{path}"]`.'
    )
