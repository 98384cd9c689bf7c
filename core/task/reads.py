"""The features of an example that a task reads, and what each must be.

    def reads(self):
        return {"image": Image([8, 8, 1], low=0.0, high=1.0), "label": Label(10)}

The source is checked against these features before the first step. A custom feature is a class with the method `check`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, Protocol

import tensorflow as tf

from core.data import Examples
from core.errors import DataError


class Feature(Protocol):
    """One feature of an example, as a task reads it."""

    def check(self, source: Examples, feature: str, *, task: str) -> None:
        """Raises a `DataError` if the task called `task` can't learn from the feature `feature` of `source`."""


@dataclasses.dataclass(frozen=True)
class Image:
    """A float32 image [height, width, channels] with values in [`low`, `high`]. None means any range.

    Height and width must equal those of `shape`. `size="at_least"` allows larger images, and `"any"` allows all. Errors
    name `setting`, the task's argument for the shape, and end with `remedy`.
    """

    shape: Sequence[int] | None = None
    low: float | None = None
    high: float | None = None
    _: dataclasses.KW_ONLY
    size: Literal["equal", "at_least", "any"] = "equal"
    setting: str = "image_shape"
    remedy: str = "give the task the shape of the images, or a source of that shape"

    def check(self, source: Examples, feature: str, *, task: str) -> None:
        """Raises a `DataError` if `feature` of `source` has another dtype, shape or range."""
        spec, named = source.spec[feature], f"`{feature}` of source `{source.name}`"
        in_range = "" if self.low is None or self.high is None else f" in {_interval(self.low, self.high)}"
        if spec.dtype != tf.float32:
            raise DataError(
                f"{named} is {spec.dtype.name}, but `{task}` learns from float32 images{in_range}: convert them in the "
                "source."
            )
        if self.shape is not None and not self._fits(spec.shape, self.shape):
            raise DataError(
                f"{named} has shape {spec.shape}, but `{task}.{self.setting}` is {list(self.shape)}: {self.remedy}."
            )
        found = source.value_range(feature)
        if found is None or self.low is None or self.high is None:
            return
        if not all(map(_close, found, (self.low, self.high))):
            raise DataError(
                f"{named} has values in {_interval(*found)}, but `{task}` reads images{in_range}: give a source of "
                "that range, or rescale the images in the source."
            )

    def _fits(self, found: tf.TensorShape, shape: Sequence[int]) -> bool:
        if found.rank != len(shape) or found[-1] != shape[-1]:
            return False
        sides = list(zip(found[:-1], shape[:-1], strict=True))
        return self.size == "any" or all(x == y or (self.size == "at_least" and x > y) for x, y in sides)


@dataclasses.dataclass(frozen=True)
class Label:
    """An index of one of `num_classes` classes. Errors name `setting`, the task's argument with that number."""

    num_classes: int
    _: dataclasses.KW_ONLY
    setting: str | None = None

    def check(self, source: Examples, feature: str, *, task: str) -> None:
        """Raises a `DataError` for a label out of range, if `source.extremes` knows the range of labels."""
        extremes = source.extremes(feature)
        for label, example in (extremes[:2], extremes[2:]) if extremes else ():
            if not 0 <= label < self.num_classes:
                last = self.num_classes - 1
                raise DataError(
                    f"`{feature}` of example {example} of source `{source.name}` is {label}, but "
                    + (
                        f"`{task}.{self.setting}` is {self.num_classes}: labels are 0 to {last}; set it to the number "
                        "of classes in the data."
                        if self.setting
                        else f"`{task}` has {self.num_classes} classes, numbered 0 to {last}: renumber the labels, or "
                        "give the network more outputs."
                    )
                )


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A window of `length + 1` token ids, int32 and below `vocabulary`. Each token is the target of the one before.

    Errors call `length` the task's `context`, and `vocabulary` the task's `vocabulary`.
    """

    length: int
    _: dataclasses.KW_ONLY
    vocabulary: int | None = None

    def check(self, source: Examples, feature: str, *, task: str) -> None:
        """Raises a `DataError` if `feature` has windows of another length, or tokens outside `vocabulary`."""
        spec, named = source.spec[feature], f"`{feature}` of source `{source.name}`"
        if spec.dtype != tf.int32 or spec.shape.rank != 1:
            raise DataError(
                f"{named} is {spec.dtype.name} of shape {spec.shape}, but `{task}` reads windows of text, int32 "
                f"[{self.length + 1}]: give a source of tokens."
            )
        if spec.shape[0] != self.length + 1:
            raise DataError(
                f"{named} is windows of {spec.shape[0] - 1} tokens and the one after them, but `{task}.context` is "
                f"{self.length}: give the source that `length`, or the task that `context`."
            )
        if self.vocabulary is None:
            return
        if source.tokenizer is not None and (known := source.tokenizer.vocabulary) > self.vocabulary:
            raise DataError(
                f"{named} has a vocabulary of {known}, but `{task}.vocabulary` is {self.vocabulary}: set it to {known}."
            )
        extremes = source.extremes(feature)
        for token, example in (extremes[:2], extremes[2:]) if extremes else ():
            if not 0 <= token < self.vocabulary:
                raise DataError(
                    f"`{feature}` of example {example} of source `{source.name}` is {token}, but `{task}.vocabulary` "
                    f"is {self.vocabulary}: tokens are 0 to {self.vocabulary - 1}; set it to the vocabulary's size."
                )


def _interval(low: float, high: float) -> str:
    return f"[{low:g}, {high:g}]"


def _close(x: float, y: float) -> bool:
    return math.isclose(x, y, abs_tol=1e-6)
