"""Texts of a language model during training.

In a gin file:

    Trainer.hooks = [@Texts()]
    Texts.every = 500
    Texts.prompts = ["The value of"]
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from core.cluster import is_chief
from core.data import Examples
from core.engine.inspect_use import inspected
from core.errors import ConfigurationError, NotFiniteError, shown
from core.precision import AS_GIVEN, SAMPLE, Narrowing
from core.random import Rng
from core.task import Task
from trainers.hooks import Hook, Run, keep_sample

Writer = Callable[[], list[bytes]]

LINES = 4  # of a text on the console
TOGETHER = 64  # texts generated at once, limited by the size of the key-value cache


@gin.configurable
class Texts(Hook):
    """Continues or answers each of `prompts`. Writes the texts to `samples/`, and their first lines to the console.

    The random numbers are the same each time.
    """

    def __init__(self, every: int | None = None, *, prompts: Sequence[str] = gin.REQUIRED):
        super().__init__(every)
        if isinstance(prompts, str) or not prompts or not all(isinstance(prompt, str) for prompt in prompts):
            raise ConfigurationError(f"`Texts.prompts` is {shown(prompts)}; give a list of texts, such as ['The '].")
        self.prompts = prompts
        self._write: Writer | None = None

    def check(self, run: Run) -> None:
        self._write = self._writer(run)

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if not is_chief():
            return
        self._write = self._write or self._writer(run)
        texts = self._write()
        keep_sample(run, f"step-{run.step:09d}.txt", b"\n\n".join([*texts, b""]))
        run.telemetry.text(run.step, "texts", "\n\n".join(map(readable, texts)))
        for text in texts:
            lines = readable(text).split("\n")
            shown_lines = [*lines[:LINES], *(["…"] if len(lines) > LINES else [])]
            run.telemetry.note("\n".join(f"  │ {line}" for line in shown_lines))

    def _writer(self, run: Run) -> Writer:
        task, experiment = run.averaged.task, run.experiment
        source, narrowing = experiment.train_source, experiment.narrowing(SAMPLE)
        return make_writer(task, source, self.prompts, experiment.seed, narrowing=narrowing, say=run.telemetry.note)


def check_writes(task: Task) -> None:
    """Raises an error for a task that can't write text."""
    if not writes(task):
        raise ConfigurationError(
            f"`{type(task).__name__}` writes no text: it needs `write(rng, prompts, lengths, *, end, vocabulary)`, as "
            "`LanguageModel` has, or `answer`, as `TextToText` has. Remove the hook `Texts` and `--prompt`."
        )


def writes(task: Task) -> bool:
    """Says whether a task continues texts (`write`) or answers them (`answer`)."""
    return hasattr(task, "write") or hasattr(task, "answer")


def make_writer(
    task: Any,
    source: Examples,
    prompts: Sequence[str],
    seed: int,
    *,
    narrowing: Narrowing = AS_GIVEN,
    say: Callable[[str], object] = print,
) -> Writer:
    """Returns a function that continues each prompt, with the same random numbers each time.

    A task with `answer` instead of `write` answers each prompt in a new line. Traces the task's function without
    running it. Raises an error for unusable prompts, or if the function is missing or has side effects. Suspicious code
    is reported with `say`.
    """
    check_writes(task)
    tokenizer = source.tokenizer
    if tokenizer is None:
        raise ConfigurationError(
            f"the source `{source.name}` has no `tokenizer`, which prompts need: train on a source of text."
        )
    end, vocabulary = tokenizer.end, tokenizer.vocabulary
    answers = not hasattr(task, "write")
    name = "answer" if answers else "write"
    encoded = [_encoded(tokenizer, prompt) for prompt in prompts]
    rows, longest = min(len(encoded), TOGETHER), max(map(len, encoded))
    rng = Rng.from_seed(seed).fold("texts")._replace(dtype=narrowing.dtype)

    @tf.function(autograph=False)
    def write(first: tf.Tensor, prompts: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        rows_of = rng._replace(first_row=first)
        written = functools.partial(getattr(task, name), rows_of, prompts, lengths, end=end, vocabulary=vocabulary)
        with narrowing.computing():
            made: tf.Tensor = inspected(task, f"`{name}`", written, say=say, rng=rng)
        return made

    traced = write.get_concrete_function(
        tf.TensorSpec([], tf.int64), tf.TensorSpec([rows, longest], tf.int32), tf.TensorSpec([rows], tf.int32)
    )
    found: Any = traced.structured_outputs
    if not (tf.is_tensor(found) and found.dtype.is_integer and found.shape.rank == 2 and found.shape[0] == rows):
        raise ConfigurationError(
            f"`{type(task).__name__}.{name}` returned {shown(found)}; it must return tokens, integers of shape "
            f"[{rows}, length]."
        )

    def texts() -> Iterator[bytes]:
        for first in range(0, len(encoded), rows):
            group = encoded[first : first + rows]
            filled = group + group[:1] * (rows - len(group))
            padded = [[*tokens, *[end] * (longest - len(tokens))] for tokens in filled]
            try:
                written = traced(tf.constant(first, tf.int64), tf.constant(padded), tf.constant([*map(len, filled)]))
            except tf.errors.InvalidArgumentError as error:
                if "Tensor had" not in error.message:  # from `tf.debugging.check_numerics`
                    raise
                raise NotFiniteError(
                    f"`{type(task).__name__}.{name}` can't choose a token: logits aren't finite, although the weights "
                    "are. Look for a division, logarithm or root of zero in the network."
                ) from error
            for row, tokens in zip(written.numpy(), group, strict=False):
                if answers:
                    yield tokenizer.decode([*tokens]) + b"\n" + tokenizer.decode(row[: _end(row, 0, end)].tolist())
                else:
                    yield tokenizer.decode(row[: _end(row, len(tokens), end)].tolist())

    return lambda: [*texts()]


def readable(text: bytes) -> str:
    """Returns text that is safe to print: invalid UTF-8 and control characters are escaped.

    >>> print(readable(b"caf\\xc3\\xa9 \\xff\\x1b[2J"))
    café \\xff\\x1b[2J
    """
    decoded = text.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in decoded)


def _encoded(tokenizer: Any, prompt: str) -> list[int]:
    tokens = list(tokenizer.encode(prompt.encode("utf-8", "surrogateescape")))  # a shell may pass any bytes
    if not tokens:
        raise ConfigurationError("a prompt is empty: give the beginning of a text, at least one character.")
    return tokens


def _end(row: np.ndarray, length: int, end: int) -> int:
    """Returns the number of tokens in `row` before the first `end` that follows the prompt of `length` tokens."""
    after = np.flatnonzero(row[length:] == end)
    return length + int(after[0]) if after.size else len(row)
