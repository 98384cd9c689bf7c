"""Repeats trials that their process has left unfinished: it was stopped, killed, or its machine was lost.

Such a trial ends as failed, and a new one waits with its values and folder. Optuna's own callback for retries writes
the same attributes. The storage lets a trial fail once, whoever tries.
"""

import contextlib
import fcntl
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

HEARD_SECONDS, DEAD_SECONDS = 30, 300  # how often a trial says that it lives, and the silence that ends it
RETRIED = "retry_history"  # Optuna's attribute with the numbers of the trials that this one repeats


def lock_name(worker: str) -> str:
    """Returns the name of the file that a process locks in the sweep's folder while it lives."""
    return f".sweep-{worker}"


def repeat_dead(study: optuna.Study, folder: Path, own_worker: str, now: float) -> None:
    """Repeats the trials of processes that have died."""
    workers: dict[str, list[FrozenTrial]] = {}
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        workers.setdefault(trial.user_attrs.get("worker", ""), []).append(trial)
    workers.pop(own_worker, None)
    for worker, trials in workers.items():
        with _death_of(worker, trials, folder, now) as dead:
            for trial in trials if dead else ():
                repeat(study, trial)


@contextlib.contextmanager
def _death_of(worker: str, trials: Sequence[FrozenTrial], folder: Path, now: float) -> Iterator[bool]:
    """Yields whether a process is dead: it has released its lock on this machine, or was silent for long.

    The lock is held meanwhile, so that no other process repeats the same trials.
    """
    path = folder / lock_name(worker)
    if worker and path.exists() and trials[0].user_attrs.get("host") == socket.gethostname():
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
            path.unlink(missing_ok=True)
        return
    yield now - max(map(_heard, trials)) > DEAD_SECONDS


def repeat(study: optuna.Study, trial: FrozenTrial) -> None:
    """Ends a trial as failed, and queues a new one with its values and folder."""
    try:
        study.tell(trial.number, state=TrialState.FAIL)
    except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
        return  # another process was faster
    history = [*trial.system_attrs.get(RETRIED, ()), trial.number]
    study.add_trial(
        optuna.trial.create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={"folder": folder_of(trial)},
            system_attrs={**trial.system_attrs, "failed_trial": history[0], RETRIED: history},
        )
    )


def folder_of(trial: FrozenTrial | optuna.Trial) -> str:
    """Returns the name of a trial's folder; a trial that repeats another one has its folder."""
    return str(trial.user_attrs.get("folder", f"trial={trial.number}"))


def counted(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Returns the trials without those that another one repeats."""
    repeated = {number for trial in trials for number in trial.system_attrs.get(RETRIED, ())}
    return [trial for trial in trials if trial.number not in repeated]


def _heard(trial: FrozenTrial) -> float:
    """Returns when the trial's process was last known to live."""
    begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    return float(trial.user_attrs.get("heard", begun))
