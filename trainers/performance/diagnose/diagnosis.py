"""One diagnosis: the points to measure, their order, the time it takes, and the results."""

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console

from core.cluster import is_chief, joined
from core.disk import write_whole
from core.distribution import mirrored, one_device
from core.measure import fractions
from trainers.experiment import Experiment
from trainers.performance.diagnose.bench import ROUNDS, STRETCHES, Bench
from trainers.performance.diagnose.points import Point, Scale, measured, scales
from trainers.performance.diagnose.tables import (
    as_json,
    crossing_table,
    parts_table,
    picture,
    scaling_table,
    tried_text,
)
from trainers.performance.diagnose.verdict import Case, Remedy, Tried, Verdict
from trainers.performance.rehearsal import agreed, divisor
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import json_text

LONGEST_CHUNK_SECONDS = 1.0  # chunks of slower steps are shortened to limit the time
PROGRAMS = 5  # programs per point to trace and time; one more for each phase with collectives
OTHER_BATCH_PROGRAMS = 2  # programs to trace and time for another batch size
QUICKER = 6  # tracing a part is this many times faster than the whole chunk


class Diagnosis:
    """Measures an experiment as configured, and with fewer replicas or smaller batches."""

    def __init__(self, trainer: Trainer):
        self.bench = _with_short_chunks(Bench(trainer))
        strategy = trainer.experiment.strategy
        self.local = [device.rpartition("device:")[2] for device in strategy.extended.worker_devices]
        membership = joined()
        self.cluster = membership.cluster if membership else None
        hosts = {address.rpartition(":")[0] for address in self.cluster.workers} if self.cluster else {""}
        self.shared = all(device.startswith("CPU") for device in self.local) and len(hosts) == 1
        self.mirrored = type(strategy) is tf.distribute.MirroredStrategy
        here = Scale(trainer.train_step.exchange.replicas, trainer.settings.global_batch_size)
        found = scales(here, trainer.settings.microbatches)
        # A single worker can be measured alone; some of several workers would need another cluster.
        self.scales = found if self.mirrored else [scale for scale in found if scale.replicas in (1, here.replicas)]

    @property
    def devices(self) -> list[str]:
        """Names each replica's place: a device, or a worker."""
        if self.cluster is None or self.mirrored:
            return self.local
        return [self.cluster.name(i) for i in range(self.cluster.size) for _ in self.local]

    def run(self, folder: Path) -> None:
        """Measures, prints, and writes the results to `folder`."""
        console = Console(highlight=False, quiet=not is_chief())
        console.print(f"measuring takes about {self._seconds()}; the trained weights are discarded", soft_wrap=True)
        points = self._points()
        numbers = agreed(points[-1].times.numbers(), self.bench.trainer.agreement)
        points[-1] = dataclasses.replace(points[-1], times=points[-1].times.with_numbers(numbers))
        verdict = self._verdict(points[-1])
        tried = [self._tried(remedy, points[-1]) for remedy in verdict.remedies]
        console.print(parts_table(points))
        if points[-1].times.crossings:
            console.print(crossing_table(points[-1]))
        if len(points) > 1:
            console.print(scaling_table(points, shared=self.shared))
        console.print(verdict.sentence, soft_wrap=True)
        for each in tried:
            console.print(tried_text(each), soft_wrap=True)
        if not is_chief():
            return
        title = f"{type(self.bench.trainer.experiment.task).__name__}, replicas x examples of each: a step"
        path, drawn = folder / "diagnosis.json", folder / "diagnosis.svg"
        found = json_text(as_json(points, verdict, tried, shared=self.shared))
        write_whole({path: found.encode(), drawn: picture(points, title).encode()})
        console.print(f"all results are in `{path}`, and as a picture in `{drawn}`", soft_wrap=True)

    def _seconds(self) -> str:
        """Estimates the measuring time from the first trace and steps."""
        bench = self.bench
        programs = PROGRAMS + len({entry.phase for entry in bench.trainer.train_step.exchange.ledger.collectives})
        timed = bench.traced / QUICKER + ROUNDS * bench.timed_steps * bench.seconds_a_step
        point, training = programs * timed, bench.training_seconds()
        first = len(self.scales) * (bench.traced + point + training) + OTHER_BATCH_PROGRAMS * timed
        line = bench.traced + 2 * training
        return f"{first:.0f} s plus two calls of each hook, and {line:.0f} s for each line that could help"

    def _points(self) -> list[Point]:
        """Measures all scales. The last point is the configured scale, with the hooks' work."""
        points = []
        if self.mirrored or is_chief():
            points = [measured(self._other(self.local[:n], global_batch_size=b)) for n, b in self.scales[:-1]]
        self.bench.trainer.agreement.barrier()  # other workers wait while one measures alone
        return [*points, measured(self.bench, self.bench.hooks())]

    def _verdict(self, point: Point) -> Verdict:
        trainer = self.bench.trainer
        return Case(
            point.times,
            trainer.settings,
            chunk_steps=self.bench.chunk_steps,
            source=trainer.input.source.name,
            devices=self.devices,
            mirrored=self.mirrored,
            fixed=self._fixed,
            recomputes=bool(trainer.experiment.recompute),
        ).verdict()

    def _fixed(self) -> float:
        """Returns the share of the passes' time that doesn't depend on the batch size. It times two sizes in turns."""
        settings = self.bench.trainer.settings
        size, least = settings.global_batch_size, settings.microbatches * len(self.devices)
        other = size // 4 if size % (4 * least) == 0 else 4 * size
        passes = {"here": self.bench.passes(), "there": self._other(global_batch_size=other).passes()}
        _, found = fractions(passes, of="here", most=ROUNDS)
        fixed = (found["there"] * size - other) / (size - other)  # intercept of the line through both
        return agreed([min(max(fixed, 0.0), 1.0)], self.bench.trainer.agreement)[0]

    def _tried(self, remedy: Remedy, before: Point) -> Tried:
        """Times a remedy and the configured settings in turns, because the machine's load may change."""
        bench = self._other(devices=remedy.devices, **_changes(remedy, self.bench.trainer.settings))
        step, interval = before.times.step, remedy.interval
        if interval:
            step += before.times.hooks[interval] * (bench.hooks()[interval] / self.bench.hooks()[interval] - 1.0)
        else:
            steps = {"before": lambda: self.bench.real()[0], "after": lambda: bench.real()[0]}
            step += before.times.real * (fractions(steps, of="before", most=STRETCHES)[1]["after"] - 1.0)
        return Tried(remedy, before.examples_per_second, bench.trainer.settings.global_batch_size / step)

    def _other(self, devices: Sequence[str] = (), **settings: Any) -> Bench:
        """Makes a bench like the configured one, with these settings and, if given, devices."""
        trainer = self.bench.trainer
        # Chunks of larger batches are shorter, so that they take no more memory.
        larger = settings.get("global_batch_size", 0) / trainer.settings.global_batch_size
        chunk_steps = divisor(self.bench.chunk_steps, most=int(self.bench.chunk_steps / max(larger, 1.0)))
        changed: dict[str, Any] = {"chunk_steps": chunk_steps, **settings}
        experiment = trainer.experiment
        if devices:
            experiment = experiment.on(one_device(devices[0]) if len(devices) == 1 else mirrored(devices=devices))
        return Bench(_like(trainer, experiment, dataclasses.replace(trainer.settings, **changed)))


def _with_short_chunks(bench: Bench) -> Bench:
    """Returns `bench`, or one like it whose chunks take at most `LONGEST_CHUNK_SECONDS`."""
    steps = divisor(bench.chunk_steps, most=int(LONGEST_CHUNK_SECONDS / bench.seconds_a_step))
    if steps == bench.chunk_steps:
        return bench
    trainer = bench.trainer
    return Bench(_like(trainer, trainer.experiment, dataclasses.replace(trainer.settings, chunk_steps=steps)))


def _changes(remedy: Remedy, settings: Settings) -> dict[str, Any]:
    """Returns the settings that a remedy changes. A hook whose interval changes is copied."""
    hooks = list(settings.hooks)
    for i, hook in enumerate(hooks):
        if hook.interval_name == remedy.interval:
            hooks[i] = copy.copy(hook)
            hooks[i].every = remedy.every
    return {**remedy.settings, "hooks": hooks}


def _like(trainer: Trainer, experiment: Experiment, settings: Settings) -> Trainer:
    return Trainer(experiment, trainer.workdir, settings)
