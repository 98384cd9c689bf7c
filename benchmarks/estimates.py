"""Estimates of a dry run next to measurements: `python -m benchmarks.estimates [NAME ...] [--write]`

For each configuration that trains here, or each one named, a fresh process trains with the real command, hooks,
evaluation and checkpoint included. It reads its resident memory before the first step, after the steps and at its peak,
and the clock around each chunk of steps. Another process makes the estimate, which also sets the number of steps.
`--write` updates the rows of these configurations in the tables of benchmarks/notes/estimates.md.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.machine import machine
from benchmarks.pages import rows_in, table, write

CHECKOUT = Path(__file__).resolve().parent.parent
NOTES = CHECKOUT / "benchmarks" / "notes" / "estimates.md"
MIB = 2**20
STEPS, MOST_STEPS, SECONDS = 100, 2000, 10.0  # fewer short steps are always disturbed
NOT_HERE = {"text_70b"}  # too large for the project's machines
# Configurations that train here only with fewer microbatches, or in few steps.
CHANGES = {
    "cifar10_speed": ["Trainer.steps = 2", "Trainer.checkpoint_every = 1", "Experiment.eval_source = None"],
    "cyclegan": ["Trainer.steps = 2", "Trainer.checkpoint_every = 1"],
    "text_small": [
        *("Trainer.steps = 2", "Trainer.checkpoint_every = 1"),
        *("Trainer.global_batch_size = 16", "Trainer.microbatches = 2"),
        "Experiment.eval_source = None",
    ],
}
LARGE = 200 * MIB  # of a step: less than this can't be told from what a process needs anyway
MEMORY = ("configuration", "a step adds, said", "measured", "peak, said", "measured", "off by")
TIME = ("configuration", "a step takes at least, said", "measured", "times as long")


def main() -> None:
    """Prints a row for each configuration, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="configurations (default: all that train here)")
    parser.add_argument("--write", action="store_true", help="write the tables into benchmarks/notes/estimates.md")
    flags = parser.parse_args()
    print(", ".join(f"{name} {x}" for name, x in machine().items()))
    print(" | ".join([*MEMORY, *TIME[1:]]))
    rows = dict[str, list[list[str]]](estimates=[], times=[])
    for name in flags.names or sorted(path.stem for path in (CHECKOUT / "configs").glob("*.gin")):
        if name not in NOT_HERE:
            memory, times = told(compared(name))
            print(" | ".join([f"`{name}`", *memory, *times]), flush=True)
            rows["estimates"].append([f"`{name}`", *memory])
            rows["times"].append([f"`{name}`", *times])
    if flags.write:
        page, tables = NOTES.read_text(), {}
        for key, head in (("estimates", MEMORY), ("times", TIME)):
            kept = {row[0]: row for row in [*rows_in(page, key), *rows[key]]}
            tables[key] = table(head, sorted(kept.values(), key=lambda row: row[0].strip("`")))
        write(tables)


def compared(name: str, steps: int | None = None) -> dict[str, float]:
    """Returns a configuration's estimated and measured bytes, and its times unless the number of steps is given."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [f"--gin_file={CHECKOUT / 'configs' / name}.gin"]
        words += [f"--gin_param={text}" for text in [*CHANGES.get(name, []), *_planted(name, Path(scratch))]]
        found = _in_a_fresh_process("said" if steps is None else "said_of_memory", words, scratch)
        if name not in CHANGES:
            enough = steps or min(max(STEPS, round(SECONDS / found["said_seconds"], -2)), MOST_STEPS)
            words.append(f"--gin_param=Trainer.steps = {enough:.0f}")
        return {**found, **_in_a_fresh_process("trained", words, scratch)}


def told(found: dict[str, float]) -> tuple[list[str], list[str]]:
    """Returns the memory and time cells of a row."""
    memory = [f"{found[key] / MIB:,.0f} MiB" for key in ("said_step", "step", "said_peak", "peak")]
    if found["step"] <= LARGE:
        memory[:2] = ["little", "little"]
    times = [f"{1e3 * found[key]:.3g} ms" for key in ("said_seconds", "seconds")]
    times.append(f"{found['seconds'] / found['said_seconds']:.2f}")
    return [*memory, f"{found['said_peak'] / found['peak'] - 1:+.0%}"], times


def said(words: Sequence[str]) -> dict[str, float]:
    """Estimates what a process needs, and how long a step takes."""
    return said_of_memory(words, times=True)


def said_of_memory(words: Sequence[str], *, times: bool = False) -> dict[str, float]:
    """Estimates what a process needs; with `times`, this machine's speeds are measured as well."""
    from trainers import main as command
    from trainers.dry_run.build import DryBuild
    from trainers.dry_run.memory import held_by_a_device, process
    from trainers.dry_run.time import measured_here
    from trainers.experiment import Experiment
    from trainers.gin_audit import audit
    from trainers.process.signals import Preemption
    from trainers.session import Session
    from trainers.settings import Settings

    flags = command.parse(words)
    configuration = audit.read(flags.gin_file, flags.gin_param, search=[CHECKOUT])
    Session(flags, configuration, Path("nowhere"), Preemption()).bind(required=[Experiment, Settings])
    build = DryBuild.from_gin()
    figures = build.figures()
    found = process(build, figures, held_by_a_device(build, figures))
    memory = {**{f"said_{name}": x for name, x in found._asdict().items()}, "said_peak": found.peak}
    return {**memory, "said_seconds": measured_here(build, figures)[1].seconds} if times else memory


