"""What a run may begin with in place of its random weights: named arrays, of a checkpoint or of a file of others."""

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import tensorflow as tf

from core.checkpoint.manifest import type_name
from core.errors import ConfigurationError, shown


class ArrayType(NamedTuple):
    """Says of what kind an array is, before it is read."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return type_name(self.dtype, self.shape)


class Weights(ABC):
    """Arrays by name, read one by one. Of `others` are those that no task of ours has named and typed."""

    others = False

    def __init__(self, place: str, types: Mapping[str, ArrayType], record: Mapping[str, Any]):
        """`place` is what messages call it; `record` is what a checkpoint of the new run remembers of it."""
        self.place, self.types, self.record = place, types, record

    @abstractmethod
    def read(self, name: str) -> npt.NDArray[Any]:
        """Returns an array; raises a `CheckpointError` where it can't be read."""

    def refusal(self, task: tf.Module) -> str | None:
        """Returns why `task` would compute something else with these weights, as far as shapes don't tell."""
        return None

    def called(self, name: str) -> str:
        """Returns what a note says of an array besides its name: of an average, that it is one."""
        return ""


@dataclasses.dataclass(frozen=True)
class StartFrom:
    """Says which weights a new run begins with, and which of its own they are. Nothing is opened before that.

    `take` holds patterns of the task's variables, and so does `transpose`, with an order of axes for each; `rename`
    leads from names of the weights to those of the task.
    """

    open: Callable[[], Weights]
    path: str
    take: Sequence[str] = ("*",)
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transpose: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or "\0" in str(self.path) or self.path == "":
            raise ConfigurationError(f"`path` is {shown(self.path)}; give that of what the run begins with.")
        if not isinstance(self.take, list | tuple) or not self.take or not _are_texts(self.take):
            raise ConfigurationError(
                f"`take` is {shown(self.take)}; give a list of patterns of this task's variables, as `['net/body/*']`."
            )
        if not isinstance(self.rename, Mapping):
            raise ConfigurationError(
                f"`rename` is {shown(self.rename)}; give a dict from names there to names here, as "
                "`{'backbone': 'net/body'}`."
            )
        if not isinstance(self.transpose, Mapping) or not _are_texts(self.transpose):
            raise ConfigurationError(
                f"`transpose` is {shown(self.transpose)}; give a dict from patterns of this task's variables to orders "
                "of axes, as `{'*/w': [1, 0]}`."
            )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)
