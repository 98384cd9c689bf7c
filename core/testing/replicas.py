"""Trains a task on several replicas with the trainer's engine, and returns variables, metrics and collectives.

assembly = assemble(make_task, on_virtual_cpus(4), seed=0)
outcome = Run(assembly, batch, microbatches=2).train(steps=20)
outcome.variables["net/w"], outcome.figures["net/loss"], outcome.collectives
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core import engine
from core.distribution import backend_of
from core.distribution.ledger import Collective
from core.distribution.virtual_devices import make_virtual_cpus
from core.engine import Assembly, StepResult, TrainStep
from core.parallel.mesh.plan import mesh
from core.parallel.mesh.strategy import MeshStrategy
from core.random import Rng
from core.task import Batch, Placement, Task
from core.task.loss import GRADIENT_NORM, means
from core.testing.batch import as_tensors

Factory = Callable[..., Task]  # called with `rng=`, inside the strategy's scope
Values = Mapping[str, npt.NDArray[np.float64]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of training for some steps: variables, metrics, gradient norms and collectives."""

    replicas: int
    microbatches: int
    steps: int
    variables: Values  # by path, the optimizers' included
    figures: Values  # metrics of forward passes, by phase and name: one of each step
    norms: Values  # of gradients, by phase: one of each step
    collectives: Sequence[Collective]  # of one step
    devices: str = ""  # as `2 replicas`, or `a mesh of 2x2 devices`

    @property
    def where(self) -> str:
        """Returns a text that says where it was trained, such as `2 replicas and 4 microbatches`."""
        return describe(self.replicas, self.microbatches, self.devices)


def on_virtual_cpus(replicas: int) -> tf.distribute.Strategy:
    """Makes a strategy with this number of replicas, each on a virtual device of this machine's CPU."""
    make_virtual_cpus(replicas)
    devices = [f"CPU:{i}" for i in range(replicas)]
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def on_virtual_mesh(
    batch: int, model: int, layouts: Sequence[tuple[str, str]] = (), **others: Sequence[tuple[str, str]]
) -> MeshStrategy:
    """Makes a mesh of `batch` x `model` virtual CPU devices. `others` are further arguments of `mesh`."""
    return MeshStrategy(mesh(batch=batch, model=model, layouts=layouts, **others), virtual=True)


def assemble(
    factory: Factory,
    strategy: tf.distribute.Strategy,
    *,
    placements: Mapping[str, Placement] = {},
    one_device: Sequence[str] = (),
    seed: int = 0,
) -> Assembly:
    """Calls `factory(rng=...)` under the strategy, and assembles the task's step as an experiment does."""
    assert not isinstance(factory, Task), (
        f"`task` is a finished `{type(factory).__name__}`, but each number of replicas needs one of its own, made in "
        "its own scope. Give what makes one: the class, or "
        f"`functools.partial({type(factory).__name__}, optimizer=...)`."
    )
    rng = Rng.from_seed(seed).fold("init")
    return engine.assemble(lambda: factory(rng=rng), strategy, placements=placements, one_device=one_device)


