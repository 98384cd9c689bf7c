"""`python -m tools.local_quality [--ways muon ...] [--seeds 0 1 2] [--kept=DIR]`: quality cost of local steps.

Trains `text_nano` on four replicas with the real command for each seed: synchronously, with local steps at separate
learning rates, and with Muon within local steps (`benchmarks/notes/local_steps.md`). Prints held-out losses and the
number of averages. The mean loss of local steps must be within two hundredths of the synchronous one, and that of Muon
no higher. Each way takes a quarter of an hour on two idle cores, Muon twice that. Runs stay in `--kept`, and resume
when the command is called again.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.commands import CONFIGS, run

REPLICAS = 4
# For four rows, not sixteen: a lower rate, less momentum, and a longer mean of squares, which are noisier.
GENTLER = ("adamw.beta_1 = 0.5", "adamw.beta_2 = 0.998", "warmup_cosine.peak_rate = 1.5e-3")
STRONGER = ("outer/sgd.learning_rate = 1.0", "outer/sgd.momentum = 0.85")
# Matrices have Muon; embeddings and the last layer have the gentler AdamW.
MUON = (
    "chain.transforms = [@clip_by_global_norm(), @muon()]",
    "muon.learning_rate = @matrices/warmup_cosine()",
    "matrices/warmup_cosine.peak_rate = 0.01",
    "muon.weight_decay = 0.1",
    "muon.other_for = ['tokens/w', 'positions/w']",
    "muon.other = @adamw()",
)


class Way(NamedTuple):
    """A way to train: what it adds to the synchronous run, and its highest mean loss over the synchronous one."""

    files: Sequence[str]
    bindings: Sequence[str]
    allowed: float


WAYS = {
    "synchronous": Way((), (), 1.0),
    "local": Way(("runtime/local_steps",), (*GENTLER, *STRONGER), 1.02),
    "muon": Way(("runtime/local_steps",), (*GENTLER, *STRONGER, *MUON), 1.0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains each way with each seed, prints a table, and returns 1 if one costs more than allowed."""
    parser = argparse.ArgumentParser(prog="python -m tools.local_quality", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--param", action="append", default=[], metavar="BINDING", help="a further gin binding")
    parser.add_argument(
        "--kept", type=Path, metavar="DIR", help="keeps runs there and resumes them; default: deletes them"
    )
    flags = parser.parse_args(arguments)
    names = ["synchronous", *(name for name in flags.ways if name != "synchronous")]
    table = Table("way", *(f"seed {seed}" for seed in flags.seeds), "averages", "mean, of the synchronous one")
    mean: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        kept = (flags.kept or Path(scratch)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        for name in names:
            losses = []
            for seed in flags.seeds:
                loss, averages = train(WAYS[name], seed, flags.param, kept / f"{name}-{seed}")
                print(f"{name}, seed {seed}: {loss:.4f}", flush=True)
                losses.append(loss)
            mean[name] = float(np.mean(losses))
            ratio = mean[name] / mean["synchronous"]
            table.add_row(name, *(f"{loss:.4f}" for loss in losses), f"{averages:,}", f"{ratio:.4f}")
    Console(width=100).print(table)
    failed = [name for name in names if mean[name] > WAYS[name].allowed * mean["synchronous"]]
    for name in failed:
        print(f"the mean of {name} is above the {WAYS[name].allowed:g} that is allowed")
    return int(bool(failed))


def train(way: Way, seed: int, params: Sequence[str], workdir: Path) -> tuple[float, int]:
    """Returns the final held-out loss, and how often the replicas were averaged."""
    bindings = [f"Experiment.seed = {seed}", f"mirrored.replicas = {REPLICAS}", "Trainer.hooks = []"]
    configs = [f"--gin_file={CONFIGS / name}.gin" for name in ("text_nano", "runtime/mirrored", *way.files)]
    given = (f"--gin_param={text}" for text in (*bindings, *way.bindings, *params))
    done = run(*configs, *given, f"--workdir={workdir}", cwd=workdir.parent, timeout=6 * 3600)
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
