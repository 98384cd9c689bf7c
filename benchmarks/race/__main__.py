"""`python -m benchmarks.race --kept=DIR [--works ...] [--rules ...]`: each rule's steps and time to AdamW's loss.

The search trains each rule with two seeds per rate, and keeps the rate with the lowest mean held-out loss; all rules
try equally many rates. Then each rule trains with three other seeds over parts of AdamW's steps, its schedule
fitted to each. A rule has reached AdamW's loss where the line through its losses crosses the median of AdamW's final
ones. A mean would be easier to reach if a seed of AdamW failed. Runs stay in `--kept`; the command, called again,
trains what is missing.

Step times come from short runs in turns at the end: a machine in use slows the race, but not these ratios.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.race.rules import RULES
from benchmarks.running import CHECKOUT

SEARCH_SEEDS, SEEDS, PARTS = (100, 101), (0, 1, 2), (0.4, 0.6, 0.8, 1.0)
TURNS, PACE_STEPS = 5, 100


class Work(NamedTuple):
    """A configuration without an optimizer, and the steps that AdamW takes."""

    steps: int
    task: str
    undecayed: Sequence[str]  # patterns of parameters without weight decay
    ends: Sequence[str]  # of the matrices of the first and last layers
    file: str
    bindings: Sequence[str] = ()
    rates: float = 1.0  # a factor of the rates that the search tries


_TEXT = Work(2_000, "LanguageModel", ["b", "scale", "offset"], ["tokens/w", "positions/w"], "text_nano")
_SMALL = ["LanguageModel.num_layers = 2", "LanguageModel.size = 64", "LanguageModel.num_heads = 2", "context = 64"]
WORKS = {
    "text_nano": _TEXT,
    "text_pico": _TEXT._replace(bindings=_SMALL),  # a race of an hour
    "digits_convnet": Work(1_500, "ConvNetClassifier", ["b"], ["logits/w"], "digits_convnet"),
    "digits_resnet": Work(600, "ResNetClassifier", ["b", "scale", "offset"], ["logits/w"], "digits_resnet", rates=4.0),
}


def bindings(work: str, name: str, *, peak: float, seed: int, steps: int) -> list[str]:
    """Returns the bindings of a run, which complete the work's gin file."""
    rule, own = RULES[name], WORKS[work]
    return [
        f"{own.task}.optimizer = @chain()",
        f"chain.transforms = [@clip_by_global_norm(), {rule.transforms}]",
        "clip_by_global_norm.max_norm = 1.0",
        f"warmup_cosine.peak_rate = {peak}",
        f"warmup_cosine.warmup_steps = {min(100, steps // 4)}",
        *(text.format(undecayed=own.undecayed, ends=own.ends) for text in rule.bindings),
        *own.bindings,
        f"steps = {steps}",
        f"Experiment.seed = {seed}",
        f"Trainer.log_every = {max(1, steps // 20)}",
        "Trainer.evaluate_every = None",
    ]


