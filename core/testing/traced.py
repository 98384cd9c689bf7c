"""Traces a task's step function once on a whole batch, so that assertions can call it with other batches.

    step = steps(task, batch)[0]
    seen = step()                                  # losses, gradients, and what was compared with what on the way
    other = step({**step.batch, "label": labels})  # the same step of another batch

Each call recomputes the outputs of earlier phases for its batch. No variable is written.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from core.graphs import everything, maker
from core.precision import EVALUATE, FLOAT32, Narrowing, Precision, widened
from core.random import Rng, RowRng, noticing_draws
from core.task import Batch, Compute, Loss, Task, Update
from core.task.guards import no_new_variables
from core.task.inputs import Inputs
from core.task.loss import checked, weighted_sums
from core.testing.batch import HALFWAY, NEAR_THE_ENDS, as_tensors
from core.testing.operations import VARIABLE, is_over_time, sources
from core.tracing import no_python_values

Arrays = Mapping[str, Any]
NARROW = (tf.bfloat16, tf.float16)  # the narrowest first
FOLDS = 1 << 63  # Philox counters from here on make other `Rng`s


@dataclasses.dataclass(frozen=True)
class Comparison:
    """An operation that compares two tensors, a prediction and its target."""

    op: Any
    prediction: Any  # tensors of the trace, or the values of one call
    target: Any


@dataclasses.dataclass(frozen=True)
class Draw:
    """An operation that draws random numbers."""

    op: Any
    key: Any
    counter: Any
    again: bool = False  # whether it repeats another draw on purpose


@dataclasses.dataclass(frozen=True)
class Seen:
    """The results of one call of a `Step`, as arrays."""

    per_example: Any
    weight: Any  # ones if the loss has none
    figures: Sequence[Any]  # sums of the loss and all metrics
    gradients: Arrays  # of the weighted mean, by path
    comparisons: Sequence[Comparison]
    sums: Sequence[tuple[Any, Any]]  # tensors reduced over positions, `[rows, time]`, and the results
    draws: Sequence[Draw]  # without those that `fold` makes

    @property
    def mean(self) -> float:
        """Returns the loss that is trained: the weighted mean over examples."""
        return float(self.sums_with([])[0])

    def sums_with(self, signs: Any) -> Any:
        """Returns the mean loss. For each of `signs`, adds the mean of the losses times these signs."""
        counts = self.weight != 0.0
        parts = np.where(counts, self.weight * self.per_example, 0.0).astype(np.float64)
        total = np.sum(self.weight, dtype=np.float64) or 1.0
        return np.array([np.sum(parts), *(np.sum(parts * each) for each in signs)]) / total


class Step:
    """A traced update of a task. If `phase` is None, it is the traced evaluation."""

    def __init__(
        self,
        task: Task,
        phase: Update | None,
        batch: Batch,
        *,
        seed: int = 0,
        moment: Any = HALFWAY,
        precision: Precision = FLOAT32,
    ):
        self.task, self.phase, self.seed, self.moment, self.precision = task, phase, seed, moment, precision
        self.batch = as_tensors(batch)
        self.rows = len(next(iter(self.batch.values())))
        self.name = f"phase `{phase.name}`" if phase else "`evaluate`"
        self.variables = phase.variables() if phase else {}
        self.rng = Rng.from_seed(seed, **{**moment, "step": moment["step"] + seed})._replace(num_rows=self.rows)
        self.makes_statistics = False
        traced = tf.function(self._trace, autograph=False)
        with no_python_values(self.name), noticing_draws() as drawn:
            signs = tf.TensorSpec(None)  # with the shape of the losses, which is unknown before tracing
            self.function = traced.get_concrete_function(self.batch, self.rng.seed, tf.range(self.rows), signs)
        self.captured = list(self.function.variables)
        self.again = {words.op for words in drawn.meant()}

    @property
    def mixes_rows(self) -> bool:
        """Says whether this phase or an earlier one declares `mixes_rows`."""
        return any(phase.mixes_rows for phase in self._so_far())

    @property
    def keeps_history(self) -> bool:
        """Says whether an earlier phase returns rows of previous steps."""
        return any(isinstance(phase, Compute) and phase.state is not None for phase in self._so_far())

    def hangs_on(self, feature: str, *, loss_only: bool = False) -> bool:
        """Says whether the loss depends on a feature of the batch. Unless `loss_only`, metrics count too."""
        figures = [self.loss.per_example, self.loss.weight]
        figures += [] if loss_only else tf.nest.flatten(self.loss.metrics)
        return any(feature in self.sources[x.op.name] for x in figures if x is not None)

    def __call__(
        self, batch: Batch | None = None, *, order: Sequence[int] | None = None, seed: int = 0, signs: Any = 1.0
    ) -> Seen:
        """Runs the trace on `batch`, by default the traced one. `order` permutes the rows of random draws.

        The gradients are those of the weighted mean of the losses times `signs`.
        """
        key = self.rng.seed if not seed else Rng.from_seed(seed).seed
        places = tf.range(self.rows) if order is None else tf.constant(order)
        signs = tf.constant(signs, tf.float32)
        values = self.function(self.batch if batch is None else as_tensors(batch), key, places, signs)
        per_example, weight, figures, gradients, pairs, sums, draws = tf.nest.map_structure(lambda x: x.numpy(), values)
        return Seen(
            per_example,
            weight,
            tf.nest.flatten(figures),
            gradients,
            [Comparison(c.op, *pair) for c, pair in zip(self.comparisons, pairs, strict=True)],
            sums,
            [
                Draw(d.op, key, counter, d.op in self.again)
                for d, (key, counter) in zip(self.draws, draws, strict=True)
                if int(np.ravel(counter)[0]) < FOLDS
            ],
        )

    def eager(self, batch: Batch | None = None, *, first_row: int = 0) -> Loss:
        """Calls the step function without a trace. `batch` may be a part, and `first_row` its first row's number."""
        values = self.batch if batch is None else batch
        rows = len(next(iter(values.values())))
        return self._loss(dict(values), self.rng._replace(first_row=first_row, num_rows=rows))

    def _trace(self, batch: Batch, seed: tf.Tensor, order: tf.Tensor, signs: tf.Tensor) -> Any:
        graph = tf.compat.v1.get_default_graph()
        moment = self.rng.moment and self.rng.moment._replace(step=self.moment["step"] + tf.cast(seed[0], tf.int64))
        rng: Rng = _in_order(order)(*self.rng)._replace(seed=seed, moment=moment)
        with tf.GradientTape() as tape, no_new_variables(self.name):
            loss = self._loss(dict(batch), rng)
            _, figures = weighted_sums(loss)
            operations = graph.get_operations()
            signed = tf.cast(signs, loss.per_example.dtype) * loss.per_example
            signed.set_shape(loss.per_example.shape)
            objective, _ = weighted_sums(loss._replace(per_example=signed))
            mean = tf.math.divide_no_nan(objective, figures["weight"])
        self.loss = loss
        self.operations = operations[self._first :]
        self.sources = sources(operations, batch)
        self.makes_statistics = bool(loss.statistics and loss.statistics.layers)
        self.comparisons = [c for op in self.operations if (c := self._comparison(op)) is not None]
        self.sums = [(op.inputs[0], op.outputs[0]) for op in self.operations if is_over_time(op, self.rows)]
        self.draws = [
            Draw(op, *op.inputs[1:3])
            for op in operations
            if op.type.startswith("StatelessRandom") and op.type.endswith("V2") and len(op.inputs) >= 3
        ]
        with Narrowing(self.dtype).computing():
            gradients = tape.gradient(mean, self.variables)
        missing = [path for path, gradient in gradients.items() if gradient is None]
        assert not missing, (
            f"{self.name} trains {', '.join(f'`{path}`' for path in missing)}, but its loss doesn't depend on "
            f"{'it' if len(missing) == 1 else 'them'} (the gradient is None). Look for `tf.stop_gradient`, rounding, "
            "`argmax`, a cast to integers or NumPy on the way; what isn't part of this loss doesn't belong in `trains`."
        )
        weight = tf.ones_like(loss.per_example) if loss.weight is None else tf.cast(loss.weight, tf.float32)
        pairs = [(c.prediction, c.target) for c in self.comparisons]
        draws = [(d.key, d.counter) for d in self.draws]
        dense = {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}
        return tf.cast(loss.per_example, tf.float32), weight, figures, dense, pairs, self.sums, draws

    def _loss(self, values: dict[str, tf.Tensor], rng: Rng) -> Loss:
        rows = len(next(iter(values.values()))) if tf.executing_eagerly() else self.rows
        if self.phase is None:
            self._begin()
            narrowing = self._narrowing(EVALUATE, values, {})
            with narrowing.computing():
                inputs = Inputs(narrowing.narrowed(values), EVALUATE, {}, set())
                return checked(self.task.evaluate(inputs), EVALUATE, rows)
        made_in = dict[str, tf.DType]()
        for phase in self._so_far():
            narrowing = self._narrowing(phase.name, values, made_in)
            inputs = Inputs(narrowing.narrowed(values), phase.name, {}, set())
            own = rng.fold(phase.name)._replace(dtype=narrowing.dtype)
            with narrowing.computing():
                if phase.name == self.phase.name:
                    self._begin()
                    return checked(phase.loss(inputs, own), phase.name, rows)
                made = phase.outputs(inputs, own) if isinstance(phase, Compute) else phase.loss(inputs, own).outputs
            stopped = phase.name != self.phase.through
            values |= tf.nest.map_structure(tf.stop_gradient, dict(made)) if stopped else made
            made_in |= dict.fromkeys(made, narrowing.dtype)
        raise AssertionError(f"{self.name} isn't a phase of the task")

    def _narrowing(self, name: str, values: Batch, made_in: Mapping[str, tf.DType]) -> Narrowing:
        history = any(isinstance(p, Compute) and p.state is not None and p.name == name for p in self._so_far())
        specs = {key: tf.TensorSpec(x.shape, x.dtype) for key, x in values.items()}
        return (FLOAT32 if history else self.precision).narrowing(name, specs, made_in)

    @property
    def dtype(self) -> tf.DType:
        """Returns the dtype in which the engine would let the step compute."""
        return self.precision.of(self.phase.name if self.phase else EVALUATE)

    @property
    def narrow(self) -> tf.DType | None:
        """Returns the narrowest dtype in which operations of the step compute, or `None` if that is float32."""
        found = {x.dtype for op in everything(self.operations) for x in op.outputs}
        return next((dtype for dtype in NARROW if dtype in found), None)

    def widened(self) -> "Step | None":
        """Traces the step again in float32, even its own casts. If narrow values remain, it returns `None`."""
        batch = {key: widened(x) for key, x in self.batch.items()}
        try:
            with casting_wide():
                step = Step(self.task, self.phase, batch, seed=self.seed, moment=self.moment)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError):  # two dtypes in one operation
            return None
        return None if step.narrow else step

    def _begin(self) -> None:
        """Stores the number of operations traced before this step."""
        if not tf.executing_eagerly():
            self._first = len(tf.compat.v1.get_default_graph().get_operations())

    def _so_far(self) -> list[Any]:
        phases = list(self.task.phases()) if self.phase else []
        names = [phase.name for phase in phases]
        return phases[: names.index(self.phase.name) + 1] if self.phase else []

    def _comparison(self, op: Any) -> Comparison | None:
        """Returns `op` as a `Comparison` if one of its two inputs depends on variables and the other doesn't."""
        if op.type in ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"):
            return Comparison(op, *op.inputs)
        soft = op.type == "Mul" and any(maker(x).type == "LogSoftmax" for x in op.inputs)
        if not soft and op.type not in ("Sub", "SquaredDifference"):
            return None
        one, other = op.inputs
        learnt = [VARIABLE in self.sources[x.op.name] for x in (one, other)]
        if learnt[0] == learnt[1] or one.shape != other.shape or (one.shape.rank or 0) < 1:
            return None
        return Comparison(op, one, other) if learnt[0] else Comparison(op, other, one)


