"""Refuses normalisations by the batch whose moving averages, or whose numbers, would be wrong in silence."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from core.engine.plan import Plan
from core.errors import ConfigurationError
from core.module import named_variables
from core.task import Update


def check_averages(plans: Sequence[Plan], variables: Mapping[str, tf.Variable], *, apart: bool) -> None:
    """Refuses averages that no update moves, and layers that see the rows of one replica of several.

    These are as they should be where replicas take steps `apart`.
    Several phases may normalise by the batch through one layer, but an update moves the averages only of what it
    trains, and only by the `Statistics` that its loss returns; a `Compute` with `state` moves what it returns for it.
    """
    paths = {variable.ref(): path.removeprefix("task/") for path, variable in variables.items()}
    moved = {reference for plan in plans for reference in _moved_by(plan)}
    for plan in plans:
        for reference, layer in plan.access.averages.items():
            path = paths.get(reference, reference.deref().name)
            if reference not in moved:
                raise ConfigurationError(
                    f"phase `{plan.name}` normalises by the batch, but nothing would move `{path}`, by which the layer "
                    "normalises without `statistics`: no update that trains this layer returns what it saw. Make a "
                    "`Statistics()` in the loss of the update that trains it, hand it on, and return it: "
                    f"`Loss(..., statistics=statistics)`. Or call the layer in `{plan.name}` without `statistics`: it "
                    "then normalises by its averages. A network that no update trains, as a teacher, is called in a "
                    "`Compute(..., state=teacher)` that returns `statistics.averages()` with its other history."
                )
            if plan.replicas > 1 and not layer.sync and not apart:
                raise ConfigurationError(
                    f"phase `{plan.name}` runs on {plan.replicas} replicas, and the layer of `{path}` would normalise "
                    "by the rows of each of them alone: other numbers than on one. Give the layer `sync=True` and the "
                    "phase `mixes_rows=True`, or let the phase run on one device (`placement=ONE_DEVICE`)."
                )


def _moved_by(plan: Plan) -> set[object]:
    """Returns references of the averages that a phase moves: its history, or what it trains and returns sums for."""
    if not isinstance(plan.phase, Update) or plan.loss is None:
        return set(plan.access.keeps)
    trains = plan.phase.trains
    modules = [trains] if isinstance(trains, tf.Module) else trains
    own = {variable.ref() for module in modules for variable in named_variables(module).values()}
    return own & plan.loss.moves
