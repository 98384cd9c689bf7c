"""Averages of another width, from kept checkpoints with `ema(profile="power")`, after the training."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from core.errors import ConfigurationError
from core.optimizers import Optimizer
from core.optimizers.power_profile import combination
from trainers.average.soups import Values
from trainers.python_api.load import LoadedRun

RULE = "ema"


class Snapshot(NamedTuple):
    """A power-function average in a checkpoint: after `time` updates, of width `std`, by path of the task."""

    time: float
    std: float
    values: Values


class Fit(NamedTuple):
    """An average of another width, with the widths and times of the snapshots that it was computed from."""

    values: Values
    error: float  # the distance of the profiles, as a share
    stds: Sequence[float]
    times: Sequence[float]


def snapshots_of(run: LoadedRun) -> list[Snapshot]:
    """Returns the power-function averages in the checkpoint from which `run` was loaded.

    Statistics of normalisation have one average only, of the width that evaluation reads.
    """
    paths = {id(v): path for path, v in run.experiment.assembly.task_variables.items()}
    return [snapshot for optimizer in run.experiment.assembly.optimizers.values() for snapshot in _of(optimizer, paths)]


def _of(optimizer: Optimizer, paths: dict[int, str]) -> Iterable[Snapshot]:
    rules = [slot.removesuffix("/std") for slot in optimizer.slots if slot.endswith("/std")]
    for rule in rules:
        scalars = {kind: {float(v) for v in optimizer.slots[f"{rule}/{kind}"].values()} for kind in ("std", "count")}
        if len(scalars["std"]) > 1:
            raise ConfigurationError(
                f"the groups of an optimizer have averages of the widths {sorted(scalars['std'])}: `--std` needs one "
                "width for all parameters of a phase, or several for each."
            )
        averages = optimizer.slots[f"{rule}/average"]
        found = {paths[id(optimizer.parameters[path])]: v.numpy() for path, v in averages.items()}
        if rule == rules[-1]:
            statistics = optimizer.averaged_statistics
            found |= {paths[id(optimizer.statistics[path])]: v.numpy() for path, v in statistics.items()}
        yield Snapshot(scalars["count"].pop(), scalars["std"].pop(), found)


def reconstruct(snapshots: Sequence[Snapshot], rest: Values, *, std: float) -> Fit:
    """Returns the average of width `std` at the newest snapshot; variables in no snapshot are those of `rest`.

    Σᵢ wᵢ θᵢ, where the weights w fit the profile of the average by least squares (Karras et al., 2024, section 3.2).
    """
    used = [each for each in snapshots if each.time > 0]
    if not used:
        raise ConfigurationError(
            "`--std` needs checkpoints with power-function averages, but the run keeps none: train with "
            "`ema(profile='power', std=0.1)` last in the optimizer's chain, and keep snapshots with "
            "`Trainer.keep_every`."
        )
    values, worst = dict(rest), 0.0
    for path in rest:
        having = [each for each in used if path in each.values]
        if not having:
            continue
        times = [each.time for each in having]
        weights, error = combination(times, [each.std for each in having], time=max(times), std=std)
        worst = max(worst, error)
        total = sum(w * each.values[path].astype(np.float64) for w, each in zip(weights, having, strict=True))
        values[path] = np.asarray(total).astype(rest[path].dtype)
    return Fit(values, worst, sorted({each.std for each in used}), sorted({each.time for each in used}))
