"""Evaluation sources, identified by the split of their metrics, or by the setting that binds them.

Two sources may have the same name, as two `.npz` files may. So errors name the settings instead.

>>> setting_of("eval"), setting_of("eval/noisy")
('`Experiment.eval_source`', "`Experiment.eval_sources['noisy']`")
"""

import contextlib
import re
from collections.abc import Iterator, Mapping

from core.data import Examples, Source, Stream, check_examples
from core.errors import ConfigurationError, DataError, shown
from core.task import Task

EVAL = "eval"  # the held-out split, and the prefix of named sources' splits
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # becomes part of names of metrics and folders


def setting_of(split: str) -> str:
    """Returns the setting that binds the source of `split`."""
    name = split.removeprefix(f"{EVAL}/")
    return "`Experiment.eval_source`" if split == EVAL else f"`Experiment.eval_sources[{name!r}]`"


def by_split(eval_source: Source | None, eval_sources: Mapping[str, Source]) -> dict[str, Source]:
    """Returns {split: source}. Raises an error for streams, and for names that metrics and folders can't have."""
    for name in eval_sources:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ConfigurationError(
                f"`Experiment.eval_sources` calls a source {shown(name)}; its metrics and their folder have that "
                "name: use letters, digits, `_`, `-` and `.`."
            )
    first = {} if eval_source is None else {EVAL: eval_source}
    found = {**first, **{f"{EVAL}/{name}": source for name, source in eval_sources.items()}}
    for split, source in found.items():
        check_examples(setting_of(split).strip("`"), source)
        if isinstance(source, Stream):
            raise ConfigurationError(
                f"{setting_of(split)} is the stream `{source.name}`, but an evaluation needs a fixed number of "
                "examples: give a source, such as `@npz()` of a file with as many as you like."
            )
    return found


def check_held_out(task: Task, trained: Examples, held_out: Mapping[str, Source]) -> None:
    """Raises an error for features that the task can't read, and for another tokenizer than in training."""
    for split, source in held_out.items():
        setting = setting_of(split)
        try:
            task.check_source(source)
        except (ConfigurationError, DataError) as error:
            raise type(error)(f"{setting}: {error}") from error
        if trained.tokenizer and source.tokenizer and trained.tokenizer.identity != source.tokenizer.identity:
            raise ConfigurationError(
                f"{setting} has tokens of {shown(source.tokenizer.identity[:16])}, but those of "
                f"`Experiment.train_source` are of {shown(trained.tokenizer.identity[:16])}: give all sources one "
                "tokenizer."
            )


@contextlib.contextmanager
def refused_by_its_shape(task: Task, trained: Examples, split: str, source: Source) -> Iterator[None]:
    """Makes a `DataError` of a task's `ValueError`, if the features have other shapes than in training.

    Other shapes are fine if the task can use them: a convolutional network takes images of any size.
    """
    try:
        yield
    except ValueError as error:
        shapes = ", ".join(
            f"`{name}` of shape {tuple(spec.shape)}, not {tuple(trained.spec[name].shape)}"
            for name, spec in source.spec.items()
            if name in trained.spec and spec.shape != trained.spec[name].shape
        )
        if isinstance(error, ConfigurationError) or not shapes:
            raise
        raise DataError(
            f"{setting_of(split)} has examples of another shape than `Experiment.train_source`, and "
            f"`{type(task).__name__}.evaluate` can't compute with them: the source `{source.name}` has "
            f"{shapes}. Give it examples of the training shape. The first error is: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error
