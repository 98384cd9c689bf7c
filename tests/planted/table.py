"""The table of planted steps."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from core.task import Task


@dataclasses.dataclass(frozen=True)
class Planted:
    """A task, the batch it is tried on, and for a mistake the text of the message."""

    kind: str
    task: Callable[[], Task]
    batch: Callable[[], Mapping[str, Any]]
    says: str  # a regular expression; empty for a correct step
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.task.__name__


MISTAKES: list[Planted] = []
CORRECT: list[Planted] = []


def mistake(kind, says, **arguments):
    """Registers a task class, tried on its `batch`, as a mistake of a kind, whose message matches `says`."""

    def listed(task):
        MISTAKES.append(Planted(kind, task, task.batch, says, arguments))
        return task

    return listed


def correct(**arguments):
    """Registers a task class as correct."""

    def listed(task):
        CORRECT.append(Planted("correct", task, task.batch, "", arguments))
        return task

    return listed
