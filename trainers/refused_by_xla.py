"""What XLA can't compile, said in terms of what the user wrote: the operation, and the line that made it."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from core.errors import ConfigurationError

_OPERATION = re.compile(r"XLA_\w+: (\w+) \(|with op (\w+) must be a compile-time constant")
_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_OURS = Path(__file__).resolve().parent.parent


def refused_by_xla(error: BaseException) -> str | None:
    """Returns why XLA refused a program, or None where the error is another."""
    text = str(error)
    if not isinstance(error, tf.errors.OpError) or not ("tf2xla" in text or "XLA" in text) or "determinis" in text:
        return None
    operation = _OPERATION.search(text)
    telling = [line.strip() for line in text.split("\n") if "XLA" in line or "tf2xla" in line]
    what = f"`{next(filter(None, operation.groups()))}`" if operation else f"the step ({telling[0][:200]})"
    lines = _LINE.findall(text.split("tf2xla conversion failed")[0])
    theirs = [line for line in lines if _OURS / "core" not in Path(line[0]).resolve().parents] or lines
    place = f", which {theirs[-1][0]}:{theirs[-1][1]} (`{theirs[-1][2]}`) makes" if theirs else ""
    return f"XLA can't compile {what}{place}"


@contextlib.contextmanager
def compiled_or_refused() -> Iterator[None]:
    """Raises what XLA says of an operation that it can't compile as an error in the user's terms."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = refused_by_xla(error)
        if reason is None:
            raise
        raise ConfigurationError(
            f'`Trainer.compile` is "xla", but {reason}: write it otherwise, or set `Trainer.compile` to "off", to '
            '"auto", or to the updates that can be compiled: `{"net": "xla"}`.'
        ) from error
