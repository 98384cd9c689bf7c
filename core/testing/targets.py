"""Checks that losses get logits instead of probabilities, and that targets come from the batch."""

import fnmatch
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from core.graphs import line, maker, sigmoid_logits
from core.task import Batch, Task
from core.testing.traced import Seen, Step, near_the_ends, steps

SQUASHED = ("Softmax", "Sigmoid")
LOSSES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", "LogSoftmax", "Softmax", "Sigmoid")


def assert_targets(task: Task, batch: Batch, *, except_for: Sequence[str] = (), seed: int = 0) -> None:
    """Asserts that no softmax or sigmoid is applied twice, and that each feature that is read changes a loss.

    `except_for` names features that change no loss on purpose, for example those of a metric.
    """
    made = steps(task, batch, seed=seed)
    for step in made:
        check_squashed(step)
    check_features(made, except_for)


def check_squashed(step: Step) -> None:
    """Asserts that the step doesn't apply a softmax or sigmoid to probabilities."""
    for op in step.operations:
        logits = op.inputs[0] if op.type in LOSSES else sigmoid_logits(op)
        if logits is None:
            continue
        before = maker(logits)
        twice = before.type in SQUASHED and (op.type != "Sigmoid" or before.type == "Sigmoid")
        assert not twice, (
            f"{step.name} applies a {'softmax' if op.type in LOSSES else 'sigmoid'} twice: what the loss takes as "
            f"logits has already been through `tf.nn.{before.type.lower()}` {line(before)}. Pass the "
            "logits; probabilities are for metrics and for serving."
        )
    for pair in step().comparisons:
        logits = np.asarray(pair.prediction)
        if pair.op.type in LOSSES[:2] and logits.shape[-1] > 1:
            probabilities = np.all(logits >= 0.0) and np.allclose(np.sum(logits, -1), 1.0, atol=1e-3)
            assert not probabilities, (
                f"{step.name} applies a softmax twice {line(pair.op)}: what the loss takes as logits are "
                "probabilities, positive and of sum 1. Pass the input of the first softmax."
            )


def check_features(made: Sequence[Step], except_for: Sequence[str]) -> None:
    """Asserts that each feature of the batch that a step reads changes the loss of some phase."""
    updates = [step for step in made if step.phase]
    before = [step() for step in updates]
    for key, x in updates[0].batch.items():
        if any(fnmatch.fnmatch(key, pattern) for pattern in except_for):
            continue
        rolled = np.roll(x.numpy(), 1, axis=0)
        if np.array_equal(rolled, x.numpy()):  # equal in all rows, so rolling tests nothing
            continue
        read = any(step.hangs_on(key) for step in updates)
        evaluated = any(step.hangs_on(key, loss_only=True) for step in made)  # a metric may read untrained features
        assert read or not evaluated, (
            f"`{key}` is read by the loss of `evaluate`, but by no phase: training ignores it. Read it in the "
            f'loss, from `batch`; if only evaluation needs it: `except_for=["{key}"]`.'
        )
        if not read:
            continue
        changed = any(_changes(step, seen, key, rolled) for step, seen in zip(updates, before, strict=True))
        assert changed or any(_changes(step, step(), key, rolled) for step in near_the_ends(updates)), (
            f"`{key}` changes no loss: what the task makes of it is constant, or only metrics read it. Look for an "
            "`argmax`, a comparison, a product or a cast that gives the same for every row. If that is intended: "
            f'`except_for=["{key}"]`.'
        )
    for step in updates:
        _check_constant(step)


def _changes(step: Step, seen: Seen, key: str, values: np.ndarray) -> bool:
    """Says whether replacing the feature `key` with `values` changes any row's loss or weight."""
    other = step({**step.batch, key: tf.constant(values)})
    same = np.array_equal(seen.per_example, other.per_example, equal_nan=True)
    return not (same and np.array_equal(seen.weight, other.weight, equal_nan=True))


def _check_constant(step: Step) -> None:
    """Raises an `AssertionError` if a cross-entropy's labels are constant instead of coming from the batch."""
    classes = [(c, now) for c, now in zip(step.comparisons, step().comparisons, strict=True) if c.op.type == LOSSES[0]]
    constant = [c for c, now in classes if not step.sources[c.target.op.name] and len(np.unique(now.target)) == 1]
    assert not constant or len(constant) < len(classes), (
        f"the labels of {step.name} are constant {line(constant[0].op)}: they don't come from the batch, "
        "and all rows have the same. Read them from `batch`."
    )
