"""`python -m benchmarks.profile [--work=conv] [--gin_param=...] [--write]`: divides a step's time among operations.

Trains one of the works, or the configuration of `--gin_file`, as a user would. It is timed first without a profiler and
then with TensorFlow's, whose events give each kind of operation its share of that time. Operations of a few
microseconds leave no events: they count as starting operations. Profiling slows every kind, so shares are right to a
few per cent. `--write` puts the table into `benchmarks/notes/performance.md`.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gin
import tensorflow as tf

from benchmarks import pages
from benchmarks.machine import machine
from benchmarks.profile.kinds import kind_of
from benchmarks.profile.limits import Limits, measured
from benchmarks.profile.trace import CHUNK, WAIT, Shares, shares, traced
from benchmarks.profile.works import CONFIGS, WORKS
from core.estimate import kinds_in
from trainers import configurables as configurables  # registers them with gin
from trainers import hooks
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

HEAD = ["part of a step", "ms", "share", "operations", "GFLOP/s"]
SECONDS, PROFILED = 2.0, 0.5  # of training: without a profile; with one, at most and at least
CHUNKS, LEAST = 50, 3  # of each: at most, and at least


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table, and the machine's peak rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--work", choices=WORKS, default="conv", help="what is trained (default: conv)")
    parser.add_argument("--gin_file", action="append", default=[], help="a configuration to train in its place")
    parser.add_argument(
        "--gin_param", action="append", default=[], help="a further binding, such as `Trainer.compile = 'xla'`"
    )
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/notes/performance.md")
    flags = parser.parse_args(arguments)
    if flags.write and (flags.gin_file or flags.gin_param):
        parser.error("`--write` is for the page's own works, as they are: leave `--gin_file` and `--gin_param` out.")
    files, bindings = flags.gin_file, flags.gin_param
    if not files:
        config, own = WORKS[flags.work]
        files, bindings = [str(CONFIGS / config)] if config else [], [*own, *bindings]
    gin.clear_config()
    hooks.register()
    gin.parse_config_files_and_bindings(files, bindings)
    limits = measured()
    with tempfile.TemporaryDirectory() as scratch:
        rows, said = profiled(Path(scratch), limits)
    gin.clear_config()
    text = pages.table(HEAD, rows)
    print(text, said, sep="\n")
    if flags.write:
        pages.write({f"profile: {flags.work}": f"{text}\n{said}\n"})


def profiled(workdir: Path, limits: Limits) -> tuple[list[list[str]], str]:
    """Trains as gin is configured; returns the rows of the table, and a sentence below it."""
    trainer = Trainer(
        Experiment(eval_source=None),
        Workdir(workdir),
        Settings(steps=10**9, log_every=10**8, evaluate_every=None, checkpoint_every=None, hooks=()),
    )
    chunks, steps = trainer.input.chunks_from(0), trainer.input.chunk_steps
    trainer.warm_up(next(chunks))

    def chunk() -> float:
        began = time.perf_counter()
        with tf.profiler.experimental.Trace(WAIT):
            stacked = next(chunks)
        with tf.profiler.experimental.Trace(CHUNK):
            trainer.advance(stacked)
        return time.perf_counter() - began

    chunk()
    first = chunk()
    seconds = [chunk() for _ in range(_count(SECONDS / first))]
    often = _count(PROFILED / first)
    space = traced(lambda: [chunk() for _ in range(often)])
    step = statistics.median(seconds) / steps
    done = defaultdict[str, float](float)
    for kind, times in kinds_in(trainer.chunk.get_concrete_function().graph).items():
        done[kind_of("", kind.type)] += times * kind.operations
    return _rows(shares(space), step, often * steps, done, limits), _said(step, done, limits)


def _count(chunks: float) -> int:
    return max(LEAST, min(CHUNKS, round(chunks)))


def _rows(found: Shares, step: float, steps: int, done: Mapping[str, float], limits: Limits) -> list[list[str]]:
    """Returns one row per kind of work, the longest first."""
    whole, rows = sum(found.picoseconds.values()), []
    for kind, picoseconds in found.picoseconds.most_common():
        share = picoseconds / whole
        speed = done.get(kind, 0.0) / (share * step) if share else 0.0
        count = f"{found.counts[kind] / steps:,.0f}" if found.counts[kind] else ""
        products = f"{speed / 1e9:,.0f} ({speed / limits.operations:.0%} of the peak)" if speed else ""
        rows.append([kind, f"{1e3 * share * step:.3f}", f"{share:.1%}", count, products])
    return rows


def _said(step: float, done: Mapping[str, float], limits: Limits) -> str:
    here = machine()
    return (
        f"A step took {1e3 * step:.3f} ms, {1 / step:,.1f} a second, at {sum(done.values()) / step / 1e9:,.0f} GFLOP/s "
        f"of products. This machine, {here['cores']} cores of {here['processor']}, {limits.said()}."
    )


if __name__ == "__main__":
    main()
