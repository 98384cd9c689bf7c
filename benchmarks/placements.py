"""Cost of a GAN's placements: `python -m benchmarks.placements [--pairs=15] [--replicas=2]`

Takes the same step in the four placements of `configs/digits_gan*.gin`, for two sizes of generator and batch. Reports
the time, what each device holds (parameters, averages and optimizer state), and what the replicas send each other.
Without GPUs the replicas are virtual devices that share memory and cores.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gin
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import interleaved, ratio
from core.distribution import mirrored
from core.distribution.virtual_devices import make_virtual_cpus
from trainers import configurables as configurables  # registers them with gin
from trainers import hooks
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

CONFIGS = Path(__file__).parents[1] / "configs"
PLACEMENTS = {
    "all on every replica": "digits_gan",
    "generator on one device": "digits_gan_generator_on_one_device",
    "sampling on every replica": "digits_gan_sampling_on_every_replica",
    "by batch size": "digits_gan_by_batch_size",
}
CHUNK = 20


class Size(NamedTuple):
    """Sizes of the generator and the batch."""

    hidden: Sequence[int]
    batch: int


SIZES = (Size([256, 256], 64), Size([256, 256], 512), Size([2048, 2048], 64))


def main() -> None:
    """Prints one row per size and placement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    parser.add_argument("--replicas", type=int, default=2, help="virtual devices, where there are no GPUs (default: 2)")
    flags = parser.parse_args()
    make_virtual_cpus(flags.replicas)
    gin.add_config_file_search_path(str(CONFIGS))
    table = Table(
        "generator", "batch", "placement", "ms a step", "ratio to the first", "95 % interval",
        "MB on the first device", "on each other", "kB sent a step",
    )  # fmt: skip
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            trainers = {
                name: make_trainer(config, size, flags.replicas, Path(scratch) / config)
                for name, config in PLACEMENTS.items()
            }
            seconds = interleaved({name: chunks_of(trainer) for name, trainer in trainers.items()}, pairs=flags.pairs)
        for name, trainer in trainers.items():
            median, low, high = ratio(seconds[name], seconds["all on every replica"])
            first, others = held(trainer)
            sent = sum(entry.bytes for entry in trainer.train_step.exchange.ledger.collectives)
            table.add_row(
                "64-" + "-".join(map(str, [*size.hidden, 64])), str(size.batch), name,
                f"{np.median(seconds[name]) / CHUNK * 1e3:.2f}", f"{median:.2f}", f"{low:.2f} to {high:.2f}",
                f"{first / 1e6:.2f}", f"{others / 1e6:.2f}", f"{sent / 1e3:.0f}",
            )  # fmt: skip
    Console(width=150).print(table)


def make_trainer(config: str, size: Size, replicas: int, workdir: Path) -> Trainer:
    """Builds the trainer of a configuration without hooks or files."""
    gin.clear_config()
    hooks.register()
    gin.parse_config_files_and_bindings([str(CONFIGS / f"{config}.gin")], [f"mlp_networks.g_hidden = {size.hidden}"])
    settings = Settings(
        steps=10**9, global_batch_size=size.batch, chunk_steps=CHUNK,
        log_every=10**8, evaluate_every=None, checkpoint_every=None, hooks=(),
    )  # fmt: skip
    experiment = Experiment(eval_source=None, strategy=mirrored(replicas=replicas))
    return Trainer(experiment, Workdir(workdir), settings)


def chunks_of(trainer: Trainer) -> Callable[[], object]:
    """Returns a function that runs one chunk."""
    chunks = trainer.input.chunks_from(0)
    trainer.warm_up(next(chunks))
    trainer.state.step = trainer.input.chunk_steps

    def run() -> None:
        trainer.advance(next(chunks))
        trainer.progress.bad_step.numpy()  # until all of it is done

    return run


def held(trainer: Trainer) -> tuple[int, int]:
    """Returns the bytes of variables on the first device, and on each of the others."""
    first = others = 0
    for variable in trainer.experiment.variables.values():
        copies = trainer.experiment.strategy.experimental_local_results(variable)
        size = variable.dtype.size * variable.shape.num_elements()
        first += size
        others += size if len(copies) > 1 else 0
    return first, others


if __name__ == "__main__":
    main()
