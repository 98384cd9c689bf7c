"""Translates errors of TensorFlow and XLA into errors about tasks, sources and settings."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

import core
from core.data import Examples, bad_example, unreadable_image
from core.errors import ConfigurationError, DataError

WRONG_ROWS = "`evaluate` must return one value per row of its batch in `per_example`"
REMEDY = (
    "Lower the learning rate, clip gradients (`clip_by_global_norm`), or look for a division, logarithm or square root "
    "of zero in the step function."
)
_UNREAD = re.compile(r"Cannot deserialize computation(?:.*?unregistered operation ('\S+'))?", re.DOTALL)
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def explained(source: Examples) -> Iterator[None]:
    """Translates errors that TensorFlow's kernels raise on examples of `source` into errors that name the cause."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if WRONG_ROWS in error.message:
            raise ConfigurationError(
                f"{WRONG_ROWS}: not a mean over the batch, or a tensor of another length. See "
                "docs/testing-your-step.md#what-is-refused."
            ) from None
        damaged = unreadable_image(error.message) or bad_example(error.message)
        if damaged is not None:
            raise damaged from error
        if unread := _UNREAD.search(error.message):
            raise ConfigurationError(
                f"a function of JAX can't be computed: TensorFlow {tf.__version__} doesn't know "
                f"{unread[1] or 'an operation'}, which a newer JAX wrote. Install an older one (`pip install "
                "'jax<0.10'` for TensorFlow 2.21), or use other operations. See docs/cookbook.md#a-network-in-jax."
            ) from error
        found = _LABEL.search(error.message)
        if found is None:
            raise
        label, classes = found.groups()
        raise DataError(
            f"a label of source `{source.name}` is {label}, but the network has {classes} outputs, for classes 0 to "
            f"{int(classes) - 1}: renumber the labels, or give the network more outputs."
        ) from error


@contextlib.contextmanager
def repeatable_or_refused(deterministic: bool) -> Iterator[None]:
    """Translates TensorFlow's error for an operation without a deterministic kernel."""
    try:
        yield
    except tf.errors.UnimplementedError as error:
        lines = error.message.strip().split("\n")
        first = next((line.strip().rstrip(".") for line in lines if "determinis" in line), None)
        if not deterministic or first is None:
            raise
        raise ConfigurationError(
            "`Experiment.deterministic` is True, but TensorFlow has no deterministic kernel for an operation of this "
            f'step: {first}. Set `Trainer.compile = "off"` if XLA lacks it, or else `Experiment.deterministic = '
            "False`. See docs/running.md#configurations."
        ) from error


_OPERATION = re.compile(r"XLA_\w+: (\w+) \(|with op (\w+) must be a compile-time constant")
_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_CORE = Path(core.__file__).resolve().parent


def refused_by_xla(error: BaseException) -> str | None:
    """Returns why XLA couldn't compile a program, as text for a message; None if `error` has another cause."""
    text = str(error)
    said = _LINE.sub("", text)  # names of folders, files and functions must not match
    if not isinstance(error, tf.errors.OpError) or not ("tf2xla" in said or "XLA" in said) or "determinis" in said:
        return None
    operation = _OPERATION.search(said)
    first = said.strip().split("\n")[0]
    if operation:
        what = f"`{next(filter(None, operation.groups()))}`"
    elif "fixed tensor list size" in said:
        what = "gradients through a loop of unknown length (give `tf.while_loop` its `maximum_iterations`)"
    else:
        what = f"the step ({first[:200]})"
    return f"XLA can't compile {what}{_maker(text)}"


def _maker(text: str) -> str:
    """Returns ", which FILE:LINE (`function`) makes", with the user's line that made the operation, if known.

    Only lines that the engine calls count; of these, the innermost is named. TensorFlow records no line for gradients
    through loops, and the line of the engine's caller would mislead.
    """
    lines = _LINE.findall(text.split("tf2xla conversion failed")[0])
    called = itertools.dropwhile(lambda line: not _is_ours(line[0], "engine"), lines)
    theirs = [line for line in called if not _is_ours(line[0]) and "/tensorflow/" not in line[0]]
    return f", which {theirs[-1][0]}:{theirs[-1][1]} (`{theirs[-1][2]}`) makes" if theirs else ""


def _is_ours(file: str, folder: str = "") -> bool:
    """Returns whether `file` is below `core/{folder}`, by the end of its path: TensorFlow drops a common prefix."""
    _, found, end = f"/{file}".rpartition("/core/")
    return bool(found) and end.startswith(folder) and (_CORE / end).is_file()


@contextlib.contextmanager
def compiled_or_refused() -> Iterator[None]:
    """Translates XLA's error for an operation that it can't compile."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = refused_by_xla(error)
        if reason is None:
            raise
        raise ConfigurationError(
            f"`Trainer.compile` asks for programs of XLA, but {reason}: rewrite it, or set `Trainer.compile` "
            'to "off", to "auto", or to the updates that can be compiled: `{"net": "xla"}`. See '
            "docs/make-it-fast.md#xla."
        ) from error
