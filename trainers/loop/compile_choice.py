"""`Trainer.compile = "auto"`: chooses what XLA compiles, by measuring in the first seconds of a run.

The compared programs take turns on steps of the first chunk. Then all variables get their old values back, so measuring
trains nothing. The choice is saved in the workdir before the first step, and a resumed run uses the same program.
"""

import functools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.arguments import listed
from core.cluster import is_chief
from core.disk import write_whole
from core.engine import ALL_WELL, TrainStep
from core.machine import processor, usable_cores
from core.measure.clock import Round, medians, rounds
from trainers.errors.tensorflow import refused_by_xla
from trainers.loop.run_state import RunContext, RunState
from trainers.options.compile import AUTO, OFF, XLA, Compile, compile_words, what_to_compile
from trainers.workdir import CHOICE, json_text

CALL_SECONDS = 0.15  # shortest measured call, if the chunk has enough steps
MEASURING_SECONDS = 4.0  # once the programs are made
MAKING_SECONDS = 30.0  # which further programs may take; the first of XLA's is made, however long that takes
LEAST_ROUNDS, MOST_ROUNDS = 2, 7
ENOUGH = 1.03  # times as fast as without XLA has a choice to be: that it compiles for seconds at each start has to pay
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
Program = Callable[[Any, Any], object]  # called with a chunk and the position in it


class Choice(NamedTuple):
    """A value of `Trainer.compile`, and its program."""

    compile: Compile
    program: Program


