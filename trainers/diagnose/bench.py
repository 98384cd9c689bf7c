"""One way to run the experiment, traced and ready to be timed: with real input, on one batch, and in parts."""

import time
from collections.abc import Mapping
from typing import Any

from core.engine import ALL_WELL
from core.measure import Program, Whole, backward_program, forward_program, medians
from core.telemetry import JsonLines, Telemetry, TensorBoard
from trainers.bad_step import explain_bad_step
from trainers.diagnose.times import Times, split
from trainers.diagnosis import explained, repeatable_or_refused
from trainers.hooks.standard import CheckReplicas, Evaluate, LogMetrics, SaveCheckpoint
from trainers.trainer import Trainer

TIMED_SECONDS, ROUNDS = 0.1, 7  # of one call, and how often each program has its turn
REAL_SECONDS, REAL_CHUNKS, PATIENCE_SECONDS = 0.5, 3, 20.0  # of training by real input, twice
FETCHED_AHEAD = 2  # chunks that were made while nobody ate them: one is there, one on its way

STANDARD = {
    LogMetrics: "Trainer.log_every",
    Evaluate: "Trainer.evaluate_every",
    CheckReplicas: "Trainer.check_replicas_every",
    SaveCheckpoint: "Trainer.checkpoint_every",
}


class Bench:
    """A trainer whose steps are timed; what it learns is thrown away."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.chunk_steps = trainer, trainer.input.chunk_steps
        began = time.perf_counter()
        self.stacked: Any = next(trainer.input.chunks_from(0))
        self._whole = Program(trainer.chunk, trainer.progress)
        self._seconds(self._whole, 0)  # what XLA compiles, it compiles at the first call
        self.traced = time.perf_counter() - began
        self.seconds_a_step = min(self._seconds(self._whole, 1) for _ in range(2))
        self.timed_steps = max(1, min(self.chunk_steps, int(TIMED_SECONDS / self.seconds_a_step)))

    def times(self, hooks: Mapping[str, float] = {}) -> Times:
        """Measures the step and its parts."""
        before = self._real()
        programs = {"forward": forward_program(self._pieces), "both": backward_program(self._pieces)}
        programs |= {"whole": self._whole}
        found = self._medians(programs)
        after = self._real()
        real, waited = ((a + b) / 2 for a, b in zip(before, after, strict=True))
        return split(real=real, waited=waited, sent=found["both"], hooks=hooks, **found)

    def training(self) -> float:
        """Returns what a step takes by real input, without hooks."""
        return (self._real()[0] + self._real()[0]) / 2

    def synthetic(self) -> float:
        """Returns what a step takes on one batch."""
        found = self._medians({"whole": self._whole})
        return found["launch"] + found["whole"]

    def computing(self) -> float:
        """Returns what the passes forward and backward take."""
        return self._medians({"both": backward_program(self._pieces)})["both"]

    def hooks(self) -> dict[str, float]:
        """Returns what each hook costs a step, by the name that binds its interval; each is called twice.

        The first call may trace something: the second is what counts.
        """
        trainer, found = self.trainer, dict[str, float]()
        trainer.telemetry = Telemetry([JsonLines(trainer.workdir.metrics, 0), TensorBoard(trainer.workdir.path, 0)])
        for hook in trainer.hooks:
            hook.check(trainer)
        for hook in trainer.hooks:
            seconds = 0.0
            for _ in range(2):
                trainer.state.step += self.chunk_steps
                began = time.perf_counter()
                hook(trainer)
                seconds = time.perf_counter() - began
            name = STANDARD.get(type(hook), f"{type(hook).__name__}.every")
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

    def _medians(self, programs: Mapping[str, Program]) -> dict[str, float]:
        """Returns the medians of each program, a step, without what a call takes; and that, a step of a whole chunk."""
        for program in programs.values():
            self._seconds(program, 1)
        runs = {name: lambda p=program: self._seconds(p, self.timed_steps) for name, program in programs.items()}
        found = medians({"launch": lambda: self._seconds(self._whole, 0), **runs}, rounds=ROUNDS)
        self._refuse_bad_step()
        launch = found.pop("launch")
        steps = {name: max(seconds - launch, 0.0) / self.timed_steps for name, seconds in found.items()}
        return {"launch": launch / self.chunk_steps, **steps}

    def _seconds(self, program: Program, steps: int) -> float:
        with explained(self.trainer.input.source), repeatable_or_refused(self.trainer.experiment.deterministic):
            return program.seconds(self.stacked, steps)

    def _real(self) -> tuple[float, float]:
        """Trains by real input; returns what a step takes, and how long it waits for data."""
        chunks = self.trainer.input.chunks_from(0)
        calls = self.trainer.settings.parallel_calls
        for _ in range(FETCHED_AHEAD + (calls if calls > 1 else 0)):
            next(chunks)
        self._seconds(self._whole, self.chunk_steps)
        count, waited, least = 0, 0.0, max(REAL_CHUNKS, 2 * calls)
        began = time.perf_counter()
        while True:
            before = time.perf_counter()
            stacked = next(chunks)
            waited += time.perf_counter() - before
            self._whole.seconds(stacked, self.chunk_steps)
            count += 1
            passed = time.perf_counter() - began
            if passed > PATIENCE_SECONDS or (passed > REAL_SECONDS and count >= least):
                break
        self._refuse_bad_step()
        return passed / (count * self.chunk_steps), waited / (count * self.chunk_steps)

    def _refuse_bad_step(self) -> None:
        bad_step = int(self.trainer.progress.bad_step)
        if bad_step != ALL_WELL:
            raise explain_bad_step(self.trainer.train_step, self.trainer.input, bad_step)
