"""Looking at what a language model writes, while it trains.

In a gin file:

    Trainer.hooks = [@Texts()]
    Texts.every = 500
    Texts.prompts = ["The value of"]
"""

from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from core.data import Source
from core.disk import write_whole
from core.errors import ConfigurationError, shown
from core.random import Rng
from core.task import Task
from core.tracing import no_python_values
from core.workers import is_chief
from trainers.hooks.base import Hook, Run

Writer = Callable[[], list[bytes]]


@gin.configurable
class Texts(Hook):
    """Writes a text for each of `prompts`, to `samples/` and the screen: always from the same random numbers."""

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
        texts = [readable(text) for text in self._write()]
        folder = run.workdir.path / "samples"
        folder.mkdir(exist_ok=True)
        write_whole({folder / f"step-{run.step:09d}.txt": "\n\n".join([*texts, ""]).encode()})
        for text in texts:
            run.telemetry.note("\n".join(f"  │ {line}" for line in text.split("\n")))

    def _writer(self, run: Run) -> Writer:
        return make_writer(run.averaged.task, run.experiment.train_source, self.prompts, run.experiment.seed)


def check_writes(task: Task) -> None:
    """Refuses a task that writes no text."""
    if not hasattr(task, "write"):
        raise ConfigurationError(
            f"`{type(task).__name__}` writes no text: it needs `write(rng, prompts, lengths, *, end)`, as a "
            "`LanguageModel` has it. Leave out the hook `Texts` and `--prompt`."
        )


def make_writer(task: Any, source: Source, prompts: Sequence[str], seed: int) -> Writer:
    """Returns a function that writes a text for each prompt, from the same random numbers each time.

    Refuses a task that writes none, and prompts that it can't go on from. It is traced for that, but not run.
    """
    check_writes(task)
    tokenizer: Any = getattr(source, "tokenizer", None)
    if tokenizer is None:
        raise ConfigurationError(
            f"the source `{source.name}` has no `tokenizer`, and prompts have to be made tokens: train on a source of "
            "text."
        )
    encoded = [_encoded(tokenizer, prompt) for prompt in prompts]
    lengths = [len(tokens) for tokens in encoded]
    padded = tf.constant([[*tokens, *[tokenizer.end] * (max(lengths) - len(tokens))] for tokens in encoded])
    rng = Rng.from_seed(seed).fold("texts")

    @tf.function(autograph=False)
    def write() -> tf.Tensor:
        with no_python_values("`write`"):
            return task.write(rng, padded, tf.constant(lengths), end=tokenizer.end)

    traced = write.get_concrete_function()
    found: Any = traced.structured_outputs
    fits = tf.is_tensor(found) and found.dtype.is_integer and found.shape.rank == 2 and found.shape[0] == len(prompts)
    if not fits:
        raise ConfigurationError(
            f"`{type(task).__name__}.write` returned {shown(found)}; it makes tokens, integers of shape "
            f"[{len(prompts)}, length]."
        )

    def texts() -> list[bytes]:
        rows = traced().numpy()
        ends = [_end(row, length, tokenizer.end) for row, length in zip(rows, lengths, strict=True)]
        return [tokenizer.decode(row[:end].tolist()) for row, end in zip(rows, ends, strict=True)]

    return texts


def readable(text: bytes) -> str:
    """Returns text as a screen may show it: what is no UTF-8 or no letter is written as an escape.

    >>> print(readable(b"caf\\xc3\\xa9 \\xff\\x1b[2J"))
    café \\xff\\x1b[2J
    """
    decoded = text.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in decoded)


def _encoded(tokenizer: Any, prompt: str) -> list[int]:
    tokens = list(tokenizer.encode(prompt.encode("utf-8", "surrogateescape")))  # a shell hands over any bytes
    if not tokens:
        raise ConfigurationError("a prompt is empty: give the beginning of a text, of one letter or more.")
    return tokens


def _end(row: np.ndarray, length: int, end: int) -> int:
    """Returns how many tokens of `row` come before its end, which its prompt doesn't count for."""
    after = np.flatnonzero(row[length:] == end)
    return length + int(after[0]) if after.size else len(row)
