"""The task for evaluation and export: with averaged weights, if an optimizer keeps averages.

The batch-norm statistics of the trained weights don't fit averaged weights. So an optimizer that averages weights also
averages the layers' statistics (`Optimizer.average_statistics`), and evaluation reads both averages.
"""

import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from core import checkpoint
from core.engine import Assembly
from core.module import named_variables
from core.task import Task
from core.task.statistics import commit, refreshed
from core.tracing import traced_for_each
from trainers.experiment import Experiment


class Averaged:
    """Holds the `task` that evaluation reads; `update` copies the current weights or averages into that task."""

    def __init__(self, task: Task):
        self._task = task

    @property
    def task(self) -> Task:
        return self._task

    def update(self) -> None:
        """Copies the newest weights to `task`; nothing to do here, because `task` is the trained task itself."""


class AveragedTwin(Averaged):
    """Holds a second task with averaged weights, so that the trained task is never modified.

    With parameter servers, the second task is on the host, since reading each variable from a server takes a message.
    """

    def __init__(self, experiment: Experiment):
        on_host = experiment.assembly.backend.evaluates_copy
        super().__init__(experiment.make_host_task() if on_host else experiment.make_task())
        self.experiment = experiment
        self._copy = traced_for_each(self._copied)

    def update(self) -> None:
        """Writes to `task` the average of each variable, or its current value if it has no average."""
        self._copy()

    def _copied(self) -> None:
        assembly = self.experiment.assembly
        read = {id(v): v.read_value() for v in assembly.task_variables.values()}
        for optimizer in assembly.optimizers.values():
            averages = optimizer.shadow() or {}
            read |= {id(optimizer.parameters[path]): value for path, value in averages.items()}
            statistics = optimizer.averaged_statistics.items()
            read |= {id(optimizer.statistics[path]): v.read_value() for path, v in statistics}
        twins = named_variables(self.task)
        for path, variable in assembly.task_variables.items():
            twins[path].assign(read[id(variable)])
        commit(refreshed(self.task))  # recomputes derived state from the averages


class HostTwin(Averaged):
    """Holds a copy of a mesh's task for hooks, in plain variables on the host. The copy is made at its first use."""

    def __init__(self, experiment: Experiment, averaged: Averaged):
        self.experiment, self.averaged = experiment, averaged

    @functools.cached_property
    def task(self) -> Task:
        return self.experiment.make_host_task()

    def update(self) -> None:
        """Copies all values from the mesh to the host, one by one. Every process must call it (a collective)."""
        self.averaged.update()
        twins = named_variables(self.task)
        for path, variable in named_variables(self.averaged.task).items():
            twins[path].assign(variable.numpy())


def where_averages_lie(assembly: Assembly) -> dict[str, str | None]:
    """Returns {path of the task's variable: path in the checkpoint of the average that evaluation reads}.

    The value is `None` if the optimizer computes the average when it is read. Then no checkpoint contains it.
    """
    paths, found = {id(v): path for path, v in assembly.task_variables.items()}, dict[str, str | None]()
    for phase, optimizer in assembly.optimizers.items():
        for path, place in optimizer.averages().items():
            found[paths[id(optimizer.parameters[path])]] = place and f"optimizer/{phase}/{place}"
        for path, statistic in optimizer.statistics.items():
            found[paths[id(statistic)]] = _place_of_statistic(phase, path)
    return found


def _place_of_statistic(phase: str, path: str) -> str:
    return f"optimizer/{phase}/statistics/{path}"


def restore(
    manifest: checkpoint.Manifest,
    variables: Mapping[str, tf.Variable],
    *,
    assembly: Assembly,
    partial: Sequence[str] = (),
    say: Callable[[str], object],
) -> None:
    """Restores `variables` from a checkpoint, as `core.checkpoint.restore` does.

    An old checkpoint may lack averaged statistics. Then the averages start at the layers' statistics, and `say` reports
    this.
    """
    places = {
        _place_of_statistic(phase, path): optimizer
        for phase, optimizer in assembly.optimizers.items()
        for path in optimizer.averaged_statistics
    }
    absent = [] if any(place in manifest.variables for place in places) else [p for p in places if p in variables]
    left = [path for path in absent if not any(fnmatch.fnmatchcase(path, pattern) for pattern in partial)]
    checkpoint.restore(manifest, {path: v for path, v in variables.items() if path not in left}, partial=partial)
    for optimizer in {id(places[path]): places[path] for path in left}.values():
        optimizer.restart_statistics()
    if left:
        say(
            f"`{manifest.path.name}` was saved by a version that didn't average the statistics of normalisation: "
            "their averages begin at the moving ones"
        )


def readable_task(experiment: Experiment, averaged: Averaged) -> Averaged:
    """Returns the holder of the task that hooks read: `averaged`, or on a mesh a copy on the host."""
    return averaged if experiment.assembly.backend.one_device_reads else HostTwin(experiment, averaged)


def averaged_task(experiment: Experiment) -> Averaged:
    """Returns the holder of the task to evaluate: a second task if an optimizer averages, else the trained task."""
    averages = any(optimizer.transform.shadow for optimizer in experiment.assembly.optimizers.values())
    copied = experiment.assembly.backend.evaluates_copy
    return AveragedTwin(experiment) if averages or copied else Averaged(experiment.task)