def trained(words: Sequence[str]) -> dict[str, float]:
    """Trains in this process; returns its memory and times."""
    from core.measure import peak_memory, reset_peak_memory
    from trainers import main as command
    from trainers.loop.speed import memory_in_use
    from trainers.trainer import Trainer

    found, warm_up, take_steps = dict[str, float](), Trainer.warm_up, Trainer.take_steps

    def noting_before(self: Trainer, stacked: Any) -> None:
        warm_up(self, stacked)
        found["before"], found["peak"] = memory_in_use(), peak_memory()["process"]
        reset_peak_memory()

    def noting_after(self: Trainer, stacked: Any, count: int, *, run: Callable[..., object]) -> None:
        began, step = time.perf_counter(), self.step
        take_steps(self, stacked, count, run=run)
        self.progress.bad_step.numpy()  # until all of it is done
        seconds = (time.perf_counter() - began) / (self.step - step)
        found["seconds"] = min(found.get("seconds", seconds), seconds)
        alone = min(STEPS, self.settings.checkpoint_every or STEPS)
        if "step" not in found or self.step <= alone:  # hooks, evaluations and saves have allocated memory by then
            found["step"] = max(peak_memory()["process"] - found["before"], 0.0)

    with patch.object(Trainer, "warm_up", noting_before), patch.object(Trainer, "take_steps", noting_after):
        if command.main(words):
            raise SystemExit("error: the training failed")
    return {**found, "peak": max(found["peak"], peak_memory()["process"])}


def _in_a_fresh_process(what: str, words: Sequence[str], scratch: str) -> dict[str, float]:
    code = f"import json, sys; from benchmarks.estimates import {what}; found = {what}(sys.argv[1:])"
    command = [sys.executable, "-c", f"{code}; print(); print(json.dumps(found))", *words]
    # The estimates hold for these kernels: others use a fifth more memory while they compute.
    environment = {"TF_ENABLE_ONEDNN_OPTS": "1", **os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(words)}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _planted(name: str, folder: Path) -> list[str]:
    """Writes random files in place of a user's data; returns the bindings that point to these files."""
    random = np.random.RandomState(0)
    if name.startswith("mnist_"):
        for split, count in (("train", 60_000), ("t10k", 10_000)):
            for kind, array in (
                ("images-idx3", random.randint(0, 256, [count, 28, 28])),
                ("labels-idx1", random.randint(0, 10, [count])),
            ):
                with gzip.open(folder / f"{split}-{kind}-ubyte.gz", "wb", compresslevel=1) as file:
                    file.write(np.array([0x800 | array.ndim, *array.shape], ">i4").tobytes())
                    file.write(array.astype("uint8").tobytes())
        return [f"mnist.directory = '{folder}'"]
    if name == "cifar10_speed":
        for part in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            records = random.randint(0, 256, [10_000, 3073]).astype("uint8")
            records[:, 0] %= 10
            (folder / f"{part}.bin").write_bytes(records.tobytes())
        return [f"cifar10.directory = '{folder}'"]
    if name == "cyclegan":
        import tensorflow as tf

        for domain in ("trainA", "trainB", "testA", "testB"):
            (folder / domain).mkdir()
            for i in range(4):
                png = tf.io.encode_png(random.randint(0, 256, [256, 256, 3]).astype("uint8"))
                (folder / domain / f"{i}.png").write_bytes(png.numpy())
        return [f"directory = '{folder}'"]
    return []


if __name__ == "__main__":
    main()
