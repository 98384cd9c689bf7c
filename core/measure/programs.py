"""Versions of a training step without one part. The time that a version saves is the time of that part.

Each version is the engine's step with some objects replaced. To omit the update, an optimizer writes nothing. To omit
the backward pass, one dummy variable takes the place of the parameters. To omit the collectives, the exchange is
silent. TensorFlow can't prune more than that, because metrics depend on the rest.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from core.distribution.backend import Backend
from core.distribution.exchange import Exchange, replica_here
from core.distribution.silent_exchange import SilentExchange
from core.engine import Assembly, Progress, StepResult, TrainStep, make_chunk
from core.module import Module
from core.optimizers import Optimizer, frozen
from core.random import Rng
from core.task import Batch, Loss, Phase, Update


class Program:
    """A traced chunk of training steps, ready to be timed."""

    def __init__(self, run: Callable[[Batch, tf.Tensor], object], progress: Progress, backend: Backend):
        self.progress, self._backend, self._run = progress, backend, run

    def seconds(self, stacked: Batch, steps: int, *, first: int = 0) -> float:
        """Runs `steps` steps of the chunk `stacked`, the first of which is `first`. Returns the seconds."""
        place = self._backend.handed(tf.constant([first, first, first + steps], tf.int64))
        began = time.perf_counter()
        self._run(stacked, place)
        self.progress.bad_step.numpy()
        return time.perf_counter() - began


@dataclasses.dataclass(frozen=True)
class Whole:
    """The complete training step, and the spec of its chunks."""

    assembly: Assembly
    step: TrainStep
    batch_spec: Mapping[str, tf.TensorSpec]
    chunk_spec: Any
    steps: int
    seed: int

    def program(self, assembly: Assembly, exchange: Exchange) -> Program:
        """Makes the program of a step with another `assembly` (other optimizers, for example) and `exchange`."""
        step = _EndlessStep(
            assembly,
            self.batch_spec,
            seed=self.seed,
            steps=self.steps,
            compile=self._compiled(assembly),
            precision=self.step.precision.given,
            loss_scales=self.step.loss_scales,
            exchange=exchange,
            decode=self.step.decode,
        )
        sums = {name: spec.sums_of_update for name, spec in step.specs.items()}
        progress = Progress(sums, strategy=assembly.strategy)
        chunk = make_chunk(step, self.chunk_spec, progress).get_concrete_function()
        return Program(step.backend.program(chunk, exchange.ledger), progress, step.backend)

    def _compiled(self, assembly: Assembly) -> bool | list[str]:
        """Returns which updates of `assembly` XLA compiles: those that it compiles in the complete step."""
        what, updates = self.step.compiled, (phase.name for phase in assembly.phases if isinstance(phase, Update))
        return what if isinstance(what, bool) else [name for name in updates if name in what]

    def silent(self, *heard: str) -> SilentExchange:
        """Makes an exchange that omits the collectives, except those of the phases named in `heard`."""
        return SilentExchange(self.assembly.strategy, reduce_in=self.step.exchange.reduce_in, heard=heard)


def forward_program(whole: Whole) -> Program:
    """Makes the program that runs only forward passes."""
    phases, optimizers, ids = list[Phase](), dict[str, Optimizer](), {*whole.assembly.one_device_ids}
    variables = dict(whole.assembly.variables)
    for phase, plan in zip(whole.assembly.phases, whole.step.plans, strict=True):
        if isinstance(phase, Update):
            # An update may run on every replica and train a one-device network, through outputs made there.
            apart = not plan.replicated and any(id(variable) in ids for variable in phase.variables().values())
            with tf.device(whole.step.exchange.device) if apart else whole.assembly.strategy.scope():
                nothing = _Nothing()
            optimizers[phase.name] = _Unwritten({"nothing": nothing.x})
            variables[f"nothing/{phase.name}"] = nothing.x
            ids |= {id(nothing.x)} if apart else set()
            phase = _forward_only(phase, nothing)
        phases.append(phase)
    assembly = dataclasses.replace(
        whole.assembly, phases=phases, optimizers=optimizers, variables=variables, one_device_ids=ids
    )
    return whole.program(assembly, whole.silent())


def backward_program(whole: Whole) -> Program:
    """Makes the program that runs forward and backward passes, but neither collectives nor updates."""
    return whole.program(_without_updates(whole.assembly), whole.silent())


def collective_programs(whole: Whole) -> dict[str, Program]:
    """Returns `{phase: program}` in the order of the phases; empty for a step without collectives.

    Each program runs the collectives of its own phase and of all earlier phases. `whole.step` must have been traced:
    the ledger of its collectives names the phases.
    """
    phases = list(dict.fromkeys(entry.phase for entry in whole.step.exchange.ledger.collectives))
    assembly = _without_updates(whole.assembly)
    return {phase: whole.program(assembly, whole.silent(*phases[: i + 1])) for i, phase in enumerate(phases)}


class TurnsExchange(SilentExchange):
    """An exchange that runs replicas one after another, without collectives, and times each replica."""

    def __init__(self, strategy: tf.distribute.Strategy, *, reduce_in: tf.DType | None = None):
        super().__init__(strategy, reduce_in=reduce_in)
        with tf.device(self.device):
            self._seconds = [tf.Variable(0.0, dtype=tf.float64, trainable=False) for _ in range(self.replicas)]
        self._last: tf.Tensor | None = None  # when the previous replica ended

    def seconds(self) -> list[float]:
        """Returns each replica's seconds so far, over all calls."""
        return [float(variable) for variable in self._seconds]

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Calls `fn` on every replica. A replica starts when the previous one has finished."""
        return super().run(lambda *parts: self._timed(fn, *parts), *args)

    def _timed(self, fn: Callable[..., Any], *args: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        before = [self._last] if self._last is not None and self._last.graph is graph else []
        began = _now(tf.nest.flatten(args, expand_composites=True), before)
        with tf.control_dependencies([began]):
            result = fn(*args)
        ended = self._last = _now(tf.nest.flatten(result, expand_composites=True))
        self._seconds[replica_here() or 0].assign_add(ended - began)
        return result


def _now(values: list[Any], before: list[tf.Tensor] = []) -> tf.Tensor:  # noqa: B006  # it is read
    """Returns the host's time in seconds once `values` are computed. A GPU would read its clock too early."""
    with tf.device("CPU:0"):
        seen = [tf.identity(tf.reshape(x, [-1])[:1]) for x in values if tf.is_tensor(x)]
        with tf.control_dependencies([*seen, *before]):
            return tf.timestamp()


