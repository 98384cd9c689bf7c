"""Refuses what a step function mustn't do, while it is being traced: each error names the phase."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError
from core.random import Rng
from core.rows import sharing_rows
from core.task.loss import Batch, Loss
from core.task.statistics import summing_over_replicas


@contextlib.contextmanager
def no_new_variables(who: str) -> Iterator[None]:
    """Refuses variables that are made while a function is being traced, which messages call `who`."""

    refusals = []

    def refuse(_: Any, **kwargs: Any) -> tf.Variable:
        what = kwargs.get("name") or "Variable"
        refusals.append(_refused_keras(who, what) or _refused_variable(who, what))
        raise refusals[0]

    try:
        with tf.variable_creator_scope(refuse):
            yield
    except Exception as error:
        # Keras rewrites what is raised within its layers, with a list of their arguments.
        if refusals and error is not refusals[0]:
            raise refusals[0] from None
        raise


def _refused_variable(who: str, what: str) -> ValueError:
    return ValueError(
        f"{who} made a variable (`{what}`) as it was called. Variables are made once, in `__init__` "
        "of a module, where the strategy, the optimizer and the checkpoint can see them: move it there."
    )


def _refused_keras(who: str, what: str) -> ConfigurationError | None:
    """Returns the error for a variable that a layer of Keras makes: known by the modules of the frames that call."""
    frames = [frame for frame, _ in traceback.walk_stack(None)]  # the innermost first
    calling = [str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("keras", "tf_keras") for frame in frames]
    if True not in calling:
        return None
    last = len(calling) - 1 - calling[::-1].index(True)
    within = [frame.f_locals["self"] for frame in frames[: last + 1] if "self" in frame.f_locals]
    layer = type(within[-1]).__name__ if within else "layer"
    own = traceback.extract_stack(frames[last + 1], 1)[0] if last + 1 < len(frames) else None
    where = f" at {os.path.basename(own.filename)}:{own.lineno} (`{own.line}`)" if own else ""
    return ConfigurationError(
        f"{who} calls a layer of Keras (`{layer}`){where}, which makes its variables (`{what}`) as it is "
        "first called, where neither the strategy nor the optimizer or a checkpoint can see them. Make the network of "
        "`core.layers`, or of `tf.Variable`s in `__init__` of a `core.module.Module`. See "
        "docs/coming-from.md#from-keras."
    )


@contextlib.contextmanager
def no_synchronisation(name: str) -> Iterator[None]:
    """Refuses layers that sum over the replicas, and rows that are gathered, in a phase that doesn't say so."""

    def refuse(sums: Any) -> Any:
        raise ConfigurationError(
            f"a layer of phase `{name}` sums over the replicas (`sync=True`), so that rows depend on each other: say "
            "`mixes_rows=True` for the phase, and its replicas take each microbatch together."
        )

    with summing_over_replicas(refuse), sharing_rows(_RefusedRows(name)):
        yield


class _RefusedRows:
    """Are the rows of a phase that doesn't say that it mixes them."""

    def __init__(self, name: str):
        self.name = name

    def all(self, x: tf.Tensor) -> tf.Tensor:
        raise ConfigurationError(
            f"phase `{self.name}` gathers the rows of all replicas (`all_rows`, which losses of contrast call), so "
            "that rows depend on each other: say `mixes_rows=True` for the phase, and its replicas take each "
            "microbatch together."
        )

    own = all


@contextlib.contextmanager
def no_rng_in_evaluation() -> Iterator[None]:
    """Refuses an `evaluate` that asks its `rng`, of which there is none, for random numbers."""
    try:
        yield
    except AttributeError as error:
        if error.obj is not None or error.name not in dir(Rng):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"`evaluate` asks for `rng.{error.name}` at {os.path.basename(frame.filename)}:{frame.lineno} "
            f"(`{frame.line}`), but evaluation is handed no `rng`: it is `None` there, by which every layer knows. "
            "Make it deterministic where `rng is None`, or give `Rng.from_seed(0)` where it needs random numbers."
        ) from error


def refuse_mixed_rows(evaluate: Callable[[Batch], Loss], batch: Batch) -> None:
    """Raises an error where `evaluate` makes something else of rows together than of the first and the others apart."""
    rows = len(next(iter(batch.values())))
    if rows < 2:
        return
    together, first, others = (
        _figures_by_row(evaluate({key: x[part] for key, x in batch.items()}))
        for part in (slice(rows), slice(1), slice(1, rows))
    )
    for name, x in together.items():
        apart = tf.concat([first[name], others[name]], 0)
        gap = float(tf.reduce_max(tf.abs(x - apart)))
        if gap > 1e-2 * max(1.0, float(tf.reduce_max(tf.abs(apart)))):  # far beyond the rounding of other shapes
            raise ConfigurationError(
                f"`evaluate` mixes rows: {name} of an example is another one beside others (by {gap:.2g}), as a phase "
                "of the task says by `mixes_rows=True`. On several replicas it would see the rows of one: compare with "
                "the rows of all, `all_rows(x)` from `core.task`, or evaluate each example by itself."
            )


def _figures_by_row(loss: Loss) -> dict[str, tf.Tensor]:
    """Returns all that `loss` says of each example, zero where the weight is; sums over examples aren't by row."""
    weight = tf.ones_like(loss.per_example) if loss.weight is None else loss.weight
    metrics = {f"the metric `{name}`": x for name, x in loss.metrics.items() if tf.is_tensor(x)}
    figures = {"the loss": loss.per_example, "the weight": weight, **metrics}
    return {name: tf.where(weight != 0, tf.cast(x, tf.float32), 0.0) for name, x in figures.items()}


def refuse_missing_gradients(gradients: Mapping[str, Any], name: str) -> None:
    """Raises an error that names the variables without a gradient."""
    missing = [path for path, gradient in gradients.items() if gradient is None]
    if missing:
        raise ValueError(
            f"phase `{name}` trains {listed(missing)}, but its loss doesn't depend on "
            f"{'it' if len(missing) == 1 else 'them'} (the gradient is None). Use "
            f"{'it' if len(missing) == 1 else 'them'} in the loss, or leave {'it' if len(missing) == 1 else 'them'} "
            "out of `trains`. `tf.stop_gradient`, an integer cast or `argmax` on the way also cuts a gradient off."
        )
