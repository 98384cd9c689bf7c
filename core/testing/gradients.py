"""Checks that gradients are the slopes of the loss, and that losses, gradients and updates are finite.

assert_gradients(task, batch)
assert_gradients(task, batch, except_for=["net/key/b"])  # an attention's scores don't change with it
"""

import fnmatch
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from core.module import named_variables
from core.random import Rng
from core.task import Batch, Task
from core.testing.batch import HALFWAY
from core.testing.perturb import kept, nudged
from core.testing.plain import optimizers_of, plain_step
from core.testing.traced import Seen, Step, near_the_ends, steps

STEPS = (1e-2, 1e-3, 3e-4, 1e-4)  # of finite differences, along a direction of length one; kinks may need short ones
SHARE = 0.01  # of a slope: the tolerated error of the gradient
PROBES = 6  # sums of the examples' losses with random signs, whose slopes are checked besides the mean's
ROUNDING = 2e-7  # of a loss, which a short step magnifies
NARROW = {tf.bfloat16: 2.0**-8, tf.float16: 2.0**-11}  # one rounding
ROUNDINGS = 16  # of a narrow gradient, relative to the gradients of single examples
MEAN, EXAMPLES = slice(1), slice(1, None)  # of the slopes


def assert_gradients(task: Task, batch: Batch, *, except_for: Sequence[str] = (), seed: int = 0) -> None:
    """Asserts that each variable's gradient isn't zero and is the slope of the loss, and that updates are finite.

    `except_for` has paths of variables to exclude, or patterns (`"net/key/*"`). Exclude a variable whose gradient is
    always zero, or whose gradient a `tf.stop_gradient` makes differ from the slope on purpose.
    """
    for step in steps(task, batch, seed=seed):
        check_gradients(step, except_for)
    check_updates(task, batch, seed=seed)


def check_gradients(step: Step, except_for: Sequence[str]) -> None:
    """Asserts for one traced step that each gradient isn't zero and equals the slope of the loss.

    Slopes are measured in float32. A gradient in a narrower dtype may differ by its roundings.
    """
    if step.phase is None:
        return
    check_finite(step, step())
    if step.narrow:
        wide = step.widened()
        if wide is not None:
            _check_roundings(step, wide, except_for)
            check_gradients(wide, except_for)
        return
    with nudged(step.task):
        seen = step()
        signs = np.random.RandomState(3).choice([-1.0, 1.0], [PROBES, *seen.per_example.shape]).astype("float32")
        probes = [step(signs=each).gradients for each in signs]
        for path, variable in step.variables.items():
            gradient = seen.gradients[path]
            if any(fnmatch.fnmatch(path, pattern) for pattern in except_for):
                continue
            found = np.any(gradient != 0.0)
            assert found or _shifts_nothing(step, path, variable, seen) or _comes_or_goes(step, path), (
                f"the gradient of `{path}` in {step.name} is zero everywhere: nothing that it computes reaches the "
                "loss. Look for a `tf.stop_gradient`, a mask or a product with zero on the way, and for an activation "
                f'that is flat there. If that is intended: `except_for=["{path}"]`.'
            )
            if found:
                _check_slope(step, path, variable, [gradient, *(probe[path] for probe in probes)], signs, seen)


def _check_roundings(step: Step, wide: Step, except_for: Sequence[str]) -> None:
    """Asserts that the gradients of `step` differ from those of `wide` (float32) only by roundings."""
    assert step.narrow
    with nudged(step.task):
        found, seen = step().gradients, wide()
        signs = np.random.RandomState(3).choice([-1.0, 1.0], [PROBES, *seen.per_example.shape]).astype("float32")
        probes = [seen.gradients, *(wide(signs=each).gradients for each in signs)]
    for path, expected in seen.gradients.items():
        if any(fnmatch.fnmatch(path, pattern) for pattern in except_for):
            continue
        allowed = ROUNDINGS * NARROW[step.narrow] * max(float(np.linalg.norm(probe[path])) for probe in probes)
        apart = float(np.linalg.norm(found[path] - expected))
        assert apart <= allowed, (
            f"the gradient of `{path}` in {step.name}, computed in {step.narrow.name}, is {apart:.2g} away from "
            f"float32's, of length {np.linalg.norm(expected):.2g}; its roundings explain {allowed:.2g}. Look for a "
            "long sum, a difference of large numbers, or a value beyond the dtype's range on the way to the loss, and "
            f'compute it in float32 (`tf.cast(x, tf.float32)`). If it is meant: `except_for=["{path}"]`.'
        )


