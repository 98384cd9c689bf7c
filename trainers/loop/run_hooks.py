"""The hooks of a run: standard hooks, their order, and their calls."""

import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.errors import ConfigurationError
from core.optimizers import Optimizer
from trainers.hooks import ChunkHook, Hook, Run
from trainers.loop.profiler import Profiler
from trainers.loop.run_state import RunContext, RunState
from trainers.loop.speed import Gauges, Meter
from trainers.process.signals import Preemption
from trainers.settings import Settings

LOSS = "loss"
MARGIN = 0.1  # relative to the lowest held-out loss; evaluations vary by chance within it


class Divergence:
    """Detects overfitting: the training loss falls while the held-out loss rises."""

    def __init__(self) -> None:
        self._training: float | None = None
        self._best: dict[str, float] = {}  # step, loss and training loss of the best evaluation
        self._worse = False  # whether the last evaluation was worse although training was better

    def trained(self, figures: Mapping[str, float]) -> None:
        """Records the training loss of a metric line."""
        self._training = figures.get(LOSS)

    def held_out(self, step: int, figures: Mapping[str, float]) -> str | None:
        """Records an evaluation's loss. Returns a warning if this and the previous evaluation show overfitting."""
        loss, training, best = figures.get(LOSS), self._training, self._best
        if loss is None or training is None or math.isnan(loss):  # NaN compares with nothing
            return None
        if not best or loss < best["loss"]:
            self._best, self._worse = {"step": step, "loss": loss, "training": training}, False
            return None
        before, self._worse = (
            self._worse,
            loss - best["loss"] > MARGIN * abs(best["loss"]) and training < best["training"],
        )
        if not (before and self._worse):
            return None
        return (
            f"the held-out loss has risen from {best['loss']:.4g} at step {best['step']} to {loss:.4g}, while "
            f"the training loss has fallen from {best['training']:.4g} to {training:.4g}: the network overfits. Fewer "
            "steps, more data, dropout or weight decay usually help."
        )

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"training": self._training, "best": self._best, "worse": self._worse} if self._best else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self._training, self._best, self._worse = state["training"], dict(state["best"]), state["worse"]


class LogMetrics(Hook):
    """Writes a metric line: the weighted means since the previous line."""

    def __init__(self, every: int | None, divergence: Divergence):
        super().__init__(every)
        self.divergence = divergence

    def __call__(self, run: Run) -> None:
        figures = run.take_figures()
        if figures["data_wait"] > 0.2:
            run.telemetry.warn_once(
                f"{figures['data_wait']:.0%} of the time was spent waiting for data. Likely causes: a slow disk, "
                "decoding or transforming examples one by one, too few CPU cores. See what the step alone takes with "
                "`--gin_param='Experiment.synthetic=True' --workdir=DIR`."
            )
        run.telemetry.write(run.step, "train", figures)
        self.divergence.trained(figures)


class Evaluate(Hook):
    """Evaluates and writes the metrics. Warns of overfitting."""

    section = "evaluation"

    def __init__(self, every: int | None, divergence: Divergence):
        super().__init__(every)
        self.divergence = divergence

    def __call__(self, run: Run) -> None:
        if warning := self.divergence.held_out(run.step, run.evaluate()):
            run.telemetry.warn_once(warning)

    def state(self) -> dict[str, Any]:
        return self.divergence.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.divergence.load(state)


class CheckReplicas(Hook):
    """Ends the run if replicas hold different values of a variable."""

    def __call__(self, run: Run) -> None:
        run.check_replicas()


class SaveCheckpoint(Hook):
    """Saves a checkpoint, also where a stage of the run ends."""

    section = "save"

    def __init__(self, every: int | None, end_of_stage: int):
        super().__init__(every)
        self._end_of_stage = end_of_stage

    def due(self, step: int, steps: int) -> bool:
        return step == self._end_of_stage or super().due(step, steps)

    def __call__(self, run: Run) -> None:
        run.save()


class KillAfter(Hook):
    """Simulates a crash: sends SIGKILL after the chunk with step `every`, once its checkpoint is written."""

    def due(self, step: int, steps: int) -> bool:
        return self.every is not None and step >= self.every

    def __call__(self, run: Run) -> None:
        run.settle()
        os.kill(os.getpid(), signal.SIGKILL)


def standard_hooks(settings: Settings, *, evaluates: bool, step: int = 0) -> list[Hook]:
    """Lists the hooks of the run's stage at `step`, in order.

    The user's hooks come after the metric line, and before saving.
    """
    divergence = Divergence()
    hooks: list[Hook] = [LogMetrics(settings.log_every, divergence), *settings.hooks]
    if evaluates:
        hooks.append(Evaluate(settings.evaluate_every, divergence))
    if settings.check_replicas_every:
        hooks.append(CheckReplicas(settings.check_replicas_every))
    return [*hooks, SaveCheckpoint(settings.checkpoint_every, settings.end_of_stage(step))]


