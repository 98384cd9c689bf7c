"""Writes given weights as a run's folder with one checkpoint."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from core import checkpoint
from core.checkpoint.manifest import PREFIX
from core.checkpoint.parts import key_of
from core.module import named_variables
from core.task.statistics import commit, refreshed
from trainers.average.soups import Values
from trainers.python_api.load import LoadedRun
from trainers.workdir import Workdir

# Entries of the manifest that hold for the average as well. Others belong to the training, such as states of hooks.
_KEPT = ("configuration", "source", "tokenizer", "replicas", "averages", "start_from", "stream")


def assign(run: LoadedRun, values: Values) -> None:
    """Assigns `values` to the task, and restarts its optimizers, so that their averages begin at the same values."""
    for path, variable in named_variables(run.experiment.task).items():
        variable.assign(values[path])
    commit(refreshed(run.experiment.task))
    for optimizer in run.experiment.assembly.optimizers.values():
        optimizer.restart()


def write(run: LoadedRun, values: Values, folder: Path, record: Mapping[str, Any]) -> Path:
    """Writes `values` to a checkpoint of `run`'s step in the new `folder`, with the run's configuration.

    Its optimizers restart. The manifest has `record` under `average_of`. Returns the path of the checkpoint.
    """
    assign(run, values)
    manifest = run.manifest
    shutil.copytree(run.path / "config", folder / "config")
    path = checkpoint.save(
        folder / "checkpoints",
        {**run.experiment.variables, **_others(run)},
        step=manifest.step,
        examples=manifest.examples,
        config_hash=manifest.config_hash,
        extra={**{key: manifest.extra[key] for key in _KEPT if key in manifest.extra}, "average_of": dict(record)},
    )
    Workdir(folder).write_result(step=manifest.step, exit_code=0, reason="an average", evaluation={})
    return path


def _others(run: LoadedRun) -> dict[str, tf.Variable]:
    """Returns what the checkpoint holds besides the experiment's variables, such as a loss scale, unchanged."""
    manifest = run.manifest
    names = manifest.variables.keys() - run.experiment.variables.keys()
    with checkpoint.plainly_named(manifest.path) as plain:
        reader = tf.train.load_checkpoint(f"{plain}/{PREFIX}")
        return {name: tf.Variable(reader.get_tensor(key_of(name)), trainable=False) for name in sorted(names)}
