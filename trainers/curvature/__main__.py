"""`python -m trainers.curvature [--run=]FOLDER [--step=400] [--eigenvalues=5] [--plot=curvature.svg]`

Prints the curvature of the loss at a checkpoint of a run.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

import functools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.disk import write_whole
from core.errors import ConfigurationError, TapeloopError, shown
from trainers.curvature.plot import drawn
from trainers.errors.exit_report import report
from trainers.process.application import command_of, run_app, start_logging
from trainers.process.flags import parse_flags
from trainers.process.standard_streams import native_stderr_in
from trainers.workdir import Workdir

USAGE = """python -m trainers.curvature FOLDER [--step=400] [--examples=512] [--eigenvalues=5] [--probes=30] [--json]
                                      [--plot=curvature.svg]

Prints the largest eigenvalues by magnitude (Lanczos) and the trace (Hutchinson) of the Hessian of the mean loss, as
`evaluate` of the task computes it from the trained weights, over random examples of the training source. With --plot,
it measures all checkpoints up to that step, and draws them in an SVG file. The run's folder isn't changed."""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    flags = parse_flags(words, _define, usage=USAGE, bare="run")
    if flags.plot and (os.path.isdir(flags.plot) or not Path(flags.plot).absolute().parent.is_dir()):
        raise ConfigurationError(
            f"`--plot` is {shown(flags.plot)}, which can't be written: give a file in an existing folder, as "
            "`--plot=curvature.svg`."
        )
    if len(flags.run) != 1:
        raise ConfigurationError("give one run's folder, as `python -m trainers.curvature runs/digits_mlp`.")
    return flags


def _define(flag_values: FlagValues) -> None:
    number = functools.partial(absl_flags.DEFINE_integer, flag_values=flag_values)
    absl_flags.DEFINE_multi_string("run", [], "the folder of a run; `--run=` is optional", flag_values=flag_values)
    number("step", None, "the checkpoint's step (default: the newest)", lower_bound=0)
    number("examples", 512, "of the training source", lower_bound=1)
    number("eigenvalues", 5, "how many are printed", lower_bound=1)
    number("probes", 30, "random vectors for the trace", lower_bound=2)
    absl_flags.DEFINE_string("plot", None, "an SVG file of all checkpoints up to the step", flag_values=flag_values)
    absl_flags.DEFINE_boolean("json", False, "print everything as JSON", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Measures the curvature that the flags describe. Returns the exit code."""
    start_logging(flags.verbosity)
    try:
        with native_stderr_in(None):
            found = measured(flags, flags.step)
            if flags.plot:
                from core import checkpoint

                there = checkpoint.steps_in(Workdir(Path(flags.run[0])).checkpoints)
                before = [measured(flags, step) for step in there if step < found["step"]]
                write_whole({Path(flags.plot): drawn([*before, found]).encode()})
    except TapeloopError as error:
        return report(error, verbose=False)
    if flags.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"step {found['step']:,}: {found['parameters']:,} parameters, {found['examples']:,} examples")
    print(f"loss {found['loss']:.4g}, norm of its gradient {found['gradient_norm']:.4g}")
    for i, (value, bound) in enumerate(zip(found["eigenvalues"], found["errors"], strict=True), 1):
        print(f"eigenvalue {i}: {value:.4g} ± {bound:.1g}")
    print(f"trace: {found['trace']:.4g} ± {found['trace_error']:.2g}")
    return 0


def measured(flags: FlagValues, step: int | None) -> dict[str, Any]:
    """Loads the run at a checkpoint, by default the newest, and returns its figures, as JSON values."""
    import numpy as np
    import tensorflow as tf

    from core.data import Stream
    from core.task import Update
    from core.task.loss import weighted_sums
    from trainers.curvature import hessian
    from trainers.python_api.load import load

    loaded = load(flags.run[0], step)
    task, source = loaded.experiment.task, loaded.train_source
    updates = [phase for phase in task.phases() if isinstance(phase, Update)]
    if len(updates) > 1:
        raise ConfigurationError(
            f"a curvature is that of one loss, but this run trains {', '.join(u.name for u in updates)} with separate "
            "losses: use `trainers.load` and `trainers.curvature.hessian` for one of them."
        )
    if isinstance(source, Stream):
        raise ConfigurationError(
            f"the curvature is over random examples of the training source, but `{source.name}` is a stream: use "
            "`trainers.load` and `trainers.curvature.hessian` with a batch of yours."
        )
    number = min(flags.examples, len(source))
    batch = source.gather(tf.constant(np.random.default_rng(0).permutation(len(source))[:number], tf.int64))
    variables = [*updates[0].variables().values()]
    size = sum(math.prod(v.shape) for v in variables)

    def loss() -> tf.Tensor:
        total, sums = weighted_sums(task.evaluate(batch))
        return total / sums["weight"]

    with loaded.bindings():
        with tf.GradientTape() as tape:
            value = loss()
        gradients = [g for g in tape.gradient(value, variables) if g is not None]
        if not gradients:
            raise ConfigurationError(
                f"the loss of `{type(task).__name__}.evaluate` doesn't depend on the weights that phase "
                f"`{updates[0].name}` trains: return the training loss as `per_example`."
            )
        product = hessian.hessian_product(loss, variables)
        eigenvalues = hessian.leading_eigenvalues(product, size, flags.eigenvalues)
        trace = hessian.trace(product, size, probes=flags.probes)
    return {
        "step": loaded.step,
        "parameters": size,
        "examples": number,
        "loss": float(value),
        "gradient_norm": float(tf.linalg.global_norm(gradients)),
        "eigenvalues": eigenvalues.values.tolist(),
        "errors": eigenvalues.errors.tolist(),
        "lanczos_steps": eigenvalues.steps,
        "trace": trace.mean,
        "trace_error": trace.error,
    }


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
