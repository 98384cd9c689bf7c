"""Writes the folder that a work's programs read: Tapeloop's data, initial weights and order of examples."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import gin
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.peers.works import WORKS, Arrays, Work, gin_files
from core.data.pipeline import position_indices
from core.random import Rng
from trainers import configurables as configurables  # registers them with gin
from trainers import hooks
from trainers.experiment import Experiment
from trainers.settings import Settings as Settings  # for its registrations, too


def lay_out(name: str, folder: Path) -> None:
    """Writes the named work into `folder`; writes nothing if only a first step is timed."""
    work = WORKS[name]
    if not work.check:
        return
    save(folder / "data.npz", work.data())
    said = {
        "name": name,
        "batch": lay_out_training(name, folder),
        "gin": [str(path) for path in gin_files(name)],
        "replicas": work.replicas,
        **{key: getattr(work, key) for key in ("chunk", "log", "check", "figure")},
    }
    (folder / "work.json").write_text(json.dumps(said))


def lay_out_training(name: str, folder: Path) -> int:
    """Writes the initial weights and the order of examples; returns the batch size."""
    gin.clear_config()
    bindings = [f"npz.path = {str(folder / 'data.npz')!r}", "Clock.every = 1", "Clock.check = 1", "Clock.seconds = 0.0"]
    hooks.register()
    gin.parse_config_files_and_bindings([str(path) for path in gin_files(name)], bindings)
    batch, experiment = int(gin.query_parameter("Trainer.global_batch_size")), Experiment()
    gin.clear_config()
    save(folder / "weights.npz", by_plain_name(experiment.task.parameters()))
    order = position_indices(
        experiment.shown_source,  # not a stream, so it is the trained source
        first_step=0,
        num_steps=WORKS[name].order,
        global_batch_size=batch,
        seed=experiment.seed,
    )
    np.save(folder / "order.npy", order.numpy().reshape(-1, batch).astype(np.int32))
    if WORKS[name].latents:
        np.save(folder / "latents.npy", latents_of(WORKS[name], batch, experiment.seed))
    return batch


def latents_of(work: Work, batch: int, seed: int) -> npt.NDArray[np.float32]:
    """Returns the latents of a GAN's steps, [steps, batch, latents]."""
    drawn = Rng.from_seed(seed).fold("train")

    @tf.function
    def of_step(step: tf.Tensor) -> tf.Tensor:
        return drawn.fold(step).fold("sample").fold("latent").rows.normal(batch, work.latents)

    return np.stack([of_step(tf.constant(step, tf.int64)).numpy() for step in range(work.order)])


def save(path: Path, arrays: Arrays) -> None:
    """Writes arrays by name."""
    np.savez(path, allow_pickle=False, **arrays)


def by_plain_name(parameters: Mapping[str, tf.Variable]) -> dict[str, npt.NDArray[np.generic]]:
    """Returns weights under the programs' names: without the network's name, queries, keys and values as one."""
    plain = {path.removeprefix("net/"): value.numpy() for path, value in parameters.items()}
    for path in [path for path in plain if re.search(r"attention/query/[wb]$", path)]:
        parts = [plain.pop(path.replace("query", part)) for part in ("query", "key", "value")]
        plain[path.replace("query", "qkv")] = np.concatenate(parts, axis=-1)
    return plain
