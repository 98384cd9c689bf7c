"""The task as evaluation and export read it: with the averages of its weights, where an optimizer keeps them.

Normalisation by moving averages of the weights that are trained would be off for averaged ones. So a rule that averages
weights averages what these layers saw alike (`Optimizer.average_statistics`), and both are read together.
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
    """A task for reading. `update` brings it to the state of training."""

    def __init__(self, task: Task):
        self._task = task

    @property
    def task(self) -> Task:
        return self._task

    def update(self) -> None:
        """Does nothing where the weights themselves are read."""


class AveragedTwin(Averaged):
    """A second task that takes the averages, so that nothing is ever swapped in the one that is trained.

    Of variables on servers it is made on the host: reading them one by one would take a message each.
    """

    def __init__(self, experiment: Experiment):
        on_host = experiment.assembly.backend.evaluates_copy
        super().__init__(experiment.make_host_task() if on_host else experiment.make_task())
        self.experiment = experiment
        self._copy = traced_for_each(self._copied)

    def update(self) -> None:
        """Copies averages, and everything of which there is no average."""
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
        commit(refreshed(self.task))  # what is derived belongs to the averages, not to the weights it was copied with


class HostTwin(Averaged):
    """The task of a mesh as hooks read it: a copy on the host, in plain variables, made once it is asked for."""

    def __init__(self, experiment: Experiment, averaged: Averaged):
        self.experiment, self.averaged = experiment, averaged

    @functools.cached_property
    def task(self) -> Task:
        return self.experiment.make_host_task()

    def update(self) -> None:
        """Copies the values of the mesh, each gathered in turn: every process takes part."""
        self.averaged.update()
        twins = named_variables(self.task)
        for path, variable in named_variables(self.averaged.task).items():
            twins[path].assign(variable.numpy())


def where_averages_lie(assembly: Assembly) -> dict[str, str | None]:
    """Returns which variable of a checkpoint evaluation reads in place of each of the task's, by their paths.

    It is `None` for one that an optimizer computes, which no checkpoint holds.
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
    """Gives `variables` what a checkpoint holds, as `core.checkpoint.restore` does.

    One that was saved before statistics were averaged has none: they begin at the layers' own, which it `say`s.
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
            f"`{manifest.path.name}` was saved before the statistics of normalisation were averaged with the weights: "
            "their averages begin at the moving ones"
        )


def readable_task(experiment: Experiment, averaged: Averaged) -> Averaged:
    """Returns what hooks read: what evaluation does, but for a mesh, where only its own functions can."""
    return averaged if experiment.assembly.backend.one_device_reads else HostTwin(experiment, averaged)


def averaged_task(experiment: Experiment) -> Averaged:
    """Returns the task to read: itself, or a twin if an optimizer averages."""
    averages = any(optimizer.transform.shadow for optimizer in experiment.assembly.optimizers.values())
    copied = experiment.assembly.backend.evaluates_copy
    return AveragedTwin(experiment) if averages or copied else Averaged(experiment.task)
