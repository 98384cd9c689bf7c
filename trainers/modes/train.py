"""`--mode=train`: trains, or resumes a training."""

from trainers.errors.exit_report import after, exit_code_of, reason_of
from trainers.lifecycle.start import record_failed_start
from trainers.lifecycle.train_to_end import run_training
from trainers.loop.run_hooks import KillAfter
from trainers.session import Session


def run(session: Session) -> int:
    """Trains to the last step; records the reason if the start fails."""
    if session.flags.eager:
        from trainers.modes.train_eagerly import take_eager_step

        return take_eager_step(session)
    try:
        with session.preemption.obeyed():
            kill = session.flags.kill_after_step
            trainer = session.trainer(more_hooks=[*session.more_hooks, *([] if kill is None else [KillAfter(kill)])])
            start = session.start(trainer)
    except BaseException as error:
        with after(error):
            record_failed_start(session.workdir, exit_code=exit_code_of(error), reason=reason_of(error))
        raise
    run_training(trainer, start, session.preemption)
    return 0
