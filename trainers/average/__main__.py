"""`python -m trainers.average runs/a --last=5`

Averages the weights of checkpoints, and writes them as a run that evaluation, sampling and export read.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import CheckpointError, ConfigurationError
from trainers.errors.exit_report import report
from trainers.process.application import command_of, run_app, start_logging
from trainers.process.flags import parse_flags

if TYPE_CHECKING:
    from core.checkpoint import Better
    from trainers.average.soups import Values
    from trainers.python_api.load import LoadedRun

USAGE = """python -m trainers.average RUN [RUN ...] [--last=N] [--greedy='max accuracy' | --std=0.1] [--to=DIR]

Averages the weights of the runs' checkpoints, and writes the result to DIR (default: the first run's folder with
`-average` added), a folder that `--mode=evaluate`, `--mode=sample`, `--mode=export` and `trainers.load` read. The
weights are those that evaluation reads. Without --greedy and --std, all checkpoints count equally (a uniform soup).
The runs must have equal tasks; configuration and data are those of the first."""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags; raises a `ConfigurationError` for a wrong flag."""
    flags = parse_flags(words, _define, usage=USAGE, bare="run")
    if not flags.run:
        raise ConfigurationError("the folder of a run is missing: `python -m trainers.average runs/a --last=5`.")
    if flags.last is not None and flags.last < 1:
        raise ConfigurationError(f"`--last` is {flags.last}; it counts checkpoints: give 1 or more.")
    if flags.std is not None and (flags.greedy or len(flags.run) > 1):
        raise ConfigurationError(
            "`--std` computes an average of one run's updates: leave out `--greedy` and the other runs."
        )
    return flags


def _define(flag_values: FlagValues) -> None:
    text = functools.partial(absl_flags.DEFINE_string, flag_values=flag_values)
    texts = functools.partial(absl_flags.DEFINE_multi_string, flag_values=flag_values)
    texts("run", [], "the folder of a run; `--run=` is optional; repeat for more")
    absl_flags.DEFINE_integer(
        "last", None, "how many checkpoints of each run, the newest (default: all)", flag_values=flag_values
    )
    text("greedy", None, "add a checkpoint only if this metric of the evaluation gets no worse, as 'max accuracy'")
    absl_flags.DEFINE_float(
        "std", None, "the width of an average, from snapshots of `ema(profile='power')`", flag_values=flag_values
    )
    text("to", None, "the new folder")
    absl_flags.DEFINE_boolean("verbose", False, "show tracebacks of errors", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Averages as the flags say; returns the exit code."""
    start_logging(flags.verbosity)
    try:
        _run(flags)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return report(error, verbose=flags.verbose)
    return 0


def _run(flags: FlagValues) -> None:
    first = Path(flags.run[0])
    folder = Path(flags.to) if flags.to else first.with_name(f"{first.resolve().name}-average")
    if folder.exists():
        raise ConfigurationError(f"`{folder}` exists already: remove it, or give another folder with `--to=DIR`.")

    from trainers.average import post_hoc
    from trainers.average.soups import Ingredient, check_alike, greedy, mean
    from trainers.average.write import write
    from trainers.options.checkpoints import better_of
    from trainers.python_api.load import load

    better = better_of(flags.greedy, "--greedy") if flags.greedy else None
    ingredients, snapshots = list[Ingredient](), list[post_hoc.Snapshot]()
    base: LoadedRun | None = None  # the newest checkpoint of the first run
    for path, step in _checkpoints(flags.run, flags.last):
        loaded = load(path, step)
        base = loaded if path == first or base is None else base
        ingredients.append(Ingredient(f"{path}, step {step}", _values(loaded)))
        check_alike(ingredients[-1], ingredients[0])
        snapshots += post_hoc.snapshots_of(loaded) if flags.std is not None else []
    assert base
    if flags.std is not None:
        fit = post_hoc.reconstruct(snapshots, ingredients[-1].values, std=flags.std)
        values, record = fit.values, {"std": flags.std, "error": fit.error, "stds": fit.stds, "updates": fit.times}
        print(
            f"width {flags.std:g} from {len(snapshots)} snapshots of width {', '.join(f'{x:g}' for x in fit.stds)} "
            f"after {fit.times[0]:,.0f} to {fit.times[-1]:,.0f} updates; the profile is {fit.error:.1%} off",
            flush=True,
        )
    else:
        chosen, record = ingredients, dict[str, Any]()
        if better:
            chosen, found = greedy(ingredients, _measure(base, better), better)
            record["metric"] = {"by": str(better), "value": found}
            print(f"{better.figure} {found:.4g}", flush=True)
        values, record["checkpoints"] = mean(chosen), [each.name for each in chosen]
        print(
            f"mean of {len(chosen)} of {len(ingredients)} checkpoints: {'; '.join(record['checkpoints'])}", flush=True
        )
    print(f"written to `{write(base, values, folder, record)}`", flush=True)


def _checkpoints(runs: Sequence[str], last: int | None) -> list[tuple[Path, int]]:
    """Returns `(run, step)` of the newest `last` checkpoints of each run, oldest first."""
    from core.checkpoint import steps_in

    found = []
    for path in map(Path, runs):
        steps = steps_in(path / "checkpoints") if path.is_dir() else []
        if not steps:
            raise CheckpointError(
                f"there is no checkpoint in `{path / 'checkpoints'}`: give the folder of a trained run."
            )
        if last is not None and len(steps) < last:
            raise ConfigurationError(
                f"`--last` is {last}, but `{path}` keeps {len(steps)} checkpoints: give at most that, and train with "
                f"`Trainer.keep_checkpoints = {last}` next time."
            )
        found += [(path, step) for step in (steps[-last:] if last else steps)]
    return found


def _values(run: "LoadedRun") -> "Values":
    from core.module import named_variables

    return {path: v.numpy() for path, v in named_variables(run.task).items()}


def _measure(run: "LoadedRun", better: "Better") -> Callable[["Values"], float]:
    """Returns a function from weights to the metric of `better`, on the held-out sources of `run`."""
    from trainers.average.write import assign
    from trainers.evaluation.evaluator import Evaluations, short_name
    from trainers.options.checkpoints import check_figure

    with run.bindings():
        evaluations = Evaluations(run.experiment)
    check_figure(better, evaluations.figures if len(evaluations) else [], "--greedy")

    def measure(values: "Values") -> float:
        assign(run, values)
        with run.bindings():
            figures = {short_name(split, name): x for split, each in evaluations.evaluate() for name, x in each.items()}
        return figures[better.figure]

    return measure


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