class Choosing:
    """Chooses what XLA compiles, and records the choice in the workdir."""

    def __init__(
        self,
        context: RunContext,
        make_program: Callable[[], Program],
        *,
        note: Callable[[str], object],
        alive: Callable[[], object],
        look: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """`make_program` traces a chunk with the compilation set in the step. `look` may end the run on all workers."""
        self._train_step, self._state, self._agreement = context.train_step, context.state, context.agreement
        self._make_program, self._note, self._alive, self._look, self._clock = make_program, note, alive, look, clock
        self._kept = KeptChoice(self._train_step, self._state, note=note)

    def choose(self, stacked: Any) -> Program:
        """Returns the program recorded for this machine, or else the fastest one, measured on the chunk `stacked`."""
        remembered = self._of_chief(self._kept.here() if is_chief() else None)
        if remembered is not None:
            try:
                program = self._made(remembered, stacked, 0)
            except tf.errors.OpError as error:  # the step is another one since
                reason = refused_by_xla(error)
                if reason is None:
                    raise
                self._note(f"compile: {_said(remembered)}, as `{CHOICE}` remembers, is out: {reason}: measured again")
            else:
                self._note(f"compile: {_said(remembered)}, as `{CHOICE}` remembers")
                return program
        state = self._state
        counted = state.skipping.variables if state.skipping else []
        progress = [*state.progress.variables.values(), state.progress.bad_step]
        written = [*state.variables.values(), *progress, *counted]
        kept = [(part, tf.identity(part)) for variable in written for part in self._parts(variable)]
        try:
            return self._fastest(stacked)
        finally:
            for part, value in kept:
                part.assign(value)

    def again(self) -> Program:
        """Returns the program that the run has recorded, even on another machine. It measures and writes nothing."""
        words = self._of_chief(self._kept.anywhere() if is_chief() else None)
        self._train_step.compile(what_to_compile(words or OFF))
        return self._make_program()

    def _fastest(self, stacked: Any) -> Program:
        began, refused = self._clock(), dict[str, str]()
        programs = {OFF: Choice(OFF, self._made(OFF, stacked, 1))}
        last = -math.inf  # seconds that the one before took
        self._look()
        for words in self._others():
            making = self._clock()
            if self._of_chief(bool(making - began + last > MAKING_SECONDS)):
                refused[_said(words)] = "programs take too long to make"
                continue
            self._alive()
            try:
                programs[_said(words)] = Choice(words, self._made(words, stacked, 1))
            except tf.errors.OpError as error:
                full = isinstance(error, tf.errors.ResourceExhaustedError)  # XLA may take more than kernels do
                reason = "there is no room for its program" if full else refused_by_xla(error)
                if reason is None:
                    raise
                refused[_said(words)] = reason
                self._note(f"compile: {_said(words)} is out: {reason}")
            last = self._clock() - making
            self._look()
        seconds = self._timed(programs, stacked)
        best = min(seconds, key=lambda name: seconds[name] * (1.0 if name == OFF else ENOUGH), default=OFF)
        chosen = programs[self._of_chief(best)]
        if is_chief():
            self._kept.write(chosen.compile, seconds, refused)
        told = ", ".join(f"{name} {1e3 * x:.3g} ms" for name, x in seconds.items()) or "a step wasn't finite"
        self._note(f"compile: {_said(chosen.compile)} (a step: {told}; measured in {self._clock() - began:.1f} s)")
        self._train_step.compile(what_to_compile(chosen.compile))
        return chosen.program

    def _others(self) -> list[Compile]:
        """Lists the choices besides "off": XLA for everything, or for a single update, as `{"net": "xla"}`."""
        updates = list(self._train_step.specs)
        self._train_step.compile(True)
        if not self._train_step.compiles:
            return []
        alone = [] if len(updates) == 1 and not self._train_step.whole else updates
        return [XLA, *({name: XLA} for name in alone)]

    def _made(self, words: Compile, stacked: Any, steps: int) -> Program:
        """Traces a program and runs `steps` steps with it; XLA compiles a single update at its first step."""
        self._train_step.compile(what_to_compile(words))
        program = self._make_program()
        program(stacked, self._place(0, 0, steps))
        return program

    def _timed(self, programs: Mapping[str, Choice], stacked: Any) -> dict[str, float]:
        """Returns the median seconds of a step with each program; empty if a step isn't finite."""
        steps, unit = self._state.input.chunk_steps, self._state.settings.round_steps  # rounds can't be split
        first = self._state.step - self._state.step % steps

        def call(program: Program, count: int) -> float:
            self._alive()
            began = self._clock()
            program(stacked, self._place(first, first, first + count))
            fine = int(self._state.progress.bad_step) == ALL_WELL  # waits for the steps
            return (self._clock() - began) / count if fine else math.nan

        once = [call(choice.program, unit) for choice in programs.values()]
        if any(map(math.isnan, once)):
            return {}
        units = max(1, int(CALL_SECONDS / max(unit * min(once), 1e-6)))
        count = self._of_chief(min(steps, unit * units))
        began = self._clock()

        def enough(found: Sequence[Round]) -> bool:
            self._look()
            over = self._clock() - began > MEASURING_SECONDS
            return bool(self._of_chief(bool(len(found) >= LEAST_ROUNDS and over)))

        self._look()
        runs = {name: functools.partial(call, choice.program, count) for name, choice in programs.items()}
        found = rounds(runs, most=MOST_ROUNDS, enough=enough)
        return {} if any(math.isnan(x) for seconds in found for x in seconds.values()) else medians(found)

    def _place(self, *place: int) -> Any:
        return self._train_step.backend.handed(tf.constant(place, tf.int64))

    def _parts(self, variable: tf.Variable) -> Sequence[tf.Variable]:
        """Returns a variable's copies on the replicas of this process."""
        return self._train_step.exchange.strategy.experimental_local_results(variable)

    def _of_chief(self, own: Any) -> Any:
        """Returns the chief's `own` on all workers, because files and clocks of workers differ."""
        return json.loads(self._agreement.first_text(json.dumps(own) if is_chief() else None) or "null")


def _said(words: Compile) -> str:
    """Formats the choice for a log line: the phases with what compiles each, as in "discriminator by xla"."""
    return words if isinstance(words, str) else ", ".join(f"{name} by {word}" for name, word in words.items()) or OFF


class KeptChoice:
    """Writes and reads `compile.json`: a choice, and the machine and step that the choice was measured for."""

    def __init__(self, train_step: TrainStep, state: RunState, *, note: Callable[[str], object]):
        self._train_step, self._note = train_step, note
        self._file, settings = state.workdir.path / CHOICE, state.settings
        self._where = {
            "processor": processor(),
            "cores": usable_cores(),
            "devices": [device.device_type for device in tf.config.list_logical_devices()],
            "tensorflow": tf.__version__,
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
            "replicas": train_step.exchange.replicas,
            "global_batch_size": settings.global_batch_size,
            "microbatches": settings.microbatches,
            # A folder without checkpoints may have another configuration's choice.
            "configuration": str(state.workdir.config_hash)[:12],
        }

    def anywhere(self) -> Compile | None:
        """Returns the recorded choice, for any machine and step; None if the file is missing or unreadable."""
        found = self._read()
        return found[0] if found else None

    def here(self) -> Compile | None:
        """Returns the recorded choice if its machine and step match the current ones, else None."""
        if (found := self._read()) is None:
            return None
        words, where = found
        differs = [key for key, value in self._where.items() if where.get(key) != value]
        if differs:
            told = listed(f"{key} was {where.get(key)}, and is {self._where[key]}" for key in differs)
            self._note(f"compile: `{CHOICE}` was measured elsewhere ({told.replace('`', '')}): measured again")
        return None if differs else words

    def write(self, words: Compile, seconds: Mapping[str, float], refused: Mapping[str, str]) -> None:
        """Writes a choice, with the seconds of a step with each program, and why other programs failed."""
        kept = {"compile": words, "seconds_a_step": dict(seconds), "refused": dict(refused), "measured_on": self._where}
        write_whole({self._file: json_text(kept).encode()})

    def _read(self) -> tuple[Compile, Mapping[str, object]] | None:
        try:
            kept = json.loads(self._file.read_bytes())
            where, words = kept["measured_on"], compile_words(kept["compile"])
            if words == AUTO or not isinstance(where, dict):
                raise ValueError("it holds no choice")
            if isinstance(words, Mapping):
                self._train_step.check_updates(words)
        except FileNotFoundError:
            return None
        except _DAMAGED:  # it is made anew
            self._note(f"compile: `{CHOICE}` can't be read: measured again")
            return None
        return words, where
