"""Trains from initial weights (random, another run's, or a checkpoint's) to the result, for command and Python."""

import contextlib
import functools
from typing import NamedTuple

from core.checkpoint import Manifest
from core.cluster import is_chief, joined, naming_lost_peers
from core.errors import ConfigurationError, PeerLostError
from core.telemetry import Console, JsonLines, StepLines, Telemetry, TensorBoard, Warned, Writer
from core.weights import begin_with
from trainers.errors.exit_report import after, exit_code_of, reason_of
from trainers.lifecycle.start import Start, record_failed_start
from trainers.loop.run_parts import REPLICAS, RESTART, START_FROM
from trainers.process.signals import Preemption
from trainers.process.watchdog import Ending, WriteResult, signs_of_writer
from trainers.trainer import Trainer

WRITING_SECONDS = 60.0  # limit for a checkpoint being written when another worker is lost: the disk may hang


class Beginning(NamedTuple):
    """`lines` to print about how training begins, and whether to save a checkpoint before the first step (`to_save`).

    This checkpoint makes the start final: the run no longer needs another run's weights, and a repeated command doesn't
    restart the optimizer twice.
    """

    lines: list[str]
    to_save: bool


def begin(trainer: Trainer, manifest: Manifest | None, *, restart_optimizer: bool = False) -> Beginning:
    """Restores the checkpoint `manifest`, or sets the initial weights if there is none. Returns a `Beginning`."""
    if manifest is None:
        if restart_optimizer:
            raise ConfigurationError(
                f"`--restart_optimizer` is for resuming a run, but `{trainer.workdir.checkpoints}` has no "
                "checkpoint: remove the flag, or give the run's folder with `--workdir=DIR`."
            )
        line = warm_start(trainer)
        return Beginning([line] if line else [], to_save=line is not None)
    restarted = manifest.extra.get(RESTART)
    restarts = restart_optimizer and restarted is None
    same_figures = trainer.state.restore(manifest, optimizers=not restarts)
    if restarts and trainer.state.finished:
        raise ConfigurationError(
            f"`--restart_optimizer` is for resuming a run, but that in `{trainer.workdir.named}` has ended "
            f"({trainer.state.outcome}) with `Trainer.steps = {trainer.steps}`: increase it, or remove the flag."
        )
    lines = [f"resuming from step {trainer.step} (`{manifest.path.name}`)"]
    start = trainer.experiment.start_from
    if start is not None and START_FROM not in trainer.state.beginnings.record:
        lines.append(
            f"Warning: `Experiment.start_from` has no effect on a run that is at step {trainer.step}: only a new one "
            f"starts from `{start.path}`, in another `--workdir`"
        )
    before, now = manifest.extra.get(REPLICAS), trainer.train_step.exchange.replicas
    if before not in (None, now):
        lines.append(
            f"{before} replicas took the local steps before, {now} take them now: the weights are bit-identical, "
            "but results differ from here"
        )
    if not same_figures:
        lines.append("the task's metrics have changed: the current metric line starts from zero")
    to_save = restarts and trainer.state.go_on_with_fresh_optimizers(manifest)
    if restarts:
        lines.append(
            f"`--restart_optimizer`: from step {trainer.step} on with a fresh optimizer, whose schedules count from 0"
        )
    elif restarted is not None and restart_optimizer:
        lines.append(f"`--restart_optimizer` was applied at step {restarted['step']}, and isn't repeated")
    return Beginning(lines, to_save)


def warm_start(trainer: Trainer) -> str | None:
    """Initialises a new run with the weights of `Experiment.start_from`. Returns a line to print, or None if unset.

    Optimizer state is new: averaged weights, and the weights at the start of a round of local steps, are set to the
    loaded weights.
    """
    start = trainer.experiment.start_from
    if start is None:
        return None
    begun = begin_with(start, trainer.experiment.task)
    own = str(begun.record["sha256"])
    if trainer.agreement.first_text(own) != own:
        raise ConfigurationError(
            f"`Experiment.start_from` is `{start.path}`, where this worker found other weights than the first worker: "
            "give a path that all workers share, or one of the run's `checkpoints/step-*`."
        )
    trainer.state.restart_optimizers()
    trainer.state.beginnings.note(START_FROM, begun.record)
    return begun.line


def run_training(trainer: Trainer, start: Start, preemption: Preemption, *, quiet: bool = False) -> Trainer:
    """Trains or resumes up to the last step, and writes a `result.json` however the run ends.

    Returns the trainer of the run's last stage.
    """
    following: Trainer | None = trainer
    try:
        with preemption.obeyed():
            while following:
                trainer = following
                with ending_where_it_hangs(trainer, functools.partial(_write_failure, trainer, start)):
                    following = _train(trainer, start, quiet=quiet)
    except BaseException as error:
        with after(error):
            _write_failure(trainer, start, exit_code=exit_code_of(error), reason=reason_of(error))
        raise
    return trainer


