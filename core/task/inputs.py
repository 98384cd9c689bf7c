"""The batch of a phase while its step function is inspected: a dict that records which keys are read."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError, did_you_mean
from core.task.loss import Batch, subject


class Inputs(dict[str, tf.Tensor]):
    """A dict that records which keys are read. The error for a missing key lists the available keys."""

    def __init__(self, values: Batch, phase: str, elsewhere: Mapping[str, str], read: set[str]):
        super().__init__(values)
        self.phase, self.elsewhere, self.read = phase, elsewhere, read

    def __getitem__(self, key: str) -> tf.Tensor:
        self.read.add(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        self.read.update(self.keys())  # iterating over all keys counts as reading them
        return super().__iter__()

    def items(self) -> Any:
        """Returns all items, and records all keys as read."""
        self.read.update(self.keys())
        return super().items()

    def values(self) -> Any:
        self.read.update(self.keys())
        return super().values()

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of `key` or `default`, and records `key` as read, even if it is missing."""
        self.read.add(key)
        return super().get(key, default)

    def __missing__(self, key: str) -> tf.Tensor:
        reason = self.elsewhere.get(key, "the source has no such feature, and no earlier phase makes it")
        raise ConfigurationError(
            f"{subject(self.phase)} reads `{key}`, but {reason}. It can read {listed(self)}.{did_you_mean(key, self)}"
        )
