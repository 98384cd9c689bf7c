"""Identity of a run made by Python calls, which tells whether a folder holds the same run.

gin knows every value that it binds. The values in Python code are hidden in the caller. So the identity comes from the
objects: settings, sources, plain values of modules, names and learning rates of optimizers. Other values that a loss
uses aren't covered.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.data import Source, Stream
from core.errors import ConfigurationError
from core.module import named_modules
from core.optimizers import Optimizer, Transform
from trainers.experiment import Experiment
from trainers.gin_audit.identity import spelt_today
from trainers.gin_audit.statements import text
from trainers.settings import Settings

_UPDATES = (0, 100, 10_000)  # learning rates are compared at these updates
_PLAIN = bool | int | float | str | None


def python_identity(experiment: Experiment, settings: Settings, may_change: Sequence[str]) -> dict[str, str]:
    """Returns the identity of an experiment as {name: value}. `may_change` holds patterns of ignored names."""
    task = experiment.task
    found = {**described(experiment, settings), **_plain_values(task)}
    return {key: x for key, x in sorted(found.items()) if not any(fnmatch.fnmatchcase(key, p) for p in may_change)}


def read_python_identity(saved: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Converts `saved`, the identity in a manifest, to the form of this version.

    Versions may add or remove plain values of modules: only the values in both `saved` and `own` are compared.
    """
    if saved.get("Experiment.task", "").startswith("@"):
        raise ConfigurationError(
            "the folder holds a run made from gin files: resume it with the command that trained it, or train this one "
            "in another folder."
        )
    both = {key: x for key, x in spelt_today(saved).items() if key in own or not _is_of_module(key)}
    return dict(sorted({**{key: x for key, x in own.items() if _is_of_module(key)}, **both}.items()))


def described(experiment: Experiment, settings: Settings) -> dict[str, str]:
    """Returns {gin's name: value} of the experiment and the settings, as `{"Trainer.steps": "100"}`."""
    found = {"Experiment.task": text(type(experiment.task).__name__), "Experiment.seed": text(experiment.seed)}
    found["Experiment.train_source"] = text(_source(experiment.train_source))
    if experiment.eval_source is not None:
        found["Experiment.eval_source"] = text(_source(experiment.eval_source))
    if experiment.eval_sources:
        found["Experiment.eval_sources"] = text({name: _source(x) for name, x in experiment.eval_sources.items()})
    if (start := experiment.start_from) is not None:
        chosen = {name: getattr(start, name) for name in ("take", "rename", "transpose")}
        said = {name: dict(x) if isinstance(x, Mapping) else list(x) for name, x in chosen.items()}
        found["Experiment.start_from"] = text({"path": str(start.path), **said})
    if experiment.synthetic:
        found["Experiment.synthetic"] = "True"
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Transform):
            value = ", ".join(_names(value))
        if field.name == "stages" and value is not None:
            value = {step: {name: _plain(x) for name, x in changes.items()} for step, changes in value.items()}
        if field.name != "hooks" and value != field.default:
            found[f"Trainer.{field.name}"] = text(value)
    for phase, optimizer in experiment.assembly.optimizers.items():
        found[f"{phase}.optimizer"] = text(", ".join(_names(optimizer.transform)))
        if rates := _rates(optimizer):
            found[f"{phase}.learning_rate"] = text(rates)
    return found


def _plain(value: Any) -> Any:
    return _source(value) if isinstance(value, Source | Stream) else value


def _source(source: Source | Stream) -> str:
    spec = (f"{name} {x.dtype.name}[{','.join(map(str, x.shape))}]" for name, x in sorted(source.spec.items()))
    count = "a stream" if isinstance(source, Stream) else f"{len(source)} examples"
    return f"{count} of {source.name}: {', '.join(spec)}"


def _names(transform: Transform) -> list[str]:
    return [name for part in transform.parts for name in _names(part)] or [transform.name]


def _rates(optimizer: Optimizer) -> str:
    """Returns text on the learning rates at the updates `_UPDATES`, as far as the schedule is defined."""
    rates_of, said = optimizer.transform.rates, list[str]()
    if rates_of is None:
        return ""
    for update in _UPDATES:
        try:
            rates = rates_of({}, optimizer.slots, optimizer.parameters, step=tf.constant(update, tf.int64))
        except tf.errors.OpError:
            break
        said += [f"{float(rate):.4g}{f' of {group}' if group else ''} at {update}" for group, rate in rates.items()]
    return ", ".join(said)


def _plain_values(task: tf.Module) -> dict[str, str]:
    """Returns {path: value} of the numbers and strings in modules, as `{"task/net/width": "128"}`."""
    return {
        f"task/{path}/{name}" if path else f"task/{name}": text(value)
        for path, module in {"": task, **named_modules(task)}.items()
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))


def _is_of_module(key: str) -> bool:
    return key.startswith("task/")
