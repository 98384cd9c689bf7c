"""Runs the experiment for timing: with real input, on one batch, and in parts."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping

from core.cluster import is_chief
from core.measure import (
    Program,
    Whole,
    backward_program,
    collective_programs,
    forward_program,
    fractions,
    turns_program,
)
from core.telemetry import JsonLines, Telemetry, TensorBoard
from trainers.loop.run_hooks import CheckReplicas, Evaluate, LogMetrics, SaveCheckpoint
from trainers.performance.diagnose.times import Measured, Times, split
from trainers.performance.rehearsal import REAL_CHUNKS, REAL_SECONDS, Rehearsal, later_elsewhere, of_each_replica
from trainers.trainer import Trainer

TIMED_SECONDS, ROUNDS = 0.1, 7  # of one call, and calls of each program
STRETCHES = 3  # of training with real input

STANDARD = {
    LogMetrics: "Trainer.log_every",
    Evaluate: "Trainer.evaluate_every",
    CheckReplicas: "Trainer.check_replicas_every",
    SaveCheckpoint: "Trainer.checkpoint_every",
}


class Bench(Rehearsal):
    """A trainer whose steps are timed as a whole, on one batch, and in parts."""

    def __init__(self, trainer: Trainer):
        super().__init__(trainer)
        self.timed_steps = max(1, min(self.chunk_steps, int(TIMED_SECONDS / self.seconds_a_step)))

    def times(self, hooks: Mapping[str, float] = {}) -> Times:
        """Measures a step and its parts. `hooks` is {name of a hook's interval: seconds per step}."""
        pieces, bytes_of = self._pieces, dict[str, int]()
        for entry in pieces.step.exchange.ledger.collectives:
            bytes_of[entry.phase] = bytes_of.get(entry.phase, 0) + entry.bytes
        programs = {"forward": forward_program(pieces), "both": backward_program(pieces)}
        sent = collective_programs(pieces)
        runs = {**programs, **sent, "whole": self._whole}
        launched = functools.partial(self._seconds, self._whole, 0)
        _, found = fractions({"launch": launched, **self._timed(runs)}, of="whole", most=ROUNDS)
        alone = self._alone(pieces) if pieces.step.exchange.replicas > 1 else []
        real, waited, synthetic = self.training()
        self.refuse_bad_step()
        # A timed call has several steps and one call overhead; in training it has a whole chunk.
        launch = found["launch"] / self.chunk_steps
        steps = {name: max(found[name] - found["launch"], 0.0) / self.timed_steps for name in runs}
        unit = synthetic / (launch + steps["whole"])
        # With other processes, collectives wait for the slowest replica; separate passes don't.
        later = later_elsewhere(alone)
        of_forward = min(steps["forward"] / max(steps["both"], 1e-9), 1.0)
        measured = Measured(
            real=real,
            waited=waited,
            launch=launch * unit,
            forward=steps["forward"] * unit + later * of_forward,
            both=steps["both"] * unit + later,
            sent={phase: steps[phase] * unit for phase in sent},
            whole=steps["whole"] * unit,
            alone=alone,
        )
        return split(measured, bytes_of, hooks)

    def training(self) -> tuple[float, float, float]:
        """Returns three times in seconds per step: of training without hooks, of waiting for data, and on one batch."""
        waits = list[float]()

        def real() -> float:
            step, waited = self.real()
            waits.append(waited / step)
            return step

        step, found = fractions({"real": real, "synthetic": self.synthetic}, of="real", most=STRETCHES)
        # Steps on one batch can't be slower than with real input; if they seem so, the machine was busy.
        return step, step * statistics.median(waits), step * min(found["synthetic"], 1.0)

    def synthetic(self) -> float:
        """Returns the seconds of a step on one batch."""
        first = self._seconds(self._whole, self.chunk_steps)
        more = min(REAL_CHUNKS, int(TIMED_SECONDS / (self.chunk_steps * self.seconds_a_step)))
        calls = [first, *(self._seconds(self._whole, self.chunk_steps) for _ in range(more))]
        return statistics.median(calls) / self.chunk_steps

    def training_seconds(self) -> float:
        """Estimates the seconds that `training` takes if steps never wait for examples."""
        chunk = self.chunk_steps * self.seconds_a_step
        real = chunk + max(REAL_SECONDS, REAL_CHUNKS * chunk)
        return STRETCHES * (real + chunk + min(REAL_CHUNKS * chunk, TIMED_SECONDS))

    def passes(self) -> Callable[[], float]:
        """Returns a function that times the forward and backward passes, in seconds a step."""
        timed = self._timed({"both": backward_program(self._pieces)})["both"]
        return lambda: timed() / self.timed_steps

    def hooks(self) -> dict[str, float]:
        """Returns {name of a hook's interval: the hook's seconds per step}.

        Each hook is called twice: the first call may trace functions, and the second call is timed.
        """
        trainer, found = self.trainer, dict[str, float]()
        if is_chief():
            folder = trainer.workdir
            trainer.telemetry = Telemetry([JsonLines(folder.metrics, 0), TensorBoard(folder.events, 0)])
        for hook in trainer.hooks:
            hook.check(trainer)
        for hook in trainer.hooks:
            seconds = 0.0
            for _ in range(2):
                trainer.state.advance(trainer.step + self.chunk_steps)
                began = time.perf_counter()
                hook(trainer)
                seconds = time.perf_counter() - began
            name = STANDARD.get(type(hook), hook.interval_name)
            found[name] = found.get(name, 0.0) + seconds / (hook.every or trainer.steps)
        trainer.telemetry.close()
        return found

    @property
    def _pieces(self) -> Whole:
        trainer = self.trainer
        return Whole(
            trainer.experiment.assembly,
            trainer.train_step,
            trainer.input.batch_spec,
            trainer.input.chunk_spec,
            steps=trainer.steps,
            seed=trainer.experiment.seed,
        )

    def _alone(self, pieces: Whole) -> list[float]:
        """Returns for each replica the seconds per step of its forward and backward passes, run alone."""
        program, exchange = turns_program(pieces)
        self._seconds(program, 1)
        rounds = []
        for _ in range(ROUNDS):
            before = exchange.seconds()
            self._seconds(program, self.timed_steps)
            rounds.append([(b - a) / self.timed_steps for a, b in zip(before, exchange.seconds(), strict=True)])
        alone = [statistics.median(found) for found in zip(*rounds, strict=True)]
        return of_each_replica(alone, self.trainer.agreement)

    def _timed(self, programs: Mapping[str, Program]) -> dict[str, Callable[[], float]]:
        """Calls each program once, and returns functions that time a further call of it."""
        for program in programs.values():
            self._seconds(program, 1)
        return {name: functools.partial(self._seconds, p, self.timed_steps) for name, p in programs.items()}
