"""`TrainStep`: one exact training step from a task's phases, on any number of replicas.

TensorFlow refuses a collective inside a replica's `tf.cond` or `tf.while_loop`. So conditions and loops over phases are
outside of `strategy.run`. For custom loops, use the pieces directly: `docs/cookbook.md#a-custom-loop-from-the-pieces`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from core.arguments import listed
from core.distribution.backend import Backend
from core.distribution.exchange import Exchange
from core.engine.assembly import Assembly
from core.engine.check_averages import check_averages
from core.engine.inspect_phase import LossSpec, Specs, zeros
from core.engine.layout import Placed
from core.engine.loss_scale import LOSS_SCALE, LossScale
from core.engine.phase_runner import PhaseRunner
from core.engine.plan import Plan, silent_layers
from core.engine.planner import Planner
from core.errors import ConfigurationError, did_you_mean
from core.precision import Precision
from core.random import Rng
from core.task import Batch, Phase, Update
from core.task.loss import Sums


class StepResult(NamedTuple):
    """The outcome of one step: whether it was finite, and its summed metrics."""

    healthy: tf.Tensor  # false if a loss or gradient wasn't finite: later steps write nothing
    sums: Mapping[str, Sums]  # by phase; zero for a phase that wasn't due


class TrainStep:
    """`step(values, index) -> StepResult`: the phases of one training step, called in cross-replica context.

    `values` are as `batch` specifies, `[microbatches, rows, ...]` on each replica. `index` is the step's number, from
    0. With local steps, each replica calls the step in its own context.

    `steps` is the run's number of steps, needed only if a step function reads `rng.progress`. `precision` is the dtype
    in which phases compute, or `{phase: dtype}`. `loss_scales` are those of another step, by update; a step makes its
    own by default. An `exchange` replaces the backend's. With `writes=False`, updates are computed but not written.
    `decode` converts values from a source's storage format. With `noise_scale`, sums have the gradient noise scale of
    each update.
    """

    def __init__(
        self,
        assembly: Assembly,
        batch: Specs,
        *,
        seed: int,
        steps: int | None = None,
        compile: bool | Collection[str] = False,
        precision: str | Mapping[str, str] = "float32",
        loss_scales: Mapping[str, LossScale] | None = None,
        reduce_in: tf.DType | None = None,
        backend: Backend | None = None,
        exchange: Exchange | None = None,
        writes: bool = True,
        decode: Callable[[Batch], Batch] | None = None,
        noise_scale: bool = False,
    ):
        self.optimizers, self.writes = assembly.optimizers, writes
        self.decode_by(decode)
        self.backend = backend or assembly.backend
        self.exchange = exchange or self.backend.exchange(reduce_in=reduce_in)
        self._dtypes = {key: spec.dtype for key, spec in batch.items()}
        self.variables = assembly.task_variables
        self.precision = Precision(precision)
        self.precision.check_names([phase.name for phase in assembly.phases])
        planner = Planner(
            batch,
            self.variables,
            replicas=self.exchange.replicas,
            one_device_ids=assembly.one_device_ids,
            readable=assembly.variables,
            precision=self.precision,
            noise_scale=noise_scale,
        )
        self.precision.check_device([phase.name for phase in assembly.phases], self.exchange.device)
        self.plans = [planner.add(phase) for phase in assembly.phases]
        check_averages(self.plans, assembly.variables, apart=self.backend.in_rounds)
        self.asks_progress = [plan.name for plan in self.plans if plan.access.progress]
        if self.asks_progress and steps is None:
            raise ConfigurationError(
                f"the step function of phase `{self.asks_progress[0]}` reads `rng.progress`, but the run's number of "
                "steps isn't known: give `TrainStep(..., steps=1000)`, or use `rng.step`."
            )
        self.remarks = [text for p in self.plans for text in (*p.access.python, *p.access.draws, *silent_layers(p))]
        self.specs: dict[str, LossSpec] = {plan.name: plan.loss for plan in self.plans if plan.loss}
        narrow = [name for name, spec in self.specs.items() if spec.scaled]
        if loss_scales is None:
            self._check_scalable(narrow)
            loss_scales = {name: assembly.made_with(name, LossScale) for name in narrow}
        self.loss_scales = loss_scales
        self.rng = Rng.from_seed(seed).fold("train")
        self.runner = PhaseRunner(
            self.plans,
            assembly,
            self.exchange,
            rng=self.rng,
            steps=steps,
            microbatches=planner.microbatches,
            loss_scales=loss_scales,
        )
        self.compile(compile)

    def decode_by(self, decode: Callable[[Batch], Batch] | None) -> None:
        """Sets the function that converts values from a source's storage format in later traces. None removes it."""
        self.decode = decode

    def compile(self, what: bool | Collection[str]) -> None:
        """Sets what XLA compiles in later traces: everything (true), the named updates, or nothing (false).

        With true, one device compiles a chunk of steps as one program. Several replicas compile each update's
        arithmetic separately. XLA on a CPU runs a convolution in a loop many times slower, so a CPU compiles each
        microbatch of a convolving phase separately.
        """
        named = self.updates if isinstance(what, bool) else list(what)
        self.check_updates(named)
        if what and self.backend.not_compiled:
            raise ConfigurationError(
                f"`Trainer.compile` asks for programs of XLA, which can't {self.backend.not_compiled}: leave it out. "
                "See docs/make-it-fast.md#xla."
            )
        self.compiled = what
        on_cpu = "GPU" not in self.exchange.device and "TPU" not in self.exchange.device
        alone = self.exchange.replicas == 1 and not self.backend.not_compiled
        loops_apart = [plan.name for plan in self.plans if plan.access.convolves and on_cpu]
        convolving = next(iter(loops_apart), None)
        self.one_program = alone and not convolving  # whether a chunk can be
        self.whole = what is True and self.one_program
        not_compiled = self._not_compiled(named, on_cpu)
        apart = frozenset() if what is False or self.whole else frozenset(named) - not_compiled.keys()
        self.runner.compile(apart, loops_apart=loops_apart)
        self.compiles = self.whole or bool(apart)  # anything at all
        self.left_out = [f"XLA doesn't compile `{name}`: it {why}" for name, why in not_compiled.items() if what]
        if what is True and alone and convolving:
            self.left_out.append(
                f"the loop of steps stays TensorFlow's: `{convolving}` convolves, which on a CPU takes XLA many times "
                "as long in its own loop"
            )

    def _check_scalable(self, narrow: Sequence[str]) -> None:
        """Raises a `ConfigurationError` if devices take steps apart, and would have to agree on a loss scale."""
        if narrow and not self.backend.steps_together:
            raise ConfigurationError(
                f"phase `{narrow[0]}` computes in float16 (`Trainer.precision`), whose loss scale all devices must "
                f"agree on in each step, but {self.backend.how} they take steps apart: give 'bfloat16', which needs "
                "no scale."
            )

    def _not_compiled(self, named: Collection[str], on_cpu: bool) -> dict[str, str]:
        """Returns `{update: reason}` for those of the updates `named` that XLA doesn't compile."""
        plans = [plan for plan in self.plans if plan.name in named]
        # XLA can't compile the collectives in an update that mixes rows either.
        mixing = [plan.name for plan in plans if plan.phase.mixes_rows and self.exchange.replicas > 1]
        looping = [plan.name for plan in plans if plan.access.loops and on_cpu]
        return {
            **dict.fromkeys(mixing, "mixes the rows of all replicas"),
            **dict.fromkeys(looping, "convolves in its own loop, which on a CPU takes XLA many times as long"),
        }

    @property
    def scale_variables(self) -> dict[str, tf.Variable]:
        """Returns the variables of all loss scales, for a checkpoint: `{"loss_scale/net/scale": variable}`."""
        return {
            f"{LOSS_SCALE}/{name}/{part}": variable
            for name, loss_scale in self.loss_scales.items()
            for part, variable in loss_scale.variables.items()
        }

    @property
    def updates(self) -> list[str]:
        """Lists the names of the phases that train variables."""
        return [plan.name for plan in self.plans if isinstance(plan.phase, Update)]

    def check_updates(self, named: Collection[str]) -> None:
        """Raises a `ConfigurationError` if a name in `named` isn't an update of the task."""
        if strange := [name for name in named if name not in self.updates]:
            raise ConfigurationError(
                f"`Trainer.compile` names `{strange[0]}`, but the updates of this task are {listed(self.updates)}."
                f"{did_you_mean(strange[0], self.updates)}"
            )

    def __call__(self, values: Batch, index: tf.Tensor, *, limits: Mapping[str, tf.Tensor] | None = None) -> StepResult:
        """Runs every phase that is due in step `index`.

        With `limits`, an update writes nothing unless its gradient norm is finite and below `limits[update]`.
        """
        self.exchange.begin(index)
        self.runner.begin(limits)
        if self.decode:
            values = self.exchange.run(self.decode, dict(values))
        taken = {key: self.backend.taken(x, self._dtypes[key]) for key, x in values.items()}
        placed = {key: Placed(self.backend.by_rows(x, 1), True) for key, x in taken.items()}
        sums, healthy = dict[str, Sums](), tf.constant(self.writes)
        for plan in self.plans:
            self.exchange.refresh()
            if plan.phase.every == 1:
                healthy, sums[plan.name], outputs = self.runner.run(plan, placed, index, healthy)
            else:
                healthy, sums[plan.name], outputs = tf.cond(
                    tf.equal(index % plan.phase.every, 0),
                    lambda p=plan, v=dict(placed), h=healthy: self.runner.run(p, v, index, h),
                    lambda p=plan, h=healthy: (h, _no_sums(p), self.runner.skipped_outputs(p)),
                )
            placed |= {key: Placed(x, plan.replicated) for key, x in outputs.items()}
        return StepResult(healthy, {name: sums[name] for name in self.specs})

    def rng_of(self, phase: Phase, index: tf.Tensor) -> Rng:
        """Returns the `Rng` of `phase` in step `index`. It depends only on the run's seed, the phase and the step."""
        return self.runner.rng_of(phase, index)


def _no_sums(plan: Plan) -> Sums:
    return dict(zeros(plan.loss.sums_of_update)) if plan.loss else {}
