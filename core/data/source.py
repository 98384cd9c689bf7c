"""`Source`: examples that are read by index.

Training never iterates over a source; it requests the examples that a step needs (`core/data/pipeline.py`). So a source
has a length and the spec of an example, and gathers any examples at once. A custom source is a class with `spec` and
`gather`:

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

Gin makes sources before the strategy exists, and TensorFlow accepts no new device after its first operation. So a
source's `__init__` reads files with NumPy, and makes no tensors before the first `gather`.
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
    """Examples in a storage format, narrower than what steps read, and their decoding in a step.

    `gather` returns them [n, ...]; `decode` accepts any number of leading axes: in a step, [microbatches, rows, ...].
    """

    spec: dict[str, tf.TensorSpec]
    gather: Callable[[tf.Tensor], dict[str, tf.Tensor]]
    decode: Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]


class Examples(abc.ABC):
    """The spec of examples, each a dictionary of features of fixed shape, for sources and streams.

    Text examples have a `tokenizer`, which defines their tokens.
    """

    tokenizer: Tokenizer | None = None

    def __init__(self, name: str, *, place: str) -> None:
        self.name = name
        self.place = place  # where the examples came from, for errors

    @property
    @abc.abstractmethod
    def spec(self) -> dict[str, tf.TensorSpec]:
        """Returns the spec of one example by feature, with fully known shapes and without a batch axis."""

    def extremes(self, feature: str) -> tuple[int, int, int, int] | None:
        """Returns an integer feature's smallest value and an example that has it, then its largest and an example.

        Tasks use it to check labels before the first step. None for features that aren't integers, or if this would
        need reading everything.
        """
        return None

    def value_range(self, feature: str) -> tuple[float, float] | None:
        """Returns the lowest and highest possible value of an image's pixels; None if unknown.

        Tasks use it to check the range of images before the first step.
        """
        return None

    def description(self) -> dict[str, str]:
        """Returns what a resumed run compares: features, and other facts that are cheap to find out."""
        return {"features": ", ".join(f"{name} {x.dtype.name}{x.shape.as_list()}" for name, x in self.spec.items())}


class Source(Examples):
    """A fixed number of examples, read by index.

    `threads` is the number of threads that a `gather` uses. For a source that computes, such as one that decodes
    images, two chunks are gathered in parallel, so that decoding continues while one of them is assembled.
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
        """Returns the examples at these indices (int64 [n]), each feature [n, ...]; runs inside a `tf.data` map."""

    @property
    def kept(self) -> Kept | None:
        """Returns how to gather examples in their storage format; None if `gather` is the only way.

        Prefetched chunks are then smaller, and the step decodes them; `gather` gives the same values.
        """
        return None

    def order(self, positions: tf.Tensor, *, rng: Rng, span: int) -> tf.Tensor:
        """Returns the examples (int64 [n]) at `positions` (int64 [n], at least 0) of the endless training order.

        Each epoch is a permutation; a source that draws differently overrides `order`. It depends on `rng` and the
        position alone, so that a run resumes anywhere. `span` bounds the distance between positions.
        """
        return shuffled(positions, size=len(self), rng=rng, span=span)

    def values(self, feature: str) -> npt.NDArray[np.generic] | None:
        """Returns a feature of all examples if it is in memory; None if this would need reading everything."""
        return None


def check_source(argument: str, source: object) -> None:
    """Raises if the value of `argument` isn't a source."""
    if isinstance(source, Source):
        return
    if isinstance(source, Examples):
        raise ConfigurationError(
            f"`{argument}` is the stream `{source.name}`, whose examples come in sequence; give a source, "
            "whose examples can be read by index."
        )
    raise ConfigurationError(f"`{argument}` is {shown(source)}; give a source: `@digits()`, say.")


def check_examples(name: str, value: object) -> None:
    """Raises for objects without examples, such as arrays or a TensorFlow dataset; `name` is the argument."""
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
    """Raises a `DataError` if a source has no such feature."""
    if feature not in source.spec:
        raise DataError(
            f"The source `{source.name}` has no feature `{feature}`; it has {listed(source.spec)}."
            f"{did_you_mean(feature, source.spec)}"
        )


def check_split(name: str, split: str, known: Sequence[str]) -> None:
    """Raises for a split that the source called `name` doesn't have."""
    if split not in known:
        raise ConfigurationError(
            f"`split` of `{name}` is {split!r}; it has {listed(known)}.{did_you_mean(str(split), known)}"
        )
