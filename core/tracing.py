"""Errors with advice for code that can't be traced, and questions about the current trace."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from core.tensorflow_private import GraphOrParentsInXlaContext, get_default_graph, omit_retracing_warning

# TensorFlow's message, the mistake, and what to do instead. TensorFlow itself advises AutoGraph, which is off.
_ASKED = [
    (
        r"as a Python `bool`",
        "a Python `if`, `while`, `and`, `assert` or `max` asks whether a tensor is true",
        "Choose with `tf.where(condition, a, b)`, or with `tf.cond` if only one of the two may be computed; repeat "
        "with `tf.while_loop`",
    ),
    (
        r"Iterating over a symbolic",
        "a Python `for` goes through a tensor",
        "Compute all rows at once, iterate over `tf.unstack(x)` if their number is fixed, or repeat with "
        "`tf.while_loop`",
    ),
    (
        r"not '?SymbolicTensor|'SymbolicTensor' object cannot be interpreted|SymbolicTensor\.__format__"
        r"|Cannot convert a symbolic|'SymbolicTensor' object has no attribute '(?:numpy|item|tolist)'",
        "Python or NumPy asks for the value of a tensor",
        "Keep it a tensor, and compute with TensorFlow's functions; sizes are in `x.shape`",
    ),
]


@contextlib.contextmanager
def no_python_values(who: str) -> Iterator[None]:
    """Raises a `TypeError` with advice if the traced code `who` uses the value of a symbolic tensor in Python."""
    try:
        yield
    except (TypeError, AttributeError, NotImplementedError) as error:
        for pattern, asked, instead in _ASKED:
            if re.search(pattern, str(error)):
                raise TypeError(
                    f"in {who}, {asked}, which has no value yet: the function is traced once, before the first step, "
                    f"as it is written (AutoGraph is off). {instead}. To look at values, run one step with `--eager`."
                ).with_traceback(error.__traceback__) from None
        raise


def in_xla() -> bool:
    """Says whether the code being traced will be compiled with XLA."""
    return bool(GraphOrParentsInXlaContext(get_default_graph()))


def in_xla_on_cpu() -> bool:
    """Says whether the code being traced will be compiled with XLA for a CPU. There, matmuls are exact."""
    return in_xla() and only_cpus()


def only_cpus() -> bool:
    """Says whether TensorFlow computes on no other devices than CPUs."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def computes_by_parts(variable: tf.Variable) -> bool:
    """Says whether `variable` is on a mesh. Each device may hold a shard, which not every kernel can read."""
    return hasattr(variable, "on_mesh")


def traced_for_each(function: Callable[..., Any], **settings: Any) -> Any:
    """Makes a `tf.function` from a method, without TensorFlow's warning about frequent retracing.

    TensorFlow counts a method's traces over all objects. It would warn if a process makes several objects.
    """
    made: Any = tf.function(function, autograph=False, **settings)
    omit_retracing_warning(made)
    return made