def train(work: str, name: str, *, peak: float, seed: int, steps: int, kept: Path) -> float:
    """Trains by the real command, unless the run is there, and returns its final held-out loss."""
    folder = kept / work / name / f"peak={peak:g},steps={steps},seed={seed}"
    params = bindings(work, name, peak=peak, seed=seed, steps=steps)
    result = folder / "result.json"
    if not result.exists() or json.loads(result.read_text())["exit_code"]:
        command = [sys.executable, "-m", "trainers.main", f"--workdir={folder}"]
        command += [f"--gin_file=benchmarks/race/{WORKS[work].file}.gin", *(f"--gin_param={text}" for text in params)]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        if done.returncode == 3:  # not finite: a rate too high
            return np.inf
        if done.returncode:
            raise SystemExit(f"error: {folder.name} of {name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(json.loads(result.read_text())["evaluation"]["loss"])


def reached(lengths: Sequence[float], losses: Sequence[float], target: float) -> float:
    """Returns the least length, on the line through (length, loss), where the loss is at most `target`; else inf."""
    for i, loss in enumerate(losses):
        if loss <= target:
            if i == 0 or not np.isfinite(losses[i - 1]):
                return lengths[i]
            share = (losses[i - 1] - target) / (losses[i - 1] - loss)
            return lengths[i - 1] + share * (lengths[i] - lengths[i - 1])
    return np.inf


def searched(work: str, names: Sequence[str], steps: int, kept: Path) -> dict[str, float]:
    """Returns each rule's best rate."""
    best = {}
    for name in names:
        found = {}
        for peak in (rate * WORKS[work].rates for rate in RULES[name].peaks):
            losses = [train(work, name, peak=peak, seed=seed, steps=steps, kept=kept) for seed in SEARCH_SEEDS]
            found[peak] = float(np.mean(losses))
        best[name] = min(found, key=lambda peak: found[peak])
        edge = ", at the edge of its rates" if best[name] in (min(found), max(found)) else ""
        print(f"{work}, {name}: " + ", ".join(f"{p:g} {loss:.4f}" for p, loss in found.items()) + edge, flush=True)
    return best


def raced(work: str, best: dict[str, float], steps: int, kept: Path) -> dict[str, dict[float, list[float]]]:
    """Returns each rule's losses: by part of AdamW's steps, one for each seed."""
    losses: dict[str, dict[float, list[float]]] = {name: {part: [] for part in PARTS} for name in best}
    for seed in SEEDS:
        for part in PARTS:
            for name, peak in best.items():
                if name != "adamw" or part == 1.0:
                    loss = train(work, name, peak=peak, seed=seed, steps=round(part * steps), kept=kept)
                    losses[name][part].append(loss)
                    print(f"{work}, {name}, seed {seed}, {part:g} of the steps: {loss:.4f}", flush=True)
    return losses


def paces(work: str, best: dict[str, float], kept: Path) -> dict[str, float]:
    """Returns each rule's seconds a step over AdamW's: the median over rounds, in which the rules take turns."""
    found: dict[str, list[float]] = {name: [] for name in best}
    for turn in range(TURNS):
        for name, peak in best.items():
            with tempfile.TemporaryDirectory(dir=kept) as scratch:
                train(work, name, peak=peak, seed=turn, steps=PACE_STEPS, kept=Path(scratch))
                (metrics,) = Path(scratch).rglob("metrics.jsonl")
                lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            found[name].append(float(np.median([line["step_seconds"] for line in lines if line["split"] == "train"])))
        times = ", ".join(f"{name} {1e3 * each[-1]:.1f} ms" for name, each in found.items())
        print(f"{work}, turn {turn + 1}: {times}", flush=True)
    return {name: float(np.median(np.array(each) / found["adamw"])) for name, each in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table for each work."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--kept", type=Path, required=True, metavar="DIR", help="where runs stay")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), metavar="NAME", help=", ".join(WORKS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="NAME", help=", ".join(RULES))
    parser.add_argument("--steps", type=int, help="AdamW's, in place of the work's own")
    flags = parser.parse_args(arguments)
    names, kept = ["adamw", *(name for name in flags.rules if name != "adamw")], flags.kept.resolve()
    print(machine())
    for work in flags.works:
        steps = flags.steps or WORKS[work].steps
        best = searched(work, names, steps, kept)
        losses, pace_of = raced(work, best, steps, kept), paces(work, best, kept)
        target = float(np.median(losses["adamw"][1.0]))
        table = Table("rule", "held-out loss", "steps to AdamW's", "of its steps", "a step's time", "of its time",
                      title=f"{work}: {steps:,} steps of AdamW to {target:.4f}")  # fmt: skip
        for name, found in losses.items():
            final, pace = found[1.0], pace_of[name]
            by_seed = [1.0] if name == "adamw" else [
                reached(PARTS, [found[part][i] for part in PARTS], target) for i in range(len(SEEDS))
            ]  # fmt: skip
            least, most = min(by_seed), max(by_seed)
            share = float(np.mean(by_seed))
            span = f"{share:.2f} ({least:.2f} to {most:.2f})"
            reach = f"{share * steps:,.0f}" if np.isfinite(share) else "not reached by each seed"
            table.add_row(name, f"{np.mean(final):.4f} ({min(final):.4f} to {max(final):.4f})",
                          reach, span, f"{pace:.2f}", f"{share * pace:.2f}")  # fmt: skip
        Console(width=130).print(table)


if __name__ == "__main__":
    main()
