"""Runs of a sweep that are written without training, and its check of configurations in a fork."""

import io
import sys

from tests.commands import CHECKOUT, CONFIGS, fork_server
from tests.written_runs import write_run
from trainers.gin_audit import audit


def write_point(folder, rate, seed, losses, **how):
    """Writes a point's run as if it had been trained."""
    name = f"learning_rate={rate}" if seed is None else f"learning_rate={rate},seed={seed}"
    path = write_run(folder / name, losses={10: 1.0, 20: losses}, **how)
    params = [f"sgd.learning_rate = {rate}", *([] if seed is None else [f"Experiment.seed = {seed}"])]
    given = audit.read([str(CONFIGS / "digits_linear.gin")], params, search=[CHECKOUT]).given
    (path / "config" / "given.gin").write_text("".join(f"# {line}" for line in given.splitlines(True)))


def check_in_fork(cwd):
    """Replaces `subprocess.run` in `trainers.sweep`: its check needs TensorFlow, which a fork has."""

    def run(command, *, input, **_):
        begun = {"module": "tests.trainers.sweep.sweep_lab", "arguments": {"request": input.decode()}}
        done = fork_server().run(cwd=cwd, timeout=300, command=command[-1], before=begun)
        sys.stderr.write(done.stderr)
        return done

    return run


def begin(request):
    """Makes a fork read this from its standard input."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(request.encode()))