def steps(task: Task, batch: Batch, *, seed: int = 0, precision: Precision = FLOAT32) -> list[Step]:
    """Traces each update of `task`, and its evaluation if it has one."""
    phases: list[Update | None] = [phase for phase in task.phases() if isinstance(phase, Update)]
    if type(task).evaluate is not Task.evaluate:
        phases.append(None)
    return [Step(task, phase, batch, seed=seed, precision=precision) for phase in phases]


@contextlib.contextmanager
def casting_wide() -> Iterator[None]:
    """In its context, `tf.cast` to bfloat16 or float16 returns float32."""
    cast = tf.cast

    def wide(x: Any, dtype: Any, name: str | None = None) -> Any:
        return cast(x, tf.float32 if tf.as_dtype(dtype) in NARROW else dtype, name)

    with mock.patch.object(tf, "cast", wide):
        yield


def near_the_ends(made: Sequence[Step]) -> Iterator[Step]:
    """Yields each step of `made` traced near the start and near the end of a run. Annealed terms differ there."""
    for moment in NEAR_THE_ENDS:
        for step in made:
            yield Step(step.task, step.phase, step.batch, moment=moment, precision=step.precision)


def _in_order(order: tf.Tensor) -> type[Rng]:
    """Returns a subclass of `Rng` whose draws per row are permuted by `order`."""

    class Rows(RowRng):
        def bits(self, *shape: Any) -> tf.Tensor:
            return tf.gather(super().bits(*shape), order)

    class Ordered(Rng):
        @property
        def rows(self) -> RowRng:
            return Rows(self)

    return Ordered