def turns_program(whole: Whole) -> tuple[Program, TurnsExchange]:
    """Returns a program whose replicas run one after another, and the exchange that times them."""
    exchange = TurnsExchange(whole.assembly.strategy, reduce_in=whole.step.exchange.reduce_in)
    return whole.program(_without_updates(whole.assembly), exchange), exchange


class _EndlessStep(TrainStep):
    """A step that continues after a loss that isn't finite. Without updates, results are meaningless anyway."""

    def __call__(self, values: Batch, index: tf.Tensor, *, limits: Mapping[str, tf.Tensor] | None = None) -> StepResult:
        return super().__call__(values, index, limits=limits)._replace(healthy=tf.constant(True))


class _Unwritten(Optimizer):
    """An optimizer that writes nothing."""

    def __init__(self, parameters: Mapping[str, tf.Variable]):
        self.parameters, self.transform = dict(parameters), frozen()
        self.averaged_statistics = {}

    def apply(self, gradients: Any, **_: Any) -> None:
        """Ignores the gradients."""


class _Nothing(Module):
    """A module with one variable of value zero. It is trained in place of networks."""

    def __init__(self) -> None:
        super().__init__()
        self.x = tf.Variable(0.0, name="x")


def _without_updates(assembly: Assembly) -> Assembly:
    optimizers = {name: _Unwritten(optimizer.parameters) for name, optimizer in assembly.optimizers.items()}
    return dataclasses.replace(assembly, optimizers=optimizers)


def _forward_only(phase: Update, nothing: _Nothing) -> Update:
    """Returns `phase` as an update of `nothing`, which needs no backward pass through the networks."""

    def loss(batch: Batch, rng: Rng) -> Loss:
        made = phase.loss(batch, rng)
        return made._replace(per_example=made.per_example + tf.cast(nothing.x, made.per_example.dtype))

    if phase.through is None:  # keeps the trained module's averages, which move with its update
        return dataclasses.replace(phase, loss=loss)
    return dataclasses.replace(phase, loss=loss, trains=nothing, through=None)
