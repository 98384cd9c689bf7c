"""Writes the capsule of a step that isn't finite, and adds the replay command to the error."""

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
    """Writes the capsule (on the chief), and returns `error` with a command that replays `step`.

    The capsule lacks the weights before the step, so normal steps cost nothing extra. Replay repeats training from the
    newest checkpoint, with equal bits.
    """
    experiment, input, workdir = context.experiment, context.state.input, context.state.workdir
    given = workdir.configurations / "given.gin"
    repeated = context.train_step.backend.steps_together
    if not repeated or not is_chief() or not given.is_file():  # a custom loop has no command that repeats it
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
        return type(error)(f"{error} The step's capsule couldn't be written: {second}")
    membership = joined()
    launch = f"trainers.launch --workers={membership.cluster.size} --" if membership else "trainers.main"
    command = f"python -m {launch} --mode=replay --capsule={shlex.quote(str(path))}"
    return type(error)(f"{error} `{command}` repeats the step, and names the first operation that isn't finite.")


def environment() -> dict[str, str]:
    """Returns versions and settings that determine a step's rounding errors, except the machine itself."""
    return {**versions(), KERNELS: os.environ.get(KERNELS, "not set")}
