"""Time per step of adversarial training, against hand-written loops and Keras: `python -m benchmarks.adversarial`

Tapeloop trains `configs/digits_gan.gin` and `configs/digits_cyclegan.gin`. The hand-written loop is a graph loop for
that one step, which calls `next(iterator)`, with Adam written out or as a fused kernel. Keras runs `model.fit` with a
`train_step` that shares the same passes, in separate processes: with its defaults (one step a call, `train_step`
compiled by XLA), with as many steps a call as Tapeloop, and with its defaults without XLA. Times include input.
`--check` compares the hand-written step's losses with Tapeloop's from the same weights, and times nothing.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import gin
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.by_hand import checks
from benchmarks.by_hand import cyclegan as hand_cyclegan
from benchmarks.by_hand import gan as hand_gan
from benchmarks.by_hand.loop import batches_of, looped
from benchmarks.elsewhere import elsewhere
from benchmarks.in_keras import cyclegan as keras_cyclegan
from benchmarks.in_keras import gan as keras_gan
from benchmarks.pairs import interleaved, ratio
from trainers import configurables as configurables  # registers them with gin
from trainers import hooks
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

CONFIGS = Path(__file__).parents[1] / "configs"


class Case(NamedTuple):
    """A model in three versions, and how it is run."""

    config: str
    bindings: Sequence[str]
    by_hand: Callable[..., Any]
    in_keras: Callable[[], Any]
    agrees: Callable[[Any, Any], float]
    features: Sequence[str]
    batch: int
    chunk: int  # steps of one call from Python
    steps: int  # steps of a run: a multiple of `chunk`
    quick: bool  # enough for more peers


CASES = {
    "gan": Case(
        "digits_gan.gin", [], hand_gan.Gan, keras_gan.Gan, checks.gan,
        ["image"], hand_gan.BATCH, chunk=50, steps=1000, quick=True,
    ),
    "cyclegan": Case(
        "digits_cyclegan.gin", [f"steps = {hand_cyclegan.STEPS}", f"half = {hand_cyclegan.HALF}"],
        hand_cyclegan.CycleGan, keras_cyclegan.CycleGan, checks.cyclegan,
        ["a", "b"], hand_cyclegan.BATCH, chunk=10, steps=20, quick=False,
    ),
}  # fmt: skip


def main() -> None:
    """Prints one row per model and peer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    parser.add_argument("--only", choices=list(CASES), help="one of the models")
    parser.add_argument("--check", action="store_true", help="compare losses instead of times")
    flags = parser.parse_args()
    table = Table("model", "peer", "ours, ms a step", "peer, ms a step", "ratio of pairs", "95 % interval")
    for name, case in CASES.items():
        if flags.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            trainer = make_trainer(case, Path(scratch))
            if flags.check:
                difference = case.agrees(trainer.experiment.task, case.by_hand())
                print(f"{name}: hand-written losses differ from Tapeloop's by {difference:.0e} of their size")
                continue
            for row in rows(name, trainer, pairs=flags.pairs):
                table.add_row(name, *row)
    if not flags.check:
        Console(width=120).print(table)


def rows(name: str, trainer: Trainer, *, pairs: int) -> Iterator[tuple[str, ...]]:
    """Yields (peer, Tapeloop's milliseconds, the peer's milliseconds, median ratio, interval)."""
    case = CASES[name]
    hands = {"by hand": case.by_hand()}
    fits: dict[str, dict[str, Any]] = {
        "Keras": {},
        f"Keras, {case.chunk} steps a call": {"steps_per_execution": case.chunk},
        "Keras without XLA": {"jit_compile": False},
    }
    if case.quick:
        hands["by hand, Adam by its kernel"] = case.by_hand(kernel=True)
    runs: dict[str, Callable[[], object]] = {"ours": ours(trainer, case.steps // case.chunk)}
    sizes = {"ours": size_of(trained_by(trainer))}
    for peer, model in hands.items():
        runs[peer], sizes[peer] = loops(case, model), size_of(model.parameters)
    with contextlib.ExitStack() as processes:
        for peer, settings in fits.items():
            command = [sys.executable, "-m", "benchmarks.in_keras", name, json.dumps(settings)]
            keras = processes.enter_context(elsewhere(command))
            runs[peer], sizes[peer] = keras.run, keras.size
        assert len(set(sizes.values())) == 1, f"not all have as many parameters: {sizes}"
        seconds = interleaved(runs, pairs=pairs)
    for peer in list(runs)[1:]:
        median, low, high = ratio(seconds["ours"], seconds[peer])
        per_step = [f"{np.median(seconds[key]) / case.steps * 1e3:.2f}" for key in ("ours", peer)]
        yield peer, *per_step, f"{median:.2f}", f"{low:.2f} to {high:.2f}"


def make_trainer(case: Case, workdir: Path) -> Trainer:
    """Builds the trainer of the configuration without hooks or files."""
    experiment = experiment_of(case)  # which reads the configuration, the batch's size in it
    settings = Settings(
        steps=10**9, chunk_steps=case.chunk, log_every=10**8, evaluate_every=None, checkpoint_every=None, hooks=()
    )
    return Trainer(experiment, Workdir(workdir), settings)


def experiment_of(case: Case) -> Experiment:
    """Returns the experiment of the configuration."""
    gin.clear_config()
    hooks.register()
    gin.parse_config_files_and_bindings([str(CONFIGS / case.config)], case.bindings)
    return Experiment(eval_source=None)


def batches_for(case: Case) -> tf.data.Dataset:
    """Builds the same examples as data sets for the peers."""
    return batches_of(experiment_of(case).shown_source, case.features, case.batch)


def ours(trainer: Trainer, chunks_a_run: int) -> Callable[[], object]:
    """Returns the trainer's own loop."""
    chunks: Iterator[Any] = trainer.input.chunks_from(0)
    trainer.warm_up(next(chunks))
    trainer.state.step = trainer.input.chunk_steps

    def run() -> None:
        for _ in range(chunks_a_run):
            trainer.advance(next(chunks))

    return run


def loops(case: Case, model: Any) -> Callable[[], object]:
    """Returns the hand-written loop over as many chunks as Tapeloop's run has."""
    loop = looped(model.step, batches_for(case), figures=len(model.figures), steps=case.chunk)
    return lambda: [loop() for _ in range(case.steps // case.chunk)]


def trained_by(trainer: Trainer) -> list[tf.Variable]:
    """Returns every variable that Tapeloop's optimizers train."""
    return [v for optimizer in trainer.experiment.assembly.optimizers.values() for v in optimizer.parameters.values()]


def size_of(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.shape) for v in variables)


if __name__ == "__main__":
    main()
