"""The engine in one file: replicas, microbatches, one reduction, one division, chunks, placements, exact resume.

Nothing of `core.engine` or `core.distribution` is used. The engine adds what a run needs besides: errors for mistakes,
normalisation over rows, meshes, parameter servers, XLA, sparse gradients, reduced communication.

    trainer = Essence(make_task, source, tf.distribute.MirroredStrategy(), global_batch_size=64)
    trainer.restore("run.npz")  # resumes, if it exists
    trainer.train(1000)
    trainer.save("run.npz")
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from core.data import PerReplica, Source, train_chunks
from core.module import named_variables
from core.optimizers import Optimizer
from core.random import Moment, Rng
from core.task import Batch, Compute, Phase, Task, Update
from core.task.loss import weighted_sums

Values = Mapping[str, Any]  # features, [microbatches, rows, ...], of which each replica has its own rows
Sums = Mapping[str, tf.Tensor]  # "weight", "loss" and metrics, summed over examples


class Essence:
    """A task with everything that its training needs: variables, optimizers, a step, a chunk of steps, a checkpoint."""

    def __init__(
        self,
        make_task: Callable[[], Task],
        source: Source,
        strategy: tf.distribute.Strategy,
        *,
        global_batch_size: int,
        microbatches: int = 1,
        chunk_steps: int = 10,
        seed: int = 0,
    ):
        self.source, self.strategy, self.replicas = source, strategy, strategy.num_replicas_in_sync
        self.size, self.microbatches, self.chunk_steps = global_batch_size, microbatches, chunk_steps
        self.seed, self.rng = seed, Rng.from_seed(seed).fold("train")
        with strategy.scope():  # so each replica has a copy of each variable, and all copies start equal
            self.task = make_task()
            self.phases = list(self.task.phases())
            self._refuse_what_the_engine_adds()
            updates = [phase for phase in self.phases if isinstance(phase, Update)]
            self.optimizers = {phase.name: Optimizer(phase.optimizer, phase.variables()) for phase in updates}
        self.step = 0
        self._chunk = tf.function(self._take_steps, autograph=False)

    def _refuse_what_the_engine_adds(self) -> None:
        for phase in self.phases:
            if phase.mixes_rows or phase.microbatches or getattr(phase, "state", None):
                raise NotImplementedError(f"phase `{phase.name}` mixes rows, has its own microbatches or keeps history")

    # --- one step: its phases in order -------------------------------------------------------------------------------

    def _step(self, values: Values, index: tf.Tensor) -> tuple[tf.Tensor, dict[str, Sums]]:
        """Returns whether all losses of step `index` were finite, and the sums of each update."""
        healthy, sums, values = tf.constant(True), dict[str, Sums](), dict(values)
        for phase in self.phases:
            due = tf.equal(index % phase.every, 0)
            if isinstance(phase, Compute):
                values |= self._compute(phase, values, index)  # later phases find it in their batch
            else:
                healthy, sums[phase.name] = self._update(phase, values, index, due, healthy)
        return healthy, sums

    def _compute(self, phase: Compute, values: Values, index: tf.Tensor) -> dict[str, Any]:
        """Returns the outputs of a forward pass, spread over the replicas like the batch."""

        def passed(values: Values) -> dict[str, tf.Tensor]:
            made = [phase.fn(batch, rng(phase)) for batch, rng in self._microbatches(phase, values, index)]
            return {key: tf.stack([outputs[key] for outputs in made]) for key in made[0]}

        outputs = self._where(phase, passed, values)
        return outputs if self._everywhere(phase) else {key: self._spread(x) for key, x in outputs.items()}

    def _update(
        self, phase: Update, values: Values, index: tf.Tensor, due: tf.Tensor, healthy: tf.Tensor
    ) -> tuple[tf.Tensor, Sums]:
        """Sums over microbatches, then once over replicas; divides once; writes, unless something isn't finite."""
        optimizer = self.optimizers[phase.name]

        def added(values: Values) -> Any:
            parts = [self._gradients(phase, batch, rng) for batch, rng in self._microbatches(phase, values, index)]
            return tf.nest.map_structure(lambda *xs: sum(xs[1:], xs[0]), *parts)

        def written(gradients: Mapping[str, tf.Tensor], sums: Sums) -> tuple[tf.Tensor, Sums]:
            if self._everywhere(phase) and self.replicas > 1:  # the one reduction: of sums, which add over replicas
                context = tf.distribute.get_replica_context()
                gradients, sums = context.all_reduce(tf.distribute.ReduceOp.SUM, (gradients, dict(sums)))
            mean = tf.math.divide_no_nan(1.0, sums["weight"])
            finite = tf.math.is_finite(sums["loss"]) | ~due
            optimizer.apply(
                {path: gradient * mean for path, gradient in gradients.items()},
                value=sums["loss"] * mean,
                apply_if=healthy & finite & due & (sums["weight"] > 0.0),
            )
            return healthy & finite, {name: tf.where(due, x, 0.0) for name, x in sums.items()}

        # Every replica writes, even if one device computed it: so all copies of a variable stay equal.
        return self._first(self.strategy.run(written, args=self._where(phase, added, values)))

    def _gradients(self, phase: Update, batch: Batch, rng: Callable[[Phase], Rng]) -> Any:
        """Returns the gradients of the *sum* of a microbatch's losses, and its sums: only sums can be added up."""
        parameters = dict(self.optimizers[phase.name].parameters)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(parameters.values()))
            if phase.through:  # recomputes the forward pass under the tape
                source = next(each for each in self.phases if each.name == phase.through)
                batch = {**batch, **source.outputs(batch, rng(source))}
            loss = phase.loss(batch, rng(phase))
            total, sums = weighted_sums(loss)
        if loss.statistics or loss.outputs:
            raise NotImplementedError(f"phase `{phase.name}` returns statistics or outputs, which the engine commits")
        gradients = tape.gradient(total, parameters)
        return {path: tf.convert_to_tensor(gradient) for path, gradient in gradients.items()}, sums

    def _microbatches(self, phase: Phase, values: Values, index: tf.Tensor) -> Iterator[Any]:
        """Yields each microbatch, and a function that gives a phase the random numbers of these rows."""
        everywhere = self._everywhere(phase)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group if everywhere else 0
        together = self.size // self.microbatches  # rows of a microbatch on all replicas
        rows = together // self.replicas if everywhere else together
        for m in range(self.microbatches):

            def rng(phase: Phase, first: Any = m * together + replica * rows) -> Rng:
                mine = self.rng.fold(index).fold(phase.name)
                return mine._replace(first_row=first, num_rows=rows, moment=Moment(index, None))

            yield {key: x[m] for key, x in values.items()}, rng

    # --- placement ---------------------------------------------------------------------------------------------------

    def _everywhere(self, phase: Phase) -> bool:
        return phase.placement.on_every_replica(self.size)

    def _where(self, phase: Phase, fn: Callable[[Values], Any], values: Values) -> Any:
        """Calls `fn` on every replica with its rows, or once, on one device, with all rows."""
        if self._everywhere(phase):
            return self.strategy.run(fn, args=(values,))
        with tf.device(self.strategy.extended.worker_devices[0]):
            return fn({key: self._gathered(x) for key, x in values.items()})

    def _gathered(self, value: Any) -> tf.Tensor:
        return tf.concat(self.strategy.experimental_local_results(value), axis=1)

    def _spread(self, value: tf.Tensor) -> Any:
        rows = value.shape[1] // self.replicas
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: value[:, context.replica_id_in_sync_group * rows :][:, :rows]
        )

    def _first(self, values: Any) -> Any:
        return tf.nest.map_structure(lambda x: self.strategy.experimental_local_results(x)[0], values)

    # --- a chunk: many steps for one call from Python ----------------------------------------------------------------

    def _take_steps(self, chunk: Values, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Takes the steps from `place[1]` to before `place[2]` of the chunk whose first is `place[0]`.

        Returns the next step, whether all were finite (it stops after one that isn't), and the sums of all.
        """
        first, begin, end = tf.unstack(place)

        def take(index: tf.Tensor) -> tuple[tf.Tensor, dict[str, Sums]]:
            values = self.strategy.run(lambda x, i: {key: tf.gather(x[key], i) for key in x}, (chunk, index - first))
            return self._step(values, index)

        def go_on(index: tf.Tensor, healthy: tf.Tensor, so_far: Any) -> Any:
            healthy, sums = take(index)
            return index + 1, healthy, tf.nest.map_structure(tf.add, so_far, sums)

        start = (begin + 1, *take(begin))  # outside the loop, which needs the structure
        return tf.while_loop(lambda index, healthy, _: healthy & (index < end), go_on, start)

    def train(self, until: int) -> dict[str, dict[str, float]]:
        """Trains until a step; returns the mean of each metric since the call."""
        total: Any = None
        chunks = PerReplica(
            lambda replica: train_chunks(
                self.source,
                global_batch_size=self.size,
                microbatches=self.microbatches,
                chunk_steps=self.chunk_steps,
                first_step=self.step,  # the data is a function of the step: nothing else needs resuming
                seed=self.seed,
                replicas=self.replicas,
                replica=replica,
            ),
            self.strategy,
        )
        for chunk in chunks:
            if self.step >= until:
                break
            first = self.step // self.chunk_steps * self.chunk_steps  # chunks are aligned, wherever a run begins
            place = tf.constant([first, self.step, min(first + self.chunk_steps, until)], tf.int64)
            index, healthy, sums = self._chunk(chunk, place)
            if not healthy:
                raise FloatingPointError(f"step {int(index) - 1} isn't finite; the variables are those before it")
            self.step = int(index)
            total = sums if total is None else tf.nest.map_structure(tf.add, total, sums)
        return {
            name: {key: float(x / sums["weight"]) for key, x in sums.items() if key != "weight"}
            for name, sums in (total or {}).items()
        }

    # --- a checkpoint: all variables, and the step -------------------------------------------------------------------

    def variables(self) -> dict[str, tf.Variable]:
        """Returns everything that training changes, by path."""
        found = {f"task/{path}": variable for path, variable in named_variables(self.task).items()}
        for phase, optimizer in self.optimizers.items():
            found |= {f"optimizer/{phase}/{path}": variable for path, variable in optimizer.variables.items()}
        return found

    def save(self, path: Path) -> None:
        """Writes a checkpoint atomically."""
        path = Path(path)
        beside = path.with_suffix(".part.npz")
        np.savez(beside, step=self.step, **{name: v.numpy() for name, v in self.variables().items()})
        os.replace(beside, path)

    def restore(self, path: Path) -> None:
        """Resumes from a checkpoint, if there is one: the results have the bits of a run that never stopped."""
        if Path(path).exists():
            with np.load(path) as kept:
                self.step = int(kept["step"])
                for name, variable in self.variables().items():
                    variable.assign(kept[name])
