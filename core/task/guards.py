"""Checks of a step function while it is traced. Each error names the phase."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError
from core.graphs import CORE, TENSORFLOW, said
from core.random import Rng
from core.rows import sharing_rows
from core.task.loss import Batch, Loss
from core.task.statistics import summing_over_replicas


@contextlib.contextmanager
def no_new_variables(who: str) -> Iterator[None]:
    """Raises an error if code in its `with` block makes a variable. Messages call the function `who`."""

    refusals = []

    def refuse(_: Any, **kwargs: Any) -> tf.Variable:
        what = kwargs.get("name") or "Variable"
        refusals.append(_refused_keras(who, what) or _refused_variable(who, what))
        raise refusals[0]

    try:
        with tf.variable_creator_scope(refuse):
            yield
    except Exception as error:
        # Keras rewrites errors raised within its layers, and appends a list of their arguments.
        if refusals and error is not refusals[0]:
            raise refusals[0] from None
        raise


def _refused_variable(who: str, what: str) -> ValueError:
    return ValueError(
        f"{who} made a variable (`{what}`) as it was called. Make variables once, in `__init__` of a module, where the "
        "strategy, the optimizer and the checkpoint can see them: move it there."
    )


def _refused_keras(who: str, what: str) -> ConfigurationError | None:
    """Returns an error if a Keras layer is in the call stack, else `None`. `what` is the new variable's name."""
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
        f"{who} calls a layer of Keras (`{layer}`){where}, which makes its variables (`{what}`) at its first call, "
        "where neither the strategy nor the optimizer or a checkpoint can see them. Build the network from "
        "`core.layers`, or from `tf.Variable`s in `__init__` of a `core.module.Module`. See "
        "docs/coming-from.md#from-keras."
    )


@contextlib.contextmanager
def no_synchronisation(name: str) -> Iterator[None]:
    """For phases without `mixes_rows`: code in its `with` block may neither sum over replicas nor gather rows."""

    def refuse(sums: Any) -> Any:
        raise ConfigurationError(
            f"a layer of phase `{name}` sums over the replicas (`sync=True`), so that rows depend on each other: set "
            "`mixes_rows=True` on the phase. Its replicas then take each microbatch together."
        )

    with summing_over_replicas(refuse), sharing_rows(_RefusedRows(name)):
        yield


class _RefusedRows:
    """The rows of a phase without `mixes_rows`: gathering them raises a `ConfigurationError`."""

    def __init__(self, name: str):
        self.name = name

    def all(self, x: tf.Tensor) -> tf.Tensor:
        raise ConfigurationError(
            f"phase `{self.name}` gathers the rows of all replicas (`all_rows`, which contrastive losses call), so "
            "that rows depend on each other: set `mixes_rows=True` on the phase. Its replicas then take each "
            "microbatch together."
        )

    own = all


@contextlib.contextmanager
def no_rng_in_evaluation() -> Iterator[None]:
    """Raises a `ConfigurationError` if `evaluate` draws from its `rng`, which is `None`."""
    try:
        yield
    except AttributeError as error:
        if error.obj is not None or error.name not in dir(Rng):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"`evaluate` asks for `rng.{error.name}` at {os.path.basename(frame.filename)}:{frame.lineno} "
            f"(`{frame.line}`), but `rng` is `None` in evaluation, which makes layers deterministic. Draw nothing "
            "if `rng is None`, or pass `Rng.from_seed(0)` if evaluation needs random numbers."
        ) from error


@contextlib.contextmanager
def no_mixed_dtypes(who: str, dtype: tf.DType) -> Iterator[None]:
    """Raises a `ConfigurationError` if code in its context mixes `dtype`, in which it computes, with float32."""
    try:
        yield
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        text = str(error)
        if dtype == tf.float32 or not (dtype.name in text and "float" in text.replace(dtype.name, "")):
            raise
        own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((CORE, TENSORFLOW))]
        where = f" {said(own[-1])}" if own else ""
        raise ConfigurationError(
            f"{who} computes in {dtype.name}, as `Trainer.precision` says, but mixes that with float32{where}. Give "
            "variables and constants the dtype of the other operand, `tf.cast(w, x.dtype)`; or keep the phase in "
            f"float32. TensorFlow says: {text.splitlines()[0][:300]}"
        ) from error


def refuse_mixed_rows(evaluate: Callable[[Batch], Loss], batch: Batch) -> None:
    """Raises an error unless `evaluate(batch)` equals evaluating the first row and the other rows separately."""
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
                f"`evaluate` mixes rows: {name} of an example changes with the other rows (by {gap:.2g}), as a phase's "
                "`mixes_rows=True` says. On several replicas it would see the rows of one only: compare with the rows "
                "of all, `all_rows(x)` from `core.task`, or evaluate each example separately."
            )


def _figures_by_row(loss: Loss) -> dict[str, tf.Tensor]:
    """Returns the per-example values of `loss` by name, zero where the weight is zero. Additive states are left out."""
    weight = tf.ones_like(loss.per_example) if loss.weight is None else loss.weight
    metrics = {f"the metric `{name}`": x for name, x in loss.metrics.items() if tf.is_tensor(x)}
    figures = {"the loss": loss.per_example, "the weight": weight, **metrics}
    return {name: tf.where(weight != 0, tf.cast(x, tf.float32), 0.0) for name, x in figures.items()}


def refuse_missing_gradients(gradients: Mapping[str, Any], name: str) -> None:
    """Raises an error if a gradient is `None`. It names the variable and the phase `name`."""
    missing = [path for path, gradient in gradients.items() if gradient is None]
    if missing:
        raise ValueError(
            f"phase `{name}` trains {listed(missing)}, but its loss doesn't depend on "
            f"{'it' if len(missing) == 1 else 'them'} (the gradient is None). Use "
            f"{'it' if len(missing) == 1 else 'them'} in the loss, or leave {'it' if len(missing) == 1 else 'them'} "
            "out of `trains`. `tf.stop_gradient`, an integer cast or `argmax` on the way also cuts a gradient off."
        )
