"""Runs of a sweep that are written without training, and its check of configurations in a fork."""

import io
import sys
from pathlib import Path

from tests.commands import CHECKOUT, CONFIGS, fork_server
from tests.written_runs import write_run
from trainers.gin_audit import audit
from trainers.sweep.__main__ import parse
from trainers.sweep.study import Study

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"


def write_point(folder, rate, seed, losses, **how):
    """Writes a point's run as if it had been trained."""
    name = f"learning_rate={rate}" if seed is None else f"learning_rate={rate},seed={seed}"
    params = [f"sgd.learning_rate = {rate}", *([] if seed is None else [f"Experiment.seed = {seed}"])]
    _write(folder / name, params, {10: 1.0, 20: losses}, **how)


def write_curve(folder, point, *losses, **how):
    """Writes a point's run with a loss at every tenth step."""
    _write(folder / point.name, point.params, {10 * (i + 1): loss for i, loss in enumerate(losses)}, **how)


def _write(path, params, losses, **how):
    write_run(path, losses=losses, **how)
    given = audit.read([str(CONFIGS / "digits_linear.gin")], params, search=[CHECKOUT]).given
    (path / "config" / "given.gin").write_text("".join(f"# {line}" for line in given.splitlines(True)))


def study(*words, figure="eval/loss", rest=(), **how):
    """Returns the study that a command line describes, with the folder `s`; `rest` are more flags of its runs."""
    parsed = command(*words, figure=figure, rest=rest)
    return Study(parsed.sweep, parsed.search, **how)


def command(*words, figure="eval/loss", rest=()):
    """Returns the parsed command line of a search with the folder `s`."""
    return parse([*words, f"--figure={figure}", "--", LINEAR, "--workdir=s", *rest])


def ran(plan, losses):
    """Runs the points of a plan one by one, each with the losses that `losses(params)` returns. Returns the points."""
    points = []
    with plan.claimed():
        while point := plan.next():
            points.append(point)
            write_curve(Path("s"), point, *losses(dict(param.split(" = ") for param in point.params)))
            plan.ended(point, 0)
    return points


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
