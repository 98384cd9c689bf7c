"""Checks that the prediction of a token depends only on earlier tokens."""

from collections.abc import Iterator

import numpy as np

from core.task import Batch, Task
from core.testing.perturb import changed, nudged_steps
from core.testing.sums import sums_over_positions
from core.testing.traced import Comparison, Seen, Step

TOLERANCE = 1e-5
LEAK = (
    "Look for attention without `causal=True` or with a mask that lets one position too many through, a convolution "
    'with "SAME" padding, a recurrence that is reversed, a mean or normalisation over the time axis, and for inputs '
    "that are the same slice as the targets (`[:, :-1]` goes with `[:, 1:]`)."
)


def assert_causal(task: Task, batch: Batch, tokens: str = "tokens", *, seed: int = 0) -> None:
    """Asserts that no prediction depends on its own or a later token of the feature `tokens` [rows, time, ...].

    Losses are `[rows, time]`, or `[rows, time - 1]` if the target at each position is the next token.
    """
    for step in nudged_steps(task, batch, seed=seed):
        if step.hangs_on(tokens):
            check_causal(step, tokens)


def check_causal(step: Step, tokens: str) -> None:
    """Asserts for one traced step that each prediction depends only on earlier tokens."""
    x = step.batch.get(tokens)
    assert x is not None, f"`{tokens}` isn't in the batch; name the feature whose later values losses mustn't see."
    assert x.shape.rank >= 2 <= x.shape[1] - 1, (
        f"`{tokens}` has shape {x.shape}; causality is about a feature `[rows, time, ...]` of at least 3 positions."
    )
    time, seen = x.shape[1], step()
    pairs = list(_predictions(seen, step.rows, time))
    added = [kind for kind, terms in sums_over_positions(step, seen) if terms.shape[1] in (time, time - 1)]
    by_token = seen.per_example.ndim == 2 and seen.per_example.shape[1] in (time, time - 1)
    assert by_token or (pairs and "Sum" not in added), (
        f"the loss of {step.name} has shape {list(seen.per_example.shape)} for `{tokens}` of {time} positions: it is a "
        "sum over tokens. Return one loss per token, `[rows, time]`, with a `weight` of that shape that is zero where "
        "there is none: the engine divides by the weights' sum."
    )
    for position in range(1, time):
        later = step({**step.batch, tokens: changed(x, np.s_[:, position:])})
        only = step({**step.batch, tokens: changed(x, np.s_[:, position : position + 1])})
        if pairs:
            alone = list(_predictions(only, step.rows, time))
            for pair, after, one in zip(pairs, _predictions(later, step.rows, time), alone, strict=True):
                _check_own(step, tokens, position, pair, one)
                _check_later(step, tokens, position, pair, after)
        else:  # targets may be shifted by one: the target's token is at most the next
            _check_losses(step, tokens, position, seen, later)
    for pair in pairs:
        _check_shift(step, tokens, x.numpy(), pair)


def follows(step: Step) -> Iterator[str]:
    """Yields the features whose next value the step predicts: a change at time 2 changes the target at time 1."""
    seen = step()
    for key, x in step.batch.items():
        if (x.shape.rank or 0) < 2 or x.shape[1] < 4:
            continue
        other = step({**step.batch, key: changed(x, np.s_[:, 2:3])})
        time = x.shape[1]
        pairs = zip(_predictions(seen, step.rows, time), _predictions(other, step.rows, time), strict=True)
        moved = [np.flatnonzero(_moved(one.target, two.target)).tolist() for one, two in pairs]
        if any(positions in ([1], [3]) for positions in moved):  # shifted, even if the wrong way
            yield key


def _predictions(seen: Seen, rows: int, time: int) -> Iterator[Comparison]:
    """Yields the step's predictions and targets of shape `[rows, time]` or `[rows, time - 1]`."""
    for pair in seen.comparisons:
        prediction, target = np.asarray(pair.prediction), np.asarray(pair.target)
        for length in (time, time - 1):
            shapes = [x.shape[:2] == (rows, length) or x.shape[0] == rows * length for x in (prediction, target)]
            if all(shapes):
                yield Comparison(pair.op, prediction.reshape(rows, length, -1), target.reshape(rows, length, -1))
                break


def _moved(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns for each time whether two arrays [rows, time, ...] differ there."""
    apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return np.max(apart, axis=(0, 2)) > TOLERANCE * max(1.0, float(np.max(np.abs(one))))


def _check_own(step: Step, tokens: str, position: int, pair: Comparison, one: Comparison) -> None:
    """Raises an `AssertionError` if changing a token changes a target, and the prediction of that target."""
    targets, predictions = _moved(pair.target, one.target), _moved(pair.prediction, one.prediction)
    both = np.flatnonzero(targets & predictions)
    if not both.size:
        return
    if int(both[0]) == position:
        raise AssertionError(_not_shifted(step, tokens, position))
    raise AssertionError(
        f"{step.name} predicts `{tokens}[:, {position}]` at position {both[0]}, and has seen it: a later token changes "
        f"an earlier prediction. {LEAK}"
    )


def _check_later(step: Step, tokens: str, position: int, pair: Comparison, after: Comparison) -> None:
    targets, predictions = _moved(pair.target, after.target), np.flatnonzero(_moved(pair.prediction, after.prediction))
    first = int(np.flatnonzero(targets)[0]) if targets.any() else position - 1
    early = predictions[predictions <= first] if targets.any() else predictions[predictions < position]
    assert not early.size, (
        f"in {step.name} the tokens from `{tokens}[:, {position}]` on change the prediction at position {early[0]}, "
        f"which comes before them: a later token changes an earlier loss. {LEAK}"
    )


def _check_losses(step: Step, tokens: str, position: int, seen: Seen, later: Seen) -> None:
    moved = np.flatnonzero(_moved(seen.per_example[..., np.newaxis], later.per_example[..., np.newaxis]))
    early = moved[moved < position - 1]
    assert not early.size, (
        f"in {step.name} the tokens from `{tokens}[:, {position}]` on change the loss at position {early[0]}, whose "
        f"target comes before them: a later token changes an earlier loss. {LEAK}"
    )


def _check_shift(step: Step, tokens: str, values: np.ndarray, pair: Comparison) -> None:
    """Raises an `AssertionError` if a separate target feature equals `tokens`, not shifted by one position."""
    time = pair.target.shape[1]
    if values.ndim != 2 or pair.target.shape[2] != 1 or not np.array_equal(pair.target[..., 0], values[:, :time]):
        return
    one = step({**step.batch, tokens: changed(step.batch[tokens], np.s_[:, 1:2])})
    for other in _predictions(one, step.rows, values.shape[1]):
        if other.op is pair.op and _moved(pair.prediction, other.prediction)[1]:
            raise AssertionError(_not_shifted(step, tokens, 1))


def _not_shifted(step: Step, tokens: str, position: int) -> str:
    return (
        f"the target of {step.name} isn't shifted: at position {position} it is to predict `{tokens}[:, {position}]`, "
        f"which is its input there. Predict the next: inputs `{tokens}[:, :-1]`, targets `{tokens}[:, 1:]`."
    )
