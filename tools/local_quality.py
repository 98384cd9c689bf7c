"""`python -m tools.local_quality [--seeds 0 1 2] [--param='steps = 400'] [--kept=DIR]`: quality cost of local steps.

Trains `text_nano` on four replicas with the real command for each seed: synchronously, and with local steps at separate
learning rates (`benchmarks/notes/local_steps.md`). Prints both held-out losses and the number of averages. The mean
loss of local steps must be within two hundredths of the synchronous one. It takes half an hour on two idle cores. Runs
stay in `--kept`, and resume when the command is called again.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.commands import CONFIGS, run

REPLICAS, ALLOWED = 4, 1.02
SYNCHRONOUS = ("text_nano", "runtime/mirrored")
LOCAL = (*SYNCHRONOUS, "runtime/local_steps")
# For four rows, not sixteen: a lower rate, less momentum, and a longer mean of squares, which are noisier.
GENTLER = ("adamw.beta_1 = 0.5", "adamw.beta_2 = 0.998", "warmup_cosine.peak_rate = 1.5e-3")
STRONGER = ("outer/sgd.learning_rate = 1.0", "outer/sgd.momentum = 0.85")


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains both with each seed, prints a table, and returns 1 if local steps cost more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--param", action="append", default=[], metavar="BINDING", help="a further gin binding")
    parser.add_argument(
        "--kept", type=Path, metavar="DIR", help="keeps runs there and resumes them; default: deletes them"
    )
    flags = parser.parse_args(arguments)
    table = Table("seed", "synchronous: loss", "met", "local: loss", "met", "ratio")
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        kept = (flags.kept or Path(scratch)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        for seed in flags.seeds:
            (ours, met), (theirs, others_met) = (
                train(files, seed, [*own, *flags.param], kept / f"{name}-{seed}")
                for name, files, own in (("synchronous", SYNCHRONOUS, ()), ("local", LOCAL, GENTLER + STRONGER))
            )
            table.add_row(
                str(seed), f"{ours:.4f}", f"{met:,}", f"{theirs:.4f}", f"{others_met:,}", f"{theirs / ours:.4f}"
            )
            print(f"seed {seed}: synchronous {ours:.4f}, local {theirs:.4f}", flush=True)
            found.append([ours, theirs])
    Console(width=100).print(table)
    synchronous, local = np.mean(found, axis=0)
    print(f"the mean of local steps is {local / synchronous:.4f} of the synchronous one; at most {ALLOWED} is allowed")
    return int(local > ALLOWED * synchronous)


def train(files: Sequence[str], seed: int, params: Sequence[str], workdir: Path) -> tuple[float, int]:
    """Returns the final held-out loss, and how often the replicas were averaged."""
    bindings = [f"Experiment.seed = {seed}", f"mirrored.replicas = {REPLICAS}", "Trainer.hooks = []", *params]
    configs = [f"--gin_file={CONFIGS / name}.gin" for name in files]
    flags = [*configs, *(f"--gin_param={text}" for text in bindings), f"--workdir={workdir}"]
    done = run(*flags, cwd=workdir.parent, timeout=6 * 3600)
    if done.returncode:
        raise RuntimeError(f"{workdir.name} ended with {done.returncode}:\n{done.stderr}")
    result = json.loads((workdir / "result.json").read_text())
    operative = (workdir / "config" / "operative.gin").read_text()
    (rounds,) = [
        line.rpartition("=")[2].strip() for line in operative.splitlines() if line.startswith("Trainer.local_steps ")
    ]
    return float(result["evaluation"]["loss"]), result["step"] // (1 if rounds == "None" else int(rounds))


if __name__ == "__main__":
    sys.exit(main())
