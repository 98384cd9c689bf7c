"""The dtype in which a phase computes, and the casts of its inputs before a step function is called.

A step function computes in the dtype of its inputs and of the draws of its `rng`: layers cast float32 variables to it.
`Embedding` and `Rng.from_seed` make floats from integers alone, so they read `compute_dtype()`.

    >>> narrowing = Narrowing(tf.bfloat16, {"image": tf.bfloat16})
    >>> with narrowing.computing():
    ...     batch = narrowing.narrowed({"image": tf.ones([2, 8]), "label": tf.constant([0, 1])})
    ...     batch["image"].dtype.name, batch["label"].dtype.name, compute_dtype().name
    ('bfloat16', 'int32', 'bfloat16')
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.arguments import listed
from core.errors import ConfigurationError, did_you_mean, shown

COMPUTED = ("float32", "bfloat16", "float16")
EVALUATE, SAMPLE, SERVE = USES = ("evaluate", "sample", "serve")  # functions of a task that aren't phases
SETTING = "Trainer.precision"

_compute_dtype: contextvars.ContextVar[tf.DType] = contextvars.ContextVar("compute_dtype", default=tf.float32)


def compute_dtype() -> tf.DType:
    """Returns the dtype in which the current phase computes. Outside of phases it is float32."""
    return _compute_dtype.get()


class Narrowing(NamedTuple):
    """The dtype in which a phase computes, and the casts of its inputs."""

    dtype: tf.DType = tf.float32
    casts: Mapping[str, tf.DType] = {}  # by key of the batch

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Makes `compute_dtype()` return `dtype` in its context."""
        token = _compute_dtype.set(self.dtype)
        try:
            yield
        finally:
            _compute_dtype.reset(token)

    def narrowed(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns `batch` with the phase's inputs cast."""
        return {key: tf.cast(x, self.casts[key]) if key in self.casts else x for key, x in batch.items()}

    def call(self, fn: Callable[..., Any], batch: Mapping[str, tf.Tensor]) -> Any:
        """Returns `fn(batch)`, computed in `dtype`. Narrow results are cast to float32."""
        with self.computing():
            made = fn(self.narrowed(batch))
        return made if self.dtype == tf.float32 else widened(made)

    def specs(self, batch: Mapping[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
        """Returns the specs of `narrowed(batch)`."""
        return {key: tf.TensorSpec(x.shape, self.casts.get(key, x.dtype)) for key, x in batch.items()}


AS_GIVEN = Narrowing()  # casts nothing


class Precision:
    """The value of `Trainer.precision`: one dtype for all phases, or `{phase: dtype}`. Other phases have float32."""

    def __init__(self, given: str | Mapping[str, str] = "float32"):
        self.given = given
        for name, dtype in given.items() if isinstance(given, Mapping) else [("", given)]:
            if not (isinstance(dtype, str) and dtype in COMPUTED):
                of = f"{SETTING}[{name!r}]" if isinstance(given, Mapping) else SETTING
                raise ConfigurationError(
                    f"`{of}` is {shown(dtype)}; it is the dtype of a phase's computation: give one of "
                    f"{listed(COMPUTED, quote=chr(39))}."
                    f"{did_you_mean(dtype, COMPUTED) if isinstance(dtype, str) else ''}"
                )

    def of(self, name: str) -> tf.DType:
        """Returns the dtype in which the phase or use `name` computes."""
        given = self.given.get(name, "float32") if isinstance(self.given, Mapping) else self.given
        return tf.as_dtype(given)

    def narrowing(
        self, name: str, features: Mapping[str, tf.TensorSpec], made_in: Mapping[str, tf.DType] = {}
    ) -> Narrowing:
        """Returns the casts of the phase or use `name`: of float32 features, and of narrow outputs.

        `made_in` has the outputs of phases with a narrow dtype. Features of other dtypes stay as the source gives them.
        """
        dtype = self.of(name)
        casts = {
            key: dtype
            for key, x in features.items()
            if x.dtype != dtype and x.dtype in (tf.float32, made_in.get(key, tf.float32))
        }
        return Narrowing(dtype, casts)

    def check_names(self, phases: Sequence[str]) -> None:
        """Raises a `ConfigurationError` if a name is neither a phase of the task nor a use."""
        known = [*phases, *USES]
        for name in self.given if isinstance(self.given, Mapping) else ():
            if name not in known:
                raise ConfigurationError(
                    f"`{SETTING}` names `{name}`, but the phases of this task are {listed(phases)}; it may also name "
                    f"{listed(USES)}.{did_you_mean(str(name), known)}"
                )

    def check_device(self, names: Sequence[str], device: str) -> None:
        """Raises a `ConfigurationError` if `device` can't compute the phases `names` in their dtypes."""
        for name in names:
            dtype = self.of(name)
            if "TPU" in device and dtype == tf.float16:
                why = "TPUs don't compute in: give 'bfloat16'"
            elif "GPU" in device and dtype in _CAPABILITY and (has := _capability()) < _CAPABILITY[dtype]:
                wanted = ".".join(map(str, _CAPABILITY[dtype]))
                why = f"needs a GPU of compute capability {wanted}, but this one has {'.'.join(map(str, has))}: " + (
                    "give 'float16' or 'float32'" if dtype == tf.bfloat16 else "give 'float32'"
                )
            else:
                continue
            raise ConfigurationError(f"`{SETTING}` lets phase `{name}` compute in {dtype.name}, which {why}.")


FLOAT32 = Precision()
_CAPABILITY = {tf.float16: (5, 3), tf.bfloat16: (8, 0)}  # of NVIDIA's GPUs


def _capability() -> tuple[int, ...]:
    """Returns the lowest compute capability of the GPUs. GPUs of other makers have none, and may use every dtype."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return min((x["compute_capability"] for x in details if "compute_capability" in x), default=(99, 0))


def widened(nest: Any) -> Any:
    """Returns `nest` with its bfloat16 and float16 tensors cast to float32."""
    narrow = (tf.bfloat16, tf.float16)
    return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32) if tf.is_tensor(x) and x.dtype in narrow else x, nest)
