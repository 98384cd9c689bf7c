"""The batch of a phase as its step function sees it while it is being described: a dict that watches what is read."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError, did_you_mean
from core.task.loss import Batch, subject


class Inputs(dict[str, tf.Tensor]):
    """Records which keys are read; for a missing key, raises an error that lists the available ones."""

    def __init__(self, values: Batch, phase: str, elsewhere: Mapping[str, str], read: set[str]):
        super().__init__(values)
        self.phase, self.elsewhere, self.read = phase, elsewhere, read

    def __getitem__(self, key: str) -> tf.Tensor:
        self.read.add(key)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        self.read.update(self.keys())  # who goes through all of them may use all of them
        return super().__iter__()

    def items(self) -> Any:
        """Counts all of them as read."""
        self.read.update(self.keys())
        return super().items()

    def values(self) -> Any:
        self.read.update(self.keys())
        return super().values()

    def get(self, key: str, default: Any = None) -> Any:
        """Counts `key` as read, if it is there or not."""
        self.read.add(key)
        return super().get(key, default)

    def __missing__(self, key: str) -> tf.Tensor:
        reason = self.elsewhere.get(key, "the source has no such feature, and no earlier phase makes it")
        raise ConfigurationError(
            f"{subject(self.phase)} reads `{key}`, but {reason}. It can read {listed(self)}.{did_you_mean(key, self)}"
        )