def chunk_hooks(
    state: RunState, meter: Meter, program: Callable[[], object], preemption: Preemption
) -> list[ChunkHook]:
    """Lists the hooks that every run calls after each chunk. `program` returns the traced chunk."""
    settings = state.settings
    profiler = Profiler(
        state.workdir.events,
        settings.profile,
        total=settings.steps,
        chunk_steps=state.input.chunk_steps,
        take_wish=lambda: preemption.take_wish(signal.SIGUSR2),
    )
    return [Gauges(meter, settings.global_batch_size, program), profiler, Unmoved()]


class Unmoved(ChunkHook):
    """Warns once of half-precision parameters that the first steps don't change, because updates are rounded away.

    It keeps the parameters' initial values until their phase has taken a step. It reads only half-precision parameters,
    and adds no work to the steps.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Optimizer] = {}
        self._values: dict[tuple[str, str], Any] = {}
        self._steps: dict[str, int] = {}

    def begin(self, run: Run) -> None:
        readable = run.train_step.backend.reads_are_local
        self._waiting = dict(run.experiment.assembly.optimizers) if readable else {}
        self._values = {
            (phase, path): variable.numpy()
            for phase, optimizer in self._waiting.items()
            for path, variable in optimizer.parameters.items()
            if variable.dtype.is_floating and variable.dtype.size == 2
        }
        self._steps = {phase: int(self._waiting[phase].step.numpy()) for phase, _ in self._values}

    def after_chunk(self, run: Run) -> None:
        """Compares parameters with their initial values once their phase has taken a step, and drops these values."""
        for phase, before in list(self._steps.items()):
            optimizer = self._waiting[phase]
            if not (taken := int(optimizer.step.numpy()) - before):
                continue
            del self._steps[phase]
            held = [path for name, path in self._values if name == phase]
            values = {path: self._values.pop((phase, path)) for path in held}
            still = [path for path, x in values.items() if (optimizer.parameters[path].numpy() == x).all()]
            more = f" and {len(still) - 1} more of its {len(held)} parameters of half precision" if still[1:] else ""
            if still:
                run.telemetry.warn_once(
                    f"phase `{phase}` didn't change `{still[0]}`{more} in {taken} step{'s' if taken > 1 else ''}: it "
                    f"is {optimizer.parameters[still[0]].dtype.name}, and an update of less than half its last digit "
                    "is rounded away. Make the variable float32 (layers compute in the dtype of their input all the "
                    "same), or take a larger learning rate."
                )


class HookCalls:
    """Calls the hooks of a run in order, and ends the run if a hook asks for this."""

    def __init__(self, context: RunContext, hooks: Sequence[Hook], followers: Sequence[ChunkHook]):
        """`followers` are called after each chunk, before `hooks`."""
        self.hooks, self._followers = hooks, followers
        self._state, self._agreement, self._section = context.state, context.agreement, context.section
        self._stop_reason: str | None = None

    def check(self, run: Run) -> None:
        """Lets each hook check that it fits the run."""
        with self._section("hook", "checking the hooks"):
            for hook in self.hooks:
                name = f"`{type(hook).__name__}"
                try:
                    hook.check(run)
                except ConfigurationError as error:
                    if name in str(error):
                        raise
                    text = f"`Trainer.hooks` holds a {name}`, which can't be called: {error}"
                    raise ConfigurationError(text) from error

    def begin(self, run: Run) -> None:
        """Calls `begin` of all hooks."""
        for hook in (*self._followers, *self.hooks):
            hook.begin(run)

    def before_chunk(self, run: Run) -> None:
        """Calls `before_chunk` of all hooks."""
        for hook in (*self._followers, *self.hooks):
            hook.before_chunk(run)

    def after_chunk(self, run: Run) -> None:
        """Calls `after_chunk` of all hooks."""
        for hook in (*self._followers, *self.hooks):
            hook.after_chunk(run)

    def close(self) -> None:
        """Calls `close` of all hooks."""
        for hook in (*self._followers, *self.hooks):
            hook.close()

    def due(self, run: Run) -> list[Hook]:
        """Lists the hooks to call after the step that `run` is at."""
        return [hook for hook in self.hooks if hook.due(run.step, run.steps)]

    def stop(self, reason: str) -> None:
        """Ends the run once all hooks that are due have been called."""
        self._stop_reason = self._stop_reason or reason

    def call(self, due: Sequence[Hook], run: Run) -> None:
        """Calls the hooks in `due`. If one of them stops the run, then calls the hooks for the end of a run.

        The checkpoint saved then records the stop: a run killed afterwards stays stopped.
        """
        ends = False
        with self._section("hook", "what follows a hook"):  # here a worker may wait for another's hook
            for hook in self.hooks:
                saves = isinstance(hook, SaveCheckpoint)
                if saves and not self._state.finished and self._agreement.any_worker(self._stop_reason is not None):
                    ends = True
                    self._state.ending.stop(self._agreement.first_text(self._stop_reason))
                    for other in self.hooks:
                        if other not in due and other is not hook and other.due(run.step, run.step):
                            self.call_one(other, run)
                if saves:
                    self._state.ending.settle(self._state.step)
                if hook in due or (saves and ends):
                    self.call_one(hook, run)

    def call_one(self, hook: Hook, run: Run) -> None:
        """Calls one hook, observed by the watchdog."""
        with self._section(hook.section, f"the hook `{type(hook).__name__}`"):
            hook(run)
