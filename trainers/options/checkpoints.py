"""Which checkpoints a run keeps, and how one of them is chosen."""

import re
from collections.abc import Collection, Sequence

from core import checkpoint
from core.checkpoint import Better
from core.errors import CheckpointError, ConfigurationError, did_you_mean, shown
from trainers.workdir import Workdir

_BETTER = re.compile(r"(max|min) +(\S.*)")


def better_of(text: object, name: str) -> Better:
    """Parses `text`, a direction and a metric of the evaluation; errors cite the gin binding `name`.

    >>> better_of("min noisy/loss", "Trainer.keep_best")
    Better(way='min', figure='noisy/loss')
    """
    found = _BETTER.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ConfigurationError(
            f"`{name}` is {shown(text)}; it is a direction and a metric of the evaluation: give 'max accuracy', "
            "'min loss', or 'min noisy/loss' of `Experiment.eval_sources['noisy']`."
        )
    return Better(found[1], found[2])


def check_keeping(
    keep_every: int | None, keep_best: str | None, *, checkpoint_every: int | None, evaluate_every: int | None
) -> None:
    """Raises a `ConfigurationError` if checkpoints to keep would never be saved, or never be evaluated."""
    if keep_every is not None and (checkpoint_every is None or keep_every % checkpoint_every):
        raise ConfigurationError(
            f"`Trainer.keep_every` is {keep_every}, which isn't a multiple of `Trainer.checkpoint_every` = "
            f"{checkpoint_every}; only saved checkpoints can be kept. Give a multiple."
        )
    if keep_best is None or checkpoint_every is None:
        return
    if evaluate_every is None or checkpoint_every % evaluate_every:
        raise ConfigurationError(
            f"`Trainer.keep_best` is {shown(keep_best)}, and `Trainer.checkpoint_every` = {checkpoint_every} isn't a "
            f"multiple of `Trainer.evaluate_every` = {evaluate_every}; only evaluated checkpoints can be the best. "
            "Give both the same value."
        )


def check_figure(better: Better, figures: Collection[str], name: str) -> None:
    """Raises a `ConfigurationError` if no evaluation has the metric of `better`; errors cite the gin binding `name`."""
    if not figures:
        raise ConfigurationError(
            f"`{name}` is {shown(str(better))}, but there is nothing to evaluate on: bind `Experiment.eval_source`."
        )
    if better.figure not in figures:
        raise ConfigurationError(
            f"`{name}` is {shown(str(better))}, but no evaluation has the metric `{better.figure}`: there are "
            f"{', '.join(f'`{figure}`' for figure in sorted(figures))}.{did_you_mean(better.figure, figures)}"
        )


def chosen_checkpoint(workdir: Workdir, choice: str, newest: checkpoint.Manifest) -> checkpoint.Manifest:
    """Returns the checkpoint for `choice`, the value of `--checkpoint`: `newest`, the best, or that of a step."""
    if choice == "newest":
        return newest
    if choice == "best":
        best = checkpoint.kept_of(newest.extra).get("best")
        if best is None:
            raise CheckpointError(
                f"`{workdir.checkpoints}` keeps no best checkpoint: train with `Trainer.keep_best = 'max accuracy'`, "
                f"or choose one by its step: {_there(workdir)}."
            )
        choice = str(best["step"])
    found = checkpoint.of_step(workdir.checkpoints, int(choice))
    if found is None:
        raise CheckpointError(
            f"there is no checkpoint of step {int(choice)} in `{workdir.checkpoints}`: choose one of {_there(workdir)}."
        )
    return found


def _there(workdir: Workdir) -> str:
    steps: Sequence[int] = checkpoint.steps_in(workdir.checkpoints)
    return ", ".join(map(str, steps))
