"""Checks batch normalisation: raises an error if moving averages or batch moments would be silently wrong."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from core.engine.plan import Plan
from core.errors import ConfigurationError
from core.module import named_variables
from core.task import Update


def check_averages(plans: Sequence[Plan], variables: Mapping[str, tf.Variable], *, apart: bool) -> None:
    """Raises an error if no update moves a layer's averages, or a layer normalises over one replica's rows only.

    If replicas take steps `apart` (local steps), a layer may use one replica's rows. Several phases may normalise with
    one layer. Only the update that trains the layer moves its averages, with the `Statistics` that its loss returns. A
    `Compute` with `state` moves the averages whose next values it returns.
    """
    paths = {variable.ref(): path.removeprefix("task/") for path, variable in variables.items()}
    moved = {reference for plan in plans for reference in _moved_by(plan)}
    for plan in plans:
        for reference, layer in plan.access.averages.items():
            path = paths.get(reference, reference.deref().name)
            if reference not in moved:
                raise ConfigurationError(
                    f"phase `{plan.name}` normalises over the batch, but no update moves `{path}`, the average that "
                    "the layer uses without `statistics`. Make a `Statistics()` in the loss of the update that trains "
                    "the layer, pass it on, and return it: `Loss(..., statistics=statistics)`. Or call the layer in "
                    f"`{plan.name}` without `statistics`, to normalise with its averages. Call a network that no "
                    "update trains, such as a teacher, in a `Compute(..., state=teacher)` that returns "
                    "`statistics.averages()` with its other history. A teacher that is the trained network's average "
                    "is `core.optimizers.averaged(network)`, called without `statistics`."
                )
            if plan.replicas > 1 and not layer.sync and not apart:
                raise ConfigurationError(
                    f"phase `{plan.name}` runs on {plan.replicas} replicas, and the layer of `{path}` would normalise "
                    "over the rows of each one alone, unlike on one replica. Give the layer `sync=True` and the "
                    "phase `mixes_rows=True`, or let the phase run on one device (`placement=ONE_DEVICE`)."
                )


def _moved_by(plan: Plan) -> set[object]:
    """Returns `Variable.ref()` of each average that `plan` moves: in a `Compute`'s history, or in trained layers."""
    if not isinstance(plan.phase, Update) or plan.loss is None:
        return set(plan.access.keeps)
    trains = plan.phase.trains
    modules = [trains] if isinstance(trains, tf.Module) else trains
    own = {variable.ref() for module in modules for variable in named_variables(module).values()}
    return own & plan.loss.moves