class Run:
    """The traced training step of `assembly` on one batch, `{name: [rows, ...]}`. `settings` go to `TrainStep`.

    `steps` is the length of the run. `rng.progress` is the completed fraction of it.
    """

    def __init__(
        self,
        assembly: Assembly,
        batch: Batch,
        *,
        microbatches: int = 1,
        seed: int = 0,
        steps: int = 1000,
        **settings: Any,
    ):
        self.strategy = assembly.strategy
        self.microbatches = microbatches
        self._values, spec = _spread(batch, self.strategy, microbatches)
        self.step = TrainStep(assembly, spec, seed=seed, steps=steps, **settings)
        variables = {**assembly.variables, **self.step.scale_variables}
        self.variables = {path.removeprefix("task/"): v for path, v in variables.items()}
        backend = self.step.backend
        function = tf.function(lambda values, index: self.step(values, backend.taken(index, tf.int64)), autograph=False)
        self.traced = function.get_concrete_function(self._values, backend.handed(tf.constant(0, tf.int64)))
        self._program = backend.program(self.traced, self.step.exchange.ledger)

    @property
    def collectives(self) -> Sequence[Collective]:
        """Returns the collectives that one step makes. On a mesh, they are known after the first call."""
        return self.step.exchange.ledger.collectives

    def __call__(self, i: int) -> StepResult:
        result: StepResult = self._program(self._values, self.step.backend.handed(tf.constant(i, tf.int64)))
        return result

    def train(self, steps: int, *, first: int = 0) -> Outcome:
        """Trains for `steps` steps on one batch. If replicas differ in a bit afterwards, it raises an error."""
        where = describe(self.step.exchange.replicas, self.microbatches)
        lines, norms = [], []
        for i in range(first, first + steps):
            result = self(i)
            lines.append(_figures(result))
            norms.append({phase: means(sums)[GRADIENT_NORM] for phase, sums in result.sums.items()})
            assert bool(result.healthy), (
                f"step {i} isn't finite on {where}; its figures are "
                f"{', '.join(f'`{name}` {x:.4g}' for name, x in lines[-1].items())}. Look for a division, logarithm or "
                "square root of zero, or a learning rate that is too high."
            )
        for path, variable in self.variables.items():
            _assert_equal_bits(path, self.strategy.experimental_local_results(variable))
        return Outcome(
            self.step.exchange.replicas,
            self.microbatches,
            steps,
            {path: variable.numpy().astype(np.float64) for path, variable in self.variables.items()},
            {name: np.array([line[name] for line in lines]) for name in lines[0]},
            {name: np.array([norm[name] for norm in norms]) for name in norms[0]},
            self.collectives,
            str(self.step.backend),
        )


def describe(replicas: int, microbatches: int, devices: str = "") -> str:
    """Returns `2 replicas`, or `1 replica and 4 microbatches`."""
    text = devices or f"{replicas} replica{'s' if replicas > 1 else ''}"
    return text + (f" and {microbatches} microbatches" if microbatches > 1 else "")


def _spread(
    batch: Batch, strategy: tf.distribute.Strategy, microbatches: int
) -> tuple[dict[str, Any], dict[str, tf.TensorSpec]]:
    """Splits each feature [rows, ...] into [microbatches, rows, ...] on each replica, as the trainer does."""
    replicas = strategy.num_replicas_in_sync
    tensors = as_tensors(batch)
    lengths = {key: x.shape[0] if x.shape.rank else 0 for key, x in tensors.items()}
    rows = min(lengths.values(), default=0)
    assert 0 < rows == max(lengths.values()), (
        f"the values of `batch` have these lengths: {lengths}; each is `[rows, ...]`, of the same rows."
    )
    assert rows % (replicas * microbatches) == 0, (
        f"`batch` has {rows} rows, which {describe(replicas, microbatches)} can't share evenly: give a multiple of "
        f"{replicas * microbatches}."
    )
    backend_of(strategy).check_rows(rows, microbatches, what="the number of rows of `batch`")
    own = rows // (replicas * microbatches)
    cut = {key: tf.reshape(x, [microbatches, replicas, own, *x.shape[1:]]) for key, x in tensors.items()}
    spec = {key: tf.TensorSpec([microbatches, own, *x.shape[1:]], x.dtype) for key, x in tensors.items()}

    def part(context: Any) -> dict[str, tf.Tensor]:
        return {key: x[:, context.replica_id_in_sync_group] for key, x in cut.items()}

    return strategy.experimental_distribute_values_from_function(part), spec


def _figures(result: StepResult) -> dict[str, float]:
    """Returns the metrics of one step's forward passes: `{"phase/name": number}`."""
    found = {}
    for phase, sums in result.sums.items():
        forward = {name: x for name, x in means(sums).items() if name != GRADIENT_NORM}
        for name, x in {"weight": float(sums["weight"]), **forward}.items():
            found[f"{phase}/{name}"] = x
    return found


def _assert_equal_bits(path: str, components: Sequence[tf.Variable]) -> None:
    first = components[0].numpy()
    for i, component in enumerate(components[1:], 1):
        other = component.numpy()
        assert first.tobytes() == other.tobytes(), (
            f"replica {i} no longer holds the `{path}` of replica 0: they differ by "
            f"{np.max(np.abs(other.astype(np.float64) - first.astype(np.float64))):.2g}. Look for a step function that "
            "assigns a variable itself, or draws numbers from anywhere but its `rng`."
        )