def check_finite(step: Step, seen: Seen) -> None:
    """Asserts that the losses, weights and gradients of one call of a step are finite."""
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
    """Asserts that `count` updates on the batch leave all variables finite. Then it restores the variables."""
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
    """Says whether the loss ignores a variable, although the other variables of its layer have gradients."""
    layer = path.rpartition("/")[0]
    siblings = [other for other in step.variables if other != path and other.rpartition("/")[0] == layer]
    if not layer or not any(np.any(seen.gradients[other] != 0.0) for other in siblings):
        return False
    with kept([variable]):
        variable.assign(variable.numpy() + np.random.RandomState(2).standard_normal(variable.shape))
        moved = step()
    return bool(np.allclose(moved.per_example, seen.per_example, rtol=1e-4, atol=1e-4))


def _comes_or_goes(step: Step, path: str) -> bool:
    """Says whether a variable has a gradient near the start or near the end of a run."""
    return any(bool(np.any(other().gradients[path] != 0.0)) for other in near_the_ends([step]))


class _Slopes(NamedTuple):
    """One-sided slopes along a direction: of the mean loss, and of the losses times random signs."""

    ahead: np.ndarray
    behind: np.ndarray

    @property
    def middle(self) -> np.ndarray:
        return (self.ahead + self.behind) / 2.0

    def outside(self, expected: np.ndarray) -> np.ndarray:
        """Returns how far `expected` is outside the interval between the one-sided slopes, or 0 if it is inside."""
        low, high = np.minimum(self.ahead, self.behind), np.maximum(self.ahead, self.behind)
        return np.maximum(0.0, np.maximum(low - expected, expected - high))


def _check_slope(
    step: Step, path: str, variable: tf.Variable, gradients: Sequence[np.ndarray], signs: np.ndarray, seen: Seen
) -> None:
    """Compares a variable's gradients, along one direction, with finite differences of the losses.

    The first gradient is that of the mean loss. The others are of the losses times `signs`: they find a missing path of
    gradients that doesn't show in the mean. If the finite differences are inconsistent, nothing is asserted.
    """
    gradient = gradients[0]
    random = np.random.RandomState(1).standard_normal(gradient.shape)
    direction = gradient / np.linalg.norm(gradient) + 0.7 * random / np.linalg.norm(random)
    direction /= np.linalg.norm(direction)
    expected = np.array([np.sum(each * direction, dtype=np.float64) for each in gradients])
    # The rounding of a mean is smaller, because the examples round independently.
    examples = int(np.count_nonzero(seen.weight)) or 1
    rounding = ROUNDING / math.sqrt(examples) * max(1.0, abs(seen.mean))
    here = seen.sums_with(signs)
    with kept([variable]):
        start = variable.numpy()

        def slopes_at(size: float) -> _Slopes:
            sums = []
            for sign in (1.0, -1.0):
                variable.assign(start + np.asarray(sign * size * direction, start.dtype))
                sums.append(step().sums_with(signs))
            return _Slopes((sums[0] - here) / size, (here - sums[1]) / size)

        def allowed(found: _Slopes, part: slice, size: float) -> float:
            return SHARE * max(_size(found.middle[part]), _size(expected[part])) + rounding / size

        slopes = list[_Slopes]()
        for size in STEPS:
            found = slopes_at(size)
            slopes.append(found)
            if all(_size((found.middle - expected)[x]) <= allowed(found, x, size) for x in (MEAN, EXAMPLES)):
                return
    fine, outside = slopes[-2], slopes[-2].outside(expected)
    for part, whose in ((MEAN, ""), (EXAMPLES, " of the examples' losses, with random signs,")):
        apart = _size(outside[part])
        spread = min(_size((fine.middle - other.middle)[part]) for other in (slopes[-1], slopes[-3]))
        # Otherwise the differences themselves are unreliable.
        wrong = apart > allowed(fine, part, STEPS[-2]) and spread < 0.2 * apart
        worst = np.argmax(outside[part])
        assert not wrong, (
            f"the gradient of `{path}` in {step.name} isn't the slope of its loss: along one direction it is "
            f"{expected[part][worst]:.4g}, but the {'loss' if not whose else 'sum'}{whose} changes by "
            f"{fine.middle[part][worst]:.4g}. One of the ways to the loss has no gradient: look for "
            "`tf.stop_gradient`, rounding, `argmax` or a cast to integers on one of two paths, and for a custom "
            f'gradient. If that is intended (a target that isn\'t trained through): `except_for=["{path}"]`.'
        )


def _size(slopes: np.ndarray) -> float:
    """Returns the root mean square of `slopes`."""
    return float(np.sqrt(np.mean(np.square(slopes))))
