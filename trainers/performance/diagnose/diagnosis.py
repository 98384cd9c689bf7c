"""One diagnosis: which points are measured, in which order, how long that takes, and what comes of it."""

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
from trainers.performance.diagnose.tell import as_json, crossing_table, parts_table, picture, scaling_table, tried_text
from trainers.performance.diagnose.verdict import Case, Remedy, Tried, Verdict
from trainers.performance.rehearsal import agreed, divisor
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import json_text

LONGEST_CHUNK_SECONDS = 1.0  # chunks of slower steps are cut, or measuring would take for ever
PROGRAMS = 5  # of a point, that are traced and timed; one more for each phase that sends
OTHER_BATCH_PROGRAMS = 2  # that are traced and timed to compare with another batch
QUICKER = 6  # times as long is the trace of the whole chunk as one of a part


class Diagnosis:
    """Measures an experiment, as its trainer has it and beside that."""

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
        # Of workers, one can measure what it makes alone; some of them would be another cluster.
        self.scales = found if self.mirrored else [scale for scale in found if scale.replicas in (1, here.replicas)]

    @property
    def devices(self) -> list[str]:
        """Names what each replica is on: a device, or a worker."""
        if self.cluster is None or self.mirrored:
            return self.local
        return [self.cluster.name(i) for i in range(self.cluster.size) for _ in self.local]

    def run(self, folder: Path) -> None:
        """Measures, tells, and keeps it in `folder`."""
        console = Console(highlight=False, quiet=not is_chief())
        console.print(
            f"measuring takes about {self._seconds()}; nothing that it trains is kept",
            soft_wrap=True,
        )
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
        console.print(f"all of it is in `{path}`, and as a picture in `{drawn}`", soft_wrap=True)

    def _seconds(self) -> str:
        """Estimates what measuring takes, from the one trace and the few steps that there have been."""
        bench = self.bench
        programs = PROGRAMS + len({entry.phase for entry in bench.trainer.train_step.exchange.ledger.collectives})
        timed = bench.traced / QUICKER + ROUNDS * bench.timed_steps * bench.seconds_a_step
        point, training = programs * timed, bench.training_seconds()
        first = len(self.scales) * (bench.traced + point + training) + OTHER_BATCH_PROGRAMS * timed
        line = bench.traced + 2 * training
        return f"{first:.0f} s beside two calls of each hook, and {line:.0f} s more for each line that could help"

    def _points(self) -> list[Point]:
        """Measures all scales; the last is as configured, and has the hooks' work as well."""
        points = []
        if self.mirrored or is_chief():
            points = [measured(self._other(self.local[:n], global_batch_size=b)) for n, b in self.scales[:-1]]
        self.bench.trainer.agreement.barrier()  # while one worker measures what it makes alone, the others rest
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
        ).verdict()

    def _fixed(self) -> float:
        """Returns what share of the passes is the same for any batch: measures another one for it, turn by turn."""
        settings = self.bench.trainer.settings
        size, least = settings.global_batch_size, settings.microbatches * len(self.devices)
        other = size // 4 if size % (4 * least) == 0 else 4 * size
        passes = {"here": self.bench.passes(), "there": self._other(global_batch_size=other).passes()}
        _, found = fractions(passes, of="here", most=ROUNDS)
        fixed = (found["there"] * size - other) / (size - other)  # of a line through both, where it has no examples
        return agreed([min(max(fixed, 0.0), 1.0)], self.bench.trainer.agreement)[0]

    def _tried(self, remedy: Remedy, before: Point) -> Tried:
        """Measures what a line does beside what is without it: the machine may be busier now than it was before."""
        bench = self._other(devices=remedy.devices, **_changes(remedy, self.bench.trainer.settings))
        step, interval = before.times.step, remedy.interval
        if interval:
            step += before.times.hooks[interval] * (bench.hooks()[interval] / self.bench.hooks()[interval] - 1.0)
        else:
            steps = {"before": lambda: self.bench.real()[0], "after": lambda: bench.real()[0]}
            step += before.times.real * (fractions(steps, of="before", most=STRETCHES)[1]["after"] - 1.0)
        return Tried(remedy, before.examples_per_second, bench.trainer.settings.global_batch_size / step)

    def _other(self, devices: Sequence[str] = (), **settings: Any) -> Bench:
        """Makes a bench like the configured one but for its devices, if they are given, and these settings."""
        trainer = self.bench.trainer
        # Of larger batches a chunk has fewer, or it would take as much more memory.
        larger = settings.get("global_batch_size", 0) / trainer.settings.global_batch_size
        chunk_steps = divisor(self.bench.chunk_steps, most=int(self.bench.chunk_steps / max(larger, 1.0)))
        changed: dict[str, Any] = {"chunk_steps": chunk_steps, **settings}
        experiment = trainer.experiment
        if devices:
            experiment = experiment.on(one_device(devices[0]) if len(devices) == 1 else mirrored(devices=devices))
        return Bench(_like(trainer, experiment, dataclasses.replace(trainer.settings, **changed)))


def _with_short_chunks(bench: Bench) -> Bench:
    """Returns the bench, or one like it whose chunks don't take too long."""
    steps = divisor(bench.chunk_steps, most=int(LONGEST_CHUNK_SECONDS / bench.seconds_a_step))
    if steps == bench.chunk_steps:
        return bench
    trainer = bench.trainer
    return Bench(_like(trainer, trainer.experiment, dataclasses.replace(trainer.settings, chunk_steps=steps)))


def _changes(remedy: Remedy, settings: Settings) -> dict[str, Any]:
    """Returns the settings that a line changes; a hook that is called less often is one more."""
    hooks = list(settings.hooks)
    for i, hook in enumerate(hooks):
        if hook.interval_name == remedy.interval:
            hooks[i] = copy.copy(hook)
            hooks[i].every = remedy.every
    return {**remedy.settings, "hooks": hooks}


def _like(trainer: Trainer, experiment: Experiment, settings: Settings) -> Trainer:
    return Trainer(experiment, trainer.workdir, settings)