def _train(trainer: Trainer, start: Start, *, quiet: bool) -> Trainer | None:
    """Trains one stage. Returns the trainer of the next, or None at the end of the run."""
    workdir = trainer.workdir
    if start.began:  # an earlier stage of this process
        beginning = Beginning([trainer.settings.said_at(trainer.step)], to_save=False)
    else:
        manifest = start.claim()
        with naming_lost_peers():
            beginning = begin(trainer, manifest, restart_optimizer=start.restart_optimizer)
        if trainer.state.finished:
            _end_again(trainer, quiet=quiet)
            return None
    telemetry = _telemetry(trainer, quiet=quiet)
    for line in beginning.lines:
        telemetry.note(line)
    membership = joined()
    if membership:

        def last_words(reason: str) -> None:
            _write_failure(trainer, start, exit_code=PeerLostError.exit_code, reason=reason)
            trainer.state.saves.wait(WRITING_SECONDS)  # the run resumes from this checkpoint

        membership.last_words = last_words

    def once_traced() -> None:
        if not start.began:
            start.record(trainer.step)
        if beginning.to_save:
            with trainer.section("save", "the first checkpoint"):
                trainer.save()
        telemetry.describe(start.configured.operative(), workdir.configuration)

    try:
        with naming_lost_peers():
            trainer.train(telemetry, once_traced=once_traced)
    except BaseException as error:
        with after(error):
            telemetry.close()
        if isinstance(error, FileNotFoundError):
            workdir.check_there()
        raise
    with trainer.section("save", "the end of the run"):
        telemetry.close()
        workdir.check_there()
    if not trainer.state.finished:
        with trainer.section("tracing", "the next stage"):
            return trainer.next_stage()
    with trainer.section("save", "the end of the run"):
        _write_success(trainer)
        trainer.agreement.barrier()  # no worker exits before all have finished
    if is_chief() and not quiet:
        print(f"finished: {_how(trainer)}, in `{workdir.named}`", flush=True)
    return None


def _telemetry(trainer: Trainer, *, quiet: bool) -> Telemetry:
    """Returns the writers of metrics. A worker other than the chief has none."""
    if not is_chief():
        return Telemetry([])
    workdir = trainer.workdir
    console: list[Writer] = [] if quiet else [Console(total_steps=trainer.steps)]
    metrics, events = JsonLines(workdir.metrics, trainer.step), TensorBoard(workdir.events, trainer.step)
    StepLines(workdir.evaluations, trainer.step)  # drops lines of later steps, whose weights are gone
    return Telemetry([*console, metrics, events], Warned(workdir.warnings, trainer.step))


def _write_success(trainer: Trainer) -> None:
    if is_chief():
        state, best = trainer.state, trainer.state.best
        trainer.workdir.write_result(
            step=trainer.step,
            exit_code=0,
            reason=state.outcome,
            evaluation=trainer.evaluation,
            best=best and best._asdict(),
        )


def _write_failure(trainer: Trainer, start: Start, *, exit_code: int, reason: str) -> None:
    """Records the reason why a run failed, or why the run's start failed before the first chunk."""
    if not start.began:
        record_failed_start(trainer.workdir, exit_code=exit_code, reason=reason)
    elif is_chief():
        figures = trainer.evaluation
        trainer.workdir.write_result(step=trainer.step, exit_code=exit_code, reason=reason, evaluation=figures)


def _end_again(trainer: Trainer, *, quiet: bool) -> None:
    """Reports that the run has finished before. Writes `result.json` if a kill prevented this."""
    trainer.state.tidy()
    result = trainer.workdir.read_result()
    if trainer.agreement.any_worker(result.get("exit_code") != 0 or result.get("step") != trainer.step):
        if not trainer.state.ending.complete:  # it was planned to be longer, or had other hooks
            report_the_end(trainer)
        _write_success(trainer)
        result = trainer.workdir.read_result()
    if is_chief() and not quiet:
        figures = ", ".join(f"{name} {x}" for name, x in result["evaluation"].items()) or "no evaluation"
        print(f"already finished: {_how(trainer)}, {figures} (`{trainer.workdir.named}`)", flush=True)


def ending_where_it_hangs(
    trainer: Trainer, write_result: WriteResult | None = None
) -> contextlib.AbstractContextManager[None]:
    """In its block, ends the process if a section of the run shows no progress for longer than its deadline."""
    ending = Ending(
        trainer.watchdog,
        trainer.settings.limits,
        trainer.workdir,
        write_result=write_result,
        after=lambda: f", after step {trainer.step}",
    )
    if membership := joined():
        membership.show(lambda: trainer.watchdog.doing)
    writer = signs_of_writer(trainer.state.saves)
    return trainer.watchdog.awake(ending.limits, ending, beside=[writer], is_waiting=lambda: bool(ending.others()))


def report_the_end(trainer: Trainer) -> None:
    """Writes all reports due at the end of a run, without taking a step."""
    trainer.hook_calls.check(trainer)
    for hook in trainer.settings.hooks:
        if hook.due(trainer.step, trainer.step):
            trainer.hook_calls.call_one(hook, trainer)
    if trainer.evaluations:
        trainer.evaluate()


def _how(trainer: Trainer) -> str:
    how = f"{trainer.step} steps" if trainer.state.ending.stopped is None else trainer.state.outcome
    best = trainer.state.best
    return f"{how}; best {best.by}: {best.value:.4g} at step {best.step}" if best else how
