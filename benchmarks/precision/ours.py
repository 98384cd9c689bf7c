"""Tapeloop's program: trains a work in one dtype, and reports the seconds of each run that is requested."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.elsewhere import answer
from benchmarks.peers.works import Arrays
from benchmarks.precision.works import WORKS
from core.data import ArraySource
from core.optimizers import adam
from core.random import Rng
from core.task import Task
from models.classifiers.mlp import MlpClassifier
from models.language.task import LanguageModel
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir


def make_experiment(name: str, arrays: Arrays) -> Experiment:
    """Makes the work's experiment on one device."""
    work = WORKS[name]

    def task(*, rng: Rng) -> Task:
        if work.sizes:
            return MlpClassifier(rng=rng, sizes=work.sizes, optimizer=adam(1e-4))
        return LanguageModel(
            rng=rng,
            vocabulary=work.vocabulary,
            context=work.context,
            num_layers=work.blocks,
            size=work.size,
            num_heads=work.heads,
            optimizer=adam(1e-4),
        )

    return Experiment(task=task, train_source=ArraySource(arrays, name=name))


def main() -> None:
    """Trains; the arguments are the work, the folder of its data, and the dtype."""
    name, folder, precision = sys.argv[1:]
    arrays = dict(np.load(Path(folder) / "data.npz"))
    settings = Settings(
        steps=10**9,
        global_batch_size=WORKS[name].batch,
        chunk_steps=WORKS[name].steps,
        log_every=10**8,
        evaluate_every=None,
        checkpoint_every=None,
        precision=precision,
    )
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(make_experiment(name, arrays), Workdir(Path(scratch)), settings)
        chunks: Iterator[Any] = trainer.input.chunks_from(0)
        trainer.warm_up(next(chunks))
        trainer.state.step = settings.chunk_steps or 1

        def run() -> None:
            trainer.advance(next(chunks))
            trainer.progress.bad_step.numpy()  # waits for the chunk

        answer(WORKS[name].steps, run)


if __name__ == "__main__":
    main()
