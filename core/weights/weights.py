"""The interface of initial weights: named arrays in a checkpoint or a weight file."""

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
    """The shape and dtype of an array, known before it is read."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return type_name(self.dtype, self.shape)


class Weights(ABC):
    """Named arrays that are read one at a time. `others` is True if another program wrote the file."""

    others = False

    def __init__(self, place: str, types: Mapping[str, ArrayType], record: Mapping[str, Any]):
        """`place` names the source in messages, `types` has each array's type, and `record` goes into checkpoints."""
        self.place, self.types, self.record = place, types, record

    @abstractmethod
    def read(self, name: str) -> npt.NDArray[Any]:
        """Returns the array `name`. If it can't be read, it raises a `CheckpointError`."""

    def refusal(self, task: tf.Module) -> str | None:
        """Returns an error text if `task` can't use these weights although all shapes fit; else `None`."""
        return None

    def called(self, name: str) -> str:
        """Returns a note for messages about the array `name`: "averages" if it is an average, else empty."""
        return ""


@dataclasses.dataclass(frozen=True)
class StartFrom:
    """The weights that a new run starts from, and the variables that get them. `open()` opens the file.

    `take` has patterns of the task's variables. `transpose` maps such patterns to an order of axes. `rename` maps names
    in the file or checkpoint to names in the task.
    """

    open: Callable[[], Weights]
    path: str
    take: Sequence[str] = ("*",)
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transpose: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or "\0" in str(self.path) or self.path == "":
            raise ConfigurationError(f"`path` is {shown(self.path)}; give the path of the weights.")
        if not isinstance(self.take, list | tuple) or not self.take or not _are_texts(self.take):
            raise ConfigurationError(
                f"`take` is {shown(self.take)}; give a list of patterns of this task's variables: `['net/body/*']`."
            )
        if not isinstance(self.rename, Mapping):
            raise ConfigurationError(
                f"`rename` is {shown(self.rename)}; give a dict from names of the weights to this task's, such as "
                "`{'backbone': 'net/body'}`."
            )
        if not isinstance(self.transpose, Mapping) or not _are_texts(self.transpose):
            raise ConfigurationError(
                f"`transpose` is {shown(self.transpose)}; give a dict from patterns of this task's variables to orders "
                "of axes, such as `{'*/w': [1, 0]}`."
            )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)
