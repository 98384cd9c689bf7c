"""`--mode=train`: trains, or goes on training."""

import functools

from core.errors import PeerLostError
from core.telemetry import Console, JsonLines, Telemetry, TensorBoard, Warned
from core.workers import is_chief, joined, naming_lost_peers
from trainers.blame import after, exit_code_of, reason_of
from trainers.eager_step import take_eager_step
from trainers.gin_audit.identity import operative_text
from trainers.hung import ending_where_it_hangs
from trainers.run_state import REPLICAS
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Trains to the last step and leaves a `result.json`, however the run ends."""
    if session.flags.eager:
        return take_eager_step(session)
    trainer = None
    try:
        with session.preemption.obeyed():
            trainer = session.trainer()
            return _train(session, trainer)
    except BaseException as error:
        with after(error):
            _write_failure(session, trainer, exit_code=exit_code_of(error), reason=reason_of(error))
        raise


def _train(session: Session, trainer: Trainer) -> int:
    manifest = session.claim(trainer)
    workdir = session.workdir
    same_figures = True
    if manifest is not None:
        same_figures = trainer.state.restore(manifest)
        if trainer.state.finished:
            return _already_finished(trainer)
    telemetry = _telemetry(trainer)
    if manifest is not None:
        telemetry.note(f"going on from step {trainer.step} (`{manifest.path.name}`)")
        before, now = manifest.extra.get(REPLICAS), trainer.train_step.exchange.replicas
        if before not in (None, now):
            telemetry.note(
                f"{before} replicas took its local steps, and now {now} do: what was learnt is the same to the bit, "
                "but the numbers change from here"
            )
    if not same_figures:
        telemetry.note("the figures of the task have changed: the metric line in flight starts anew")
    membership = joined()
    if membership:
        lost = PeerLostError.exit_code
        membership.last_words = lambda reason: _write_failure(session, trainer, exit_code=lost, reason=reason)

    def once_traced() -> None:
        session.record(trainer.step)
        telemetry.describe(operative_text(), workdir.configuration)

    try:
        with ending_where_it_hangs(trainer, functools.partial(_write_failure, session, trainer)), naming_lost_peers():
            trainer.train(telemetry, once_traced=once_traced)
    except BaseException as error:
        with after(error):
            telemetry.close()
        if isinstance(error, FileNotFoundError):
            workdir.check_there()
        raise
    telemetry.close()
    workdir.check_there()
    _write_success(trainer)
    trainer.agreement.barrier()  # nobody leaves before all have come to the end
    if is_chief():
        print(f"finished: {_how(trainer)}, in `{workdir.path}`", flush=True)
    return 0


def _telemetry(trainer: Trainer) -> Telemetry:
    """Returns where figures go; of several workers, the chief alone has any place for them."""
    if not is_chief():
        return Telemetry([])
    workdir = trainer.workdir
    console = Console(total_steps=trainer.steps)
    metrics, events = JsonLines(workdir.metrics, trainer.step), TensorBoard(workdir.events, trainer.step)
    return Telemetry([console, metrics, events], Warned(workdir.warnings, trainer.step))


def _write_success(trainer: Trainer) -> None:
    if is_chief():
        outcome, evaluation = trainer.state.outcome, trainer.evaluation
        trainer.workdir.write_result(step=trainer.step, exit_code=0, reason=outcome, evaluation=evaluation)


def _write_failure(session: Session, trainer: Trainer | None, *, exit_code: int, reason: str) -> None:
    """Records why a run, or a start that never came to its first chunk of steps, has failed."""
    if trainer is None or not session.began:
        session.record_failed_start(exit_code=exit_code, reason=reason)
    elif is_chief():
        figures = trainer.evaluation
        session.workdir.write_result(step=trainer.step, exit_code=exit_code, reason=reason, evaluation=figures)


def _already_finished(trainer: Trainer) -> int:
    """Says so; a run that was killed between its last checkpoint and its result gets the result now."""
    trainer.state.tidy()
    result = trainer.workdir.read_result()
    if trainer.agreement.any_worker(result.get("exit_code") != 0 or result.get("step") != trainer.step):
        if not trainer.state.complete:  # it was to be longer, or had other hooks
            trainer.report_the_end()
        _write_success(trainer)
        result = trainer.workdir.read_result()
    if is_chief():
        figures = ", ".join(f"{name} {x}" for name, x in result["evaluation"].items()) or "no evaluation"
        print(f"already finished: {_how(trainer)}, {figures} (`{trainer.workdir.path}`)", flush=True)
    return 0


def _how(trainer: Trainer) -> str:
    return f"{trainer.step} steps" if trainer.state.stopped is None else trainer.state.outcome
