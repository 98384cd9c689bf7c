"""What a function may know while it is traced, and what it may not ask, said in terms of what to write instead."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops  # not `tf.compat.v1`, which imports all that a command leaves out
from tensorflow.python.ops import control_flow_util  # by which TensorFlow's own loops know for whom they are traced

# What TensorFlow says, what was done, and what to do instead. Its own advice is AutoGraph, which is off.
_ASKED = [
    (
        r"as a Python `bool`",
        "a Python `if`, `while`, `and`, `assert` or `max` asks whether a tensor is true",
        "Choose with `tf.where(condition, a, b)`, or with `tf.cond` where only one of the two may be computed; repeat "
        "with `tf.while_loop`",
    ),
    (
        r"Iterating over a symbolic",
        "a Python `for` goes through a tensor",
        "Compute all rows at once, go through `tf.unstack(x)` where their number is fixed, or repeat with "
        "`tf.while_loop`",
    ),
    (
        r"not '?SymbolicTensor|'SymbolicTensor' object cannot be interpreted|SymbolicTensor\.__format__"
        r"|Cannot convert a symbolic|'SymbolicTensor' object has no attribute '(?:numpy|item|tolist)'",
        "Python or NumPy asks for the value of a tensor",
        "Let it stay a tensor, and compute with TensorFlow's functions; sizes are in `x.shape`",
    ),
]


@contextlib.contextmanager
def no_python_values(who: str) -> Iterator[None]:
    """Raises, where Python asks for the value of a tensor that has none yet, an error that says what `who` may do."""
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
    """Says whether what is being traced is compiled by XLA, which is quick where kernels are slow, and the reverse."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()))


def in_xla_on_cpu() -> bool:
    """Says whether XLA compiles it for a CPU, whose products are exact: a GPU would round their factors."""
    return in_xla() and all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def computes_by_parts(variable: tf.Variable) -> bool:
    """Says whether each device of a mesh may hold a part of a variable, so that not every kernel can read it."""
    return hasattr(variable, "on_mesh")


def traced_for_each(function: Callable[..., Any], **settings: Any) -> Any:
    """Returns a `tf.function` of a method of which each object has its own, traced once.

    TensorFlow counts by the method, and would warn who has several runs in one process of a function traced too often.
    """
    made: Any = tf.function(function, autograph=False, **settings)
    made._omit_frequent_tracing_warning = True
    return made
