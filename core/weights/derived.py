"""State that is derived from weights, as the vector of a spectral norm, where a run begins with others of these."""

from collections.abc import Container

import tensorflow as tf

from core.task.statistics import commit

REFRESHES = 30  # after which a vector from anywhere is about where it is led to


def refresh_derived(task: tf.Module, taken: Container[int], averages: Container[int]) -> None:
    """Brings derived state to the weights that were taken: those with an id in `taken`, some of them `averages`.

    What was taken with its weights stays to the bit; with their averages it is refreshed as evaluation does it, once.
    """
    for part in (task, *task.submodules):
        if hasattr(part, "refresh") and any(id(v) in taken for v in part.variables):
            _refresh(part, taken, averages)


def _refresh(part: tf.Module, taken: Container[int], averages: Container[int]) -> None:
    derived = list[int]()

    @tf.function(autograph=False)
    def refresh() -> None:
        values = part.refresh()
        derived.extend(id(reference.deref()) for reference in values)
        commit(values)

    refresh.get_concrete_function()  # which variables are derived shows as it is traced
    if not all(variable in taken for variable in derived):
        times = REFRESHES
    else:
        times = int(any(id(v) in averages for v in part.variables))
    for _ in range(times):
        refresh()
