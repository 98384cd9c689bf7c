"""`Trainer.stages`: batches that change at given steps, as `{1000: {"global_batch_size": 256, "microbatches": 4}}`.

A run saves a checkpoint where a stage ends, and the next stage resumes from it in the same process. So a border is as
exact as any other resume.
"""

from collections.abc import Mapping
from typing import Any

from core.arguments import is_size, listed
from core.data import Source, Stream, check_examples
from core.errors import ConfigurationError, did_you_mean, shown

Stages = Mapping[int, Mapping[str, Any]]
SOURCE = "train_source"
CHANGING = ("global_batch_size", "microbatches", SOURCE)


def check_stages(stages: object) -> None:
    """Raises a `ConfigurationError` for what isn't {first step: {setting: value}}."""
    wanted = '`{1000: {"global_batch_size": 256}}`'
    if not isinstance(stages, Mapping) or not stages:
        raise ConfigurationError(f"`Trainer.stages` is {shown(stages)}; give settings by first step: {wanted}.")
    for first, changes in stages.items():
        if not is_size(first):
            raise ConfigurationError(
                f"`Trainer.stages` has the key {shown(first)}; each key is the number of steps before the stage, and "
                f"at least 1: {wanted}."
            )
        if not isinstance(changes, Mapping) or not changes:
            raise ConfigurationError(
                f"`Trainer.stages` has {shown(changes)} at step {first}; give a dict of settings: {wanted}."
            )
        for name, value in changes.items():
            _check_change(first, name, value)


def settings_at(stages: Stages, step: int) -> dict[str, Any]:
    """Returns the settings that stages up to `step` have changed; the stage that begins at `step` is included."""
    changed: dict[str, Any] = {}
    for first in sorted(stages):
        if first <= step:
            changed |= stages[first]
    return changed


def sources(own: Source | Stream, stages: Stages) -> dict[int, Source | Stream]:
    """Returns the training sources by first step. Raises a `ConfigurationError` for one that is unlike `own`."""
    found = {0: own, **{first: changes[SOURCE] for first, changes in stages.items() if SOURCE in changes}}
    for first, source in found.items():
        if len(found) > 1 and isinstance(source, Stream):
            raise ConfigurationError(
                f"`Trainer.stages` changes the source, but that of step {first} is the stream `{source.name}`, whose "
                "position another source can't continue: give sources whose examples have numbers."
            )
        if _kinds(source) != _kinds(own):
            raise ConfigurationError(
                f"`Trainer.stages` has a source at step {first} whose features are {_listed_kinds(source)}, but those "
                f"of `Experiment.train_source` are {_listed_kinds(own)}: only shapes may change."
            )
        if (source.tokenizer and source.tokenizer.identity) != (own.tokenizer and own.tokenizer.identity):
            raise ConfigurationError(
                f"`Trainer.stages` has a source at step {first} whose tokens are another tokenizer's than those of "
                "`Experiment.train_source`: give all sources one tokenizer."
            )
    return dict(sorted(found.items()))


def _kinds(source: Source | Stream) -> dict[str, str]:
    return {key: x.dtype.name for key, x in sorted(source.spec.items())}


def _listed_kinds(source: Source | Stream) -> str:
    return listed(f"{key} {kind}" for key, kind in _kinds(source).items())


def _check_change(first: int, name: object, value: object) -> None:
    if name not in CHANGING:
        near = did_you_mean(name, CHANGING) if isinstance(name, str) else ""
        raise ConfigurationError(
            f"`Trainer.stages` changes {shown(name)} at step {first}; a stage may change {listed(CHANGING)}.{near}"
        )
    if name == SOURCE:
        check_examples(f"train_source` of step {first} in `Trainer.stages", value)
    elif not is_size(value):
        raise ConfigurationError(
            f"`Trainer.stages` has `{name}` {shown(value)} at step {first}; it must be at least 1. Give a whole number."
        )
