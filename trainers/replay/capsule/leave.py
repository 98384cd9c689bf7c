"""Leaves the capsule of a step that isn't finite, and says so where the run says why it ends."""

import os
import shlex

from core import checkpoint
from core.checkpoint.versions import versions
from core.cluster import is_chief, joined
from core.errors import TapeloopError
from trainers.loop.run_state import RunContext
from trainers.replay.capsule.batch import packed
from trainers.replay.capsule.folder import Capsule, write_capsule

KERNELS = "TF_ENABLE_ONEDNN_OPTS"


def leaving_capsule(context: RunContext, error: TapeloopError, step: int) -> TapeloopError:
    """Returns `error` with the command that does `step` again, once the capsule is there; the chief writes it.

    The state before the step isn't in it: training repeats its bits from the newest checkpoint on, and so no step has
    to be kept for the case that the next one goes wrong.
    """
    experiment, input, workdir = context.experiment, context.state.input, context.state.workdir
    given = workdir.configurations / "given.gin"
    repeated = context.train_step.backend.steps_together
    if not repeated or not is_chief() or not given.is_file():  # a loop of one's own has no command to repeat it by
        return error
    try:
        manifest = checkpoint.newest(workdir.checkpoints, warn=print, up_to=step)
        capsule = Capsule(
            step=step,
            exit_code=error.exit_code,
            reason=str(error),
            seed=experiment.seed,
            replicas=experiment.strategy.num_replicas_in_sync,
            examples=input.examples_of(step).tolist(),
            checkpoint=manifest.path.name if manifest else None,
            configuration=dict(workdir.configuration),
            environment=environment(),
        )
        batch = packed({key: x.numpy() for key, x in input.batch_of(step).items()})
        path = write_capsule(workdir.path, capsule, batch, given, manifest.path if manifest else None)
    except (OSError, TapeloopError) as second:
        return type(error)(f"{error} No capsule could be left of the step: {second}")
    membership = joined()
    launch = f"trainers.launch --workers={membership.cluster.size} --" if membership else "trainers.main"
    command = f"python -m {launch} --mode=replay --capsule={shlex.quote(str(path))}"
    return type(error)(f"{error} `{command}` does the step again, and names the first operation that isn't finite.")


def environment() -> dict[str, str]:
    """Returns what the last bits of a step hang on, besides the machine."""
    return {**versions(), KERNELS: os.environ.get(KERNELS, "not set")}
