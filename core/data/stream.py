"""Streams: examples in sequence, from a function of yours that is called once per epoch.

    >>> import numpy as np
    >>> def noise(seed, epoch):
    ...     random = np.random.RandomState([seed, epoch])
    ...     for _ in range(1000):
    ...         yield {"x": random.normal(size=[2]), "label": random.randint(10)}
    >>> stream = Stream(noise)
    >>> stream.spec
    {'x': TensorSpec(shape=(2,), dtype=tf.float32, name=None), 'label': TensorSpec(shape=(), dtype=tf.int32, name=None)}

The function returns a `tf.data.Dataset`, or any iterable, of single examples. As in `ArraySource`, examples are
converted to the types in which steps compute.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import is_size
from core.data.arrays import as_computed
from core.data.source import Examples, check_feature
from core.data.stream_features import ID, Features, as_array, fitted, of_dataset, of_example, told, told_of, told_one
from core.data.stream_state import begun, keeps_state
from core.errors import ConfigurationError, DataError, shown

_BOUNDARY = 64  # bytes: `EIGEN_MAX_ALIGN_BYTES`, the alignment of a tensor's memory
Block = dict[str, npt.NDArray[Any]]  # successive examples, each feature [examples, ...]


@gin.configurable("stream")
class Stream(Examples):
    """The examples that `make(seed, epoch)` returns: those of epoch 0, then those of epoch 1, without end.

    `shuffle` is the size of a buffer from which examples are drawn. The order depends on the seed alone. A resumed run
    calls `make` again and skips consumed examples. With `replay=False`, it starts a new epoch instead, and skips
    nothing.
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
                f"`stream.make` is `{name}{inspect.signature(make)}`; write `def {name}(seed, epoch)`: a resumed run "
                "makes its examples anew, and they may depend on these two numbers only."
            ) from None
        if not (shuffle is None or is_size(shuffle)):
            raise ConfigurationError(
                f"`stream.shuffle` is {shown(shuffle)}; it counts the examples of a buffer: give at least 1, or None."
            )
        if not isinstance(replay, bool):
            raise ConfigurationError(f"`stream.replay` is {shown(replay)}; give True or False.")
        super().__init__(name, place=f"`{getattr(make, '__module__', '?')}`")
        self.shuffle, self.replay = shuffle, replay
        self._make = make
        self._last: object = None  # that `make` returned, if it has a state

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        specs = {}
        for feature, (shape, dtype) in self._found.items():
            if feature != ID:
                kept = as_computed(self.name, feature, np.zeros([1, *shape], dtype))
                specs[feature] = tf.TensorSpec(shape, kept.dtype)
        return specs

    def value_range(self, feature: str) -> tuple[float, float] | None:
        check_feature(self, feature)
        shape, dtype = self._found[feature]
        return (0.0, 1.0) if dtype == np.uint8 and shape else None

    def blocks(
        self,
        seed: int,
        epoch: int,
        *,
        count: int,
        before: int,
        state: str | None = None,
        keep: Callable[[int, str], object] | None = None,
    ) -> Iterator[Block]:
        """Yields an epoch's examples in blocks of `count`. The last block may be shorter.

        `before` is the number of earlier examples. Features have the types in which steps compute; an `id` isn't
        converted. If the iterator has a state, `keep(before, state)` is called before each block, and a `state` from
        such a call continues there.
        """
        made = self._made(seed, epoch)
        found = of_dataset(self.name, made) if isinstance(made, tf.data.Dataset) else self._found
        if found != self._found:
            raise DataError(
                f"The stream `{self.name}` ({self.place}) has {told(self._found)} in epoch 0, but {told(found)} in "
                f"epoch {epoch}: give all epochs the same features, shapes and types."
            )
        if isinstance(made, tf.data.Dataset):
            blocks: Iterable[Block] = ({k: _array(x) for k, x in block.items()} for block in made.batch(count))
        else:
            iterator, state_now = begun(made, state)

            def begin(at: int) -> None:
                if keep is not None and (now := state_now()) is not None:
                    keep(at, now)

            blocks = self._stacked(iterator, count, before, begin)
        for block in blocks:
            yield {name: x if name == ID else as_computed(self.name, name, x) for name, x in block.items()}

    def _stacked(
        self, examples: Iterator[Any], count: int, before: int, begin: Callable[[int], object]
    ) -> Iterator[Block]:
        """Yields blocks `{feature: [count, ...]}` of examples, as copies: the iterator may reuse its arrays.

        It calls `begin` with the number of examples before each block.
        """
        while True:
            begin(before)
            block = {name: aligned_empty([count, *shape], dtype) for name, (shape, dtype) in self._found.items()}
            taken = 0
            for example in itertools.islice(examples, count):
                if not isinstance(example, Mapping) or example.keys() != self._found.keys():
                    raise self._misfit(before + taken, told_of(example), told(self._found))
                for name, (shape, dtype) in self._found.items():
                    value = as_array(example[name])
                    kept = None if value is None or value.shape != shape else fitted(value, dtype)
                    if kept is None:
                        raise self._misfit(before + taken, told_one(name, value), told({name: (shape, dtype)}))
                    block[name][taken] = kept
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
    def _found(self) -> Features:
        """Returns `{feature: (shape, dtype)}` of the first example, before conversion."""
        made = self._made(0, 0)
        if isinstance(made, tf.data.Dataset):
            return of_dataset(self.name, made)
        first = next(iter(made), None)
        if first is None:
            raise DataError(f"The stream `{self.name}` is empty: {self.place} made no example of epoch 0.")
        return of_example(f"The stream `{self.name}` ({self.place})", first)

    def _made(self, seed: int, epoch: int) -> Any:
        made = self._make(seed, epoch)
        if not isinstance(made, Iterable) or isinstance(made, Mapping | str | bytes):
            raise DataError(
                f"The stream `{self.name}` ({self.place}) made {shown(made)} of epoch {epoch}; return a "
                "`tf.data.Dataset`, or an iterator of examples."
            )
        if keeps_state(made):
            if made is self._last:
                raise DataError(
                    f"The stream `{self.name}` ({self.place}) is one object in all epochs, a `{type(made).__name__}` "
                    "with a state: make it anew in each call."
                )
            self._last = made
        return made


def _array(values: tf.Tensor) -> npt.NDArray[Any]:
    """Returns a tensor's values as an array that shares its memory. Strings and bfloat16 are copied."""
    return values.numpy() if values.dtype in (tf.string, tf.bfloat16) else np.asarray(memoryview(values))


def aligned_empty(shape: Sequence[int], dtype: Any) -> npt.NDArray[Any]:
    """Makes an uninitialised array, aligned like a tensor's memory so that it needn't be copied."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return np.empty(shape, dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _BOUNDARY, np.uint8)
    first = -raw.ctypes.data % _BOUNDARY
    return raw[first : first + size].view(dtype).reshape(shape)


def aligned_join(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenates `parts` along their first axis into an array that is aligned like a tensor's memory."""
    first = parts[0]
    return np.concatenate(parts, out=aligned_empty([sum(map(len, parts)), *first.shape[1:]], first.dtype))
