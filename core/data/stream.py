"""A stream: examples that come one after the other, made anew for each epoch by a function of the user's.

    >>> import numpy as np
    >>> def noise(seed, epoch):
    ...     random = np.random.RandomState([seed, epoch])
    ...     for _ in range(1000):
    ...         yield {"x": random.normal(size=[2]), "label": random.randint(10)}
    >>> stream = Stream(noise)
    >>> stream.spec
    {'x': TensorSpec(shape=(2,), dtype=tf.float32, name=None), 'label': TensorSpec(shape=(), dtype=tf.int32, name=None)}

The function returns a `tf.data.Dataset`, or anything that can be iterated over, of single examples. What comes out is
what steps compute with, as `ArraySource` has it.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import is_size, listed
from core.data.aligned import aligned_empty
from core.data.arrays import as_kept
from core.data.source import Examples, check_feature
from core.errors import ConfigurationError, DataError, shown

Block = dict[str, npt.NDArray[Any]]  # some examples in a row, each feature [examples, ...]
ID = "id"  # the feature that names an example; steps don't see it

_LEVELS = 255.0  # of grey or colour, that bytes of images tell apart


@gin.configurable("stream")
class Stream(Examples):
    """Hands out what `make(seed, epoch)` returns: the examples of epoch 0, then those of epoch 1, for ever.

    With `shuffle` the examples go through a buffer of so many, in an order that hangs on the seed alone. A run that
    goes on makes the stream anew and passes over what it has consumed, unless `replay` is False: then it goes on with
    what the stream hands out now, in an epoch of its own.
    """

    def __init__(self, make: Callable[[int, int], Any], *, shuffle: int | None = None, replay: bool = True):
        name = getattr(make, "__name__", type(make).__name__)
        if not callable(make):
            raise ConfigurationError(
                f"`stream.make` is {shown(make)}; give a function of (seed, epoch) that returns a `tf.data.Dataset` or "
                "an iterator, in gin `@my_stream` without parentheses."
            )
        try:
            inspect.signature(make).bind(0, 0)
        except TypeError:
            raise ConfigurationError(
                f"`stream.make` is `{name}{inspect.signature(make)}`; write `def {name}(seed, epoch)`: a run that goes "
                "on makes its examples anew, and these two numbers are all that they may hang on."
            ) from None
        if not (shuffle is None or is_size(shuffle)):
            raise ConfigurationError(
                f"`stream.shuffle` is {shown(shuffle)}; it counts the examples of a buffer: give at least 1, or None."
            )
        super().__init__(name, place=f"`{getattr(make, '__module__', '?')}`")
        self.shuffle, self.replay = shuffle, replay
        self._make = make

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        specs = {}
        for feature, (shape, dtype) in self._found.items():
            if feature != ID:
                kept = self._computed(feature, np.zeros([1, *shape], dtype))
                specs[feature] = tf.TensorSpec(shape, kept.dtype)
        return specs

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        shape, dtype = self._found[feature]
        return (0.0, 1.0) if dtype == np.uint8 and shape else None

    def blocks(self, seed: int, epoch: int, *, count: int, before: int) -> Iterator[Block]:
        """Yields the examples of an epoch, `count` at a time (the last ones are fewer); `before` counts others.

        They are as steps compute with them; an `id` is as it was given.
        """
        made = self._made(seed, epoch)
        found = _of_dataset(self.name, made) if isinstance(made, tf.data.Dataset) else self._found
        if found != self._found:
            raise DataError(
                f"The stream `{self.name}` ({self.place}) has {_words(self._found)} in epoch 0, but {_words(found)} in "
                f"epoch {epoch}: give all epochs the same features, shapes and types."
            )
        if isinstance(made, tf.data.Dataset):
            blocks: Iterable[Block] = ({k: _array(x) for k, x in block.items()} for block in made.batch(count))
        else:
            blocks = self._stacked(iter(made), count, before)
        for block in blocks:
            yield {name: x if name == ID else self._computed(name, x) for name, x in block.items()}

    def _stacked(self, examples: Iterator[Any], count: int, before: int) -> Iterator[Block]:
        """Yields the examples of an iterator, stacked; each is copied at once, for its arrays may be used again."""
        while True:
            block = {name: aligned_empty([count, *shape], dtype) for name, (shape, dtype) in self._found.items()}
            taken = 0
            for example in itertools.islice(examples, count):
                if not isinstance(example, Mapping) or example.keys() != self._found.keys():
                    raise self._misfit(before + taken, _kind(example), f"{_words(self._found)}")
                for name, (shape, dtype) in self._found.items():
                    value = np.asarray(example[name])
                    if value.shape != shape or not (
                        value.dtype == dtype or np.can_cast(value.dtype, dtype, "same_kind")
                    ):
                        of_first = f"`{name}` {_word(shape, dtype)}"
                        raise self._misfit(before + taken, f"`{name}` {_word(value.shape, value.dtype)}", of_first)
                    block[name][taken] = value
                taken += 1
            if taken:
                yield {name: values[:taken] for name, values in block.items()}
            if taken < count:
                return
            before += taken

    def _misfit(self, number: int, found: str, first: str) -> DataError:
        return DataError(
            f"example {number} of the stream `{self.name}` ({self.place}) has {found}, but the first one has {first}: "
            "give all examples the same features, shapes and types. What differs in length needs to be padded."
        )

    @functools.cached_property
    def _found(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Returns shape and type of each feature as the function hands them out: those of the first example."""
        made = self._made(0, 0)
        if isinstance(made, tf.data.Dataset):
            return _of_dataset(self.name, made)
        first = next(iter(made), None)
        if first is None:
            raise DataError(f"The stream `{self.name}` is empty: {self.place} made no example of epoch 0.")
        if not isinstance(first, Mapping) or not first:
            raise DataError(
                f"The stream `{self.name}` ({self.place}) makes {_kind(first)}; make each example a dictionary: "
                '`{"image": image, "label": label}`.'
            )
        arrays = {str(name): np.asarray(value) for name, value in first.items()}
        texts = (name for name, x in arrays.items() if name == ID and x.dtype.kind in "US")
        kinds = {name: x.dtype for name, x in arrays.items()} | {name: np.dtype(object) for name in texts}
        return {name: (x.shape, kinds[name]) for name, x in arrays.items()}

    def _made(self, seed: int, epoch: int) -> Any:
        made = self._make(seed, epoch)
        if not isinstance(made, Iterable) or isinstance(made, Mapping | str | bytes):
            raise DataError(
                f"The stream `{self.name}` ({self.place}) made {shown(made)} of epoch {epoch}; return a "
                "`tf.data.Dataset`, or an iterator of examples."
            )
        return made

    def _computed(self, feature: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        kept = as_kept(self.name, feature, values)
        return kept.astype(np.float32) / np.float32(_LEVELS) if kept.dtype == np.uint8 else kept


def _of_dataset(name: str, dataset: tf.data.Dataset) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Returns shape and type of each feature of a dataset's elements, which must be single examples."""
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or not all(isinstance(x, tf.TensorSpec) for x in spec.values()):
        raise DataError(
            f"The stream `{name}` is a dataset of {shown(spec)}; make each example a dictionary of tensors: "
            '`.map(lambda image, label: {"image": image, "label": label})`.'
        )
    unknown = [feature for feature, x in spec.items() if not x.shape.is_fully_defined()]
    if unknown:
        raise DataError(
            f"`{unknown[0]}` of the stream `{name}` has shape {spec[unknown[0]].shape}, which isn't fully known. Leave "
            "out `.batch`, which is the run's to do; or say the shape, with `tf.ensure_shape` in `.map`."
        )
    return {str(k): (tuple(x.shape), np.dtype(x.dtype.as_numpy_dtype)) for k, x in spec.items()}


def _array(values: tf.Tensor) -> npt.NDArray[Any]:
    """Returns the values in the tensor's own memory, where they are numbers."""
    return values.numpy() if values.dtype == tf.string else np.asarray(memoryview(values))


def _kind(example: Any) -> str:
    if isinstance(example, Mapping):
        return listed(example) if example else "an empty dictionary"
    return f"a {type(example).__name__}"


def _words(found: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    return ", ".join(f"`{name}` {_word(*x)}" for name, x in found.items())


def _word(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{dtype.name} {list(shape)}"
