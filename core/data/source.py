"""`Source`: a fixed number of examples that can be read by index.

Training never iterates over a source; it requests the examples that a step needs (`core/data/pipeline.py`). So a source
has a length and the spec of one example, and returns any examples in one call. A custom source is a class with `spec`
and `gather`:

    >>> import tensorflow as tf
    >>> class Points(Source):
    ...     def __init__(self, count):
    ...         super().__init__("points", size=count, place="made up on the spot")
    ...     @property
    ...     def spec(self):
    ...         return {"x": tf.TensorSpec([2], tf.float32)}
    ...     def gather(self, indices):
    ...         angle = tf.cast(indices, tf.float32)
    ...         return {"x": tf.stack([tf.cos(angle), tf.sin(angle)], axis=1)}
    >>> Points(100).gather(tf.constant([0, 7], tf.int64))["x"].shape
    TensorShape([2, 2])

Gin makes sources before the strategy exists, but TensorFlow accepts no new device after its first operation. So a
source's `__init__` must read files with NumPy; it makes tensors in `gather` only.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import listed
from core.data.shuffle import shuffled
from core.data.tokenizers import Tokenizer
from core.errors import ConfigurationError, DataError, did_you_mean, shown
from core.random import Rng


class Kept(NamedTuple):
    """A storage format of a source's examples that is narrower than that of a step, such as uint8.

    `gather` returns stored examples, [n, ...]. `decode` converts them in a step: [microbatches, rows, ...].
    """

    spec: dict[str, tf.TensorSpec]
    gather: Callable[[tf.Tensor], dict[str, tf.Tensor]]
    decode: Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]


class Examples(abc.ABC):
    """The base of sources and streams: examples are dictionaries of features with fixed shapes.

    Text examples have a `tokenizer`, which made their tokens.
    """

    tokenizer: Tokenizer | None = None

    def __init__(self, name: str, *, place: str) -> None:
        self.name = name
        self.place = place  # where the examples came from, for errors

    @property
    @abc.abstractmethod
    def spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the spec of one example, `{feature: TensorSpec}`, with known shapes and without a batch axis."""

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        """Returns `(smallest, its example, largest, its example)` of an integer feature; `None` if unknown.

        Tasks check labels with it before the first step. It is unknown for other features, and if all examples would
        have to be read.
        """
        return None

    def value_range(self, feature: str) -> tuple[float, float] | None:
        """Returns the lowest and highest possible value of an image's pixels; `None` if unknown.

        Tasks use this to check the range of images before the first step.
        """
        return None

    def description(self) -> dict[str, str]:
        """Returns facts about the data that are cheap to compute. A resumed run compares them with its checkpoint's."""
        return {"features": ", ".join(f"{name} {x.dtype.name}{x.shape.as_list()}" for name, x in self.spec.items())}


class Source(Examples):
    """A fixed number of examples, read by index.

    One call of `gather` uses `threads` threads. If it uses several, as to decode images, two chunks are gathered in
    parallel.
    """

    threads = 1

    def __init__(self, name: str, *, size: int, place: str) -> None:
        if size < 1:
            raise DataError(
                f"The source `{name}` is empty: {place} holds no example. Check that it names the right data."
            )
        super().__init__(name, place=place)
        self._size = size

    def __len__(self) -> int:
        return self._size

    def description(self) -> dict[str, str]:
        return {**super().description(), "examples": str(len(self))}

    @abc.abstractmethod
    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples at `indices` (int64 [n]), `{feature: [n, ...]}`. It runs inside a `tf.data` map."""

    @property
    def kept(self) -> Kept | None:
        """Returns the source's storage format, with functions to gather and decode it; `None` if there is none.

        It makes prefetched chunks smaller. The step decodes them to the values that `gather` would return.
        """
        return None

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        """Returns the indices of the examples (int64 [n]) at `positions` (int64 [n]) of the endless training order.

        Each epoch is a permutation. Override `order` to draw examples differently. The result must depend on `rng` and
        the positions alone, so that a run can resume anywhere. All positions are within a range of `span`.
        """
        return shuffled(positions, size=len(self), rng=rng, span=span)

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        """Returns a feature of all examples, [examples, ...]; `None` if all examples would have to be read."""
        return None


def check_source(argument: str, source: object) -> None:
    """Raises a `ConfigurationError` if the value of `argument` isn't a `Source`."""
    if isinstance(source, Source):
        return
    if isinstance(source, Examples):
        raise ConfigurationError(
            f"`{argument}` is the stream `{source.name}`, whose examples come in sequence; give a source, "
            "whose examples can be read by index."
        )
    raise ConfigurationError(f"`{argument}` is {shown(source)}; give a source: `@digits()`, say.")


def check_examples(name: str, value: object) -> None:
    """Raises a `ConfigurationError` if `value`, the argument called `name`, is neither a source nor a stream."""
    if isinstance(value, Examples):
        return
    if callable(value):
        made = getattr(value, "__name__", "source")
        what, instead = f"`{made}` itself", f"call it: `{made}(...)`, in gin `@{made}()` with parentheses"
    elif isinstance(value, tf.data.Dataset):
        what, instead = "a dataset", "give `core.data.Stream(make)`, of a function of (seed, epoch) that returns it"
    else:
        what = f"of type {type(value).__name__}"
        instead = "give a source, such as `core.data.ArraySource({'image': images, 'label': labels}, name='mine')`"
    raise ConfigurationError(f"`{name}` is {what}, which isn't a source of examples: {instead}.")


def check_feature(source: Examples, feature: str) -> None:
    """Raises a `DataError` if `source` has no feature of this name."""
    if feature not in source.spec:
        raise DataError(
            f"The source `{source.name}` has no feature `{feature}`; it has {listed(source.spec)}."
            f"{did_you_mean(feature, source.spec)}"
        )


def check_split(name: str, split: str, known: Sequence[str]) -> None:
    """Raises a `ConfigurationError` if the source called `name` has no split `split`."""
    if split not in known:
        raise ConfigurationError(
            f"`split` of `{name}` is {split!r}; it has {listed(known)}.{did_you_mean(str(split), known)}"
        )
