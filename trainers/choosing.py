"""`Trainer.compile = "auto"`: XLA compiles what was found to be the fastest in the first seconds of a run.

Each choice takes steps of the first chunk, in turns; then all variables are given back what they held, so nothing was
trained by it. The choice is in the workdir before the first step, and a run that goes on takes the same program.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.arguments import listed
from core.disk import write_whole
from core.distribution import Agreement
from core.engine import ALL_WELL, TrainStep
from core.machine import processor
from core.workers import is_chief
from trainers.compiling import AUTO, OFF, XLA, Compile, compile_words, what_to_compile
from trainers.refused_by_xla import refused_by_xla
from trainers.run_state import RunState
from trainers.workdir import json_text

CALL_SECONDS = 0.15  # that a measured call takes at least, if the chunk has as many steps
MEASURING_SECONDS = 4.0  # once the programs are made
MAKING_SECONDS = 30.0  # which further programs may take; the first of XLA's is made, however long that takes
LEAST_ROUNDS, MOST_ROUNDS = 2, 7
ENOUGH = 1.03  # times as fast as without XLA has a choice to be: that it compiles for seconds at each start has to pay
FILE = "compile.json"

Program = Callable[[Any, Any], object]  # a chunk and the place in it


class Choice(NamedTuple):
    """What was chosen, in words that `Trainer.compile` knows, and the program of it."""

    compile: Compile
    program: Program


class Choosing:
    """Chooses what XLA compiles of the chunks of a run, and remembers it in the workdir."""

    def __init__(
        self,
        train_step: TrainStep,
        make_program: Callable[[], Program],
        state: RunState,
        agreement: Agreement,
        *,
        note: Callable[[str], object],
        alive: Callable[[], object],
        clock: Callable[[], float] = time.perf_counter,
    ):
        """`make_program` traces a chunk of `train_step` as that compiles then."""
        self._train_step, self._make_program, self._state = train_step, make_program, state
        self._agreement, self._note, self._alive, self._clock = agreement, note, alive, clock
        self._file, settings = state.workdir.path / FILE, state.settings
        self._where = {
            "processor": processor(),
            "cores": os.cpu_count(),
            "devices": [device.device_type for device in tf.config.list_logical_devices()],
            "tensorflow": tf.__version__,
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
            "replicas": train_step.exchange.replicas,
            "global_batch_size": settings.global_batch_size,
            "microbatches": settings.microbatches,
        }

    @property
    def asked(self) -> bool:
        """Says whether there is anything to choose; on a mesh, or by servers, XLA compiles nothing."""
        exchange = self._train_step.exchange
        return self._state.settings.compile == AUTO and not (exchange.on_mesh or exchange.remote)

    def choose(self, stacked: Any) -> Program:
        """Returns the program that is remembered for this machine, or else the fastest one, by steps of a chunk."""
        remembered = self._remembered()
        if remembered is not None:
            try:
                program = self._made(remembered, stacked, 0)
            except tf.errors.OpError as error:  # the step is another one since
                reason = refused_by_xla(error)
                if reason is None:
                    raise
                self._note(f"compile: {_said(remembered)}, as `{FILE}` remembers, is out: {reason}: measured again")
            else:
                self._note(f"compile: {_said(remembered)}, as `{FILE}` remembers")
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

    def _fastest(self, stacked: Any) -> Program:
        began, refused = self._clock(), dict[str, str]()
        programs = {OFF: Choice(OFF, self._made(OFF, stacked, 1))}
        last = -math.inf  # seconds that the one before took
        for words in self._others():
            making = self._clock()
            if self._agreed(making - began + last > MAKING_SECONDS):
                refused[_said(words)] = "programs take too long to make"
                continue
            self._alive()
            try:
                programs[_said(words)] = Choice(words, self._made(words, stacked, 1))
            except (tf.errors.OpError, ValueError, TypeError) as error:
                reason = refused_by_xla(error)
                if reason is None:
                    raise
                refused[_said(words)] = reason
                self._note(f"compile: {_said(words)} is out: {reason}")
            last = self._clock() - making
        seconds = self._timed(programs, stacked)
        best = min(seconds, key=lambda name: seconds[name] * (1.0 if name == OFF else ENOUGH), default=OFF)
        chosen = programs[self._agreement.first_text(best if is_chief() else None) or OFF]
        self._remember(chosen.compile, seconds, refused)
        told = ", ".join(f"{name} {1e3 * x:.3g} ms" for name, x in seconds.items()) or "a step wasn't finite"
        self._note(f"compile: {_said(chosen.compile)} (a step: {told}; measured in {self._clock() - began:.1f} s)")
        self._train_step.compile(what_to_compile(chosen.compile))
        return chosen.program

    def _others(self) -> list[Compile]:
        """Lists what there is to choose besides nothing: all of it, or one update alone."""
        updates = list(self._train_step.specs)
        self._train_step.compile(True)
        alone = [] if len(updates) == 1 and not self._train_step.whole else updates
        return [XLA, *({name: XLA} for name in alone)]

    def _made(self, words: Compile, stacked: Any, steps: int) -> Program:
        """Traces and compiles a program, by taking so many steps: of an update alone, it takes one to be compiled."""
        self._train_step.compile(what_to_compile(words))
        program = self._make_program()
        program(stacked, self._place(0, 0, steps))
        return program

    def _timed(self, programs: Mapping[str, Choice], stacked: Any) -> dict[str, float]:
        """Returns the median seconds of a step with each program; nothing where a step isn't finite."""
        steps = self._state.input.chunk_steps
        first = self._state.step - self._state.step % steps

        def call(program: Program, count: int) -> float:
            self._alive()
            began = self._clock()
            program(stacked, self._place(first, first, first + count))
            fine = int(self._state.progress.bad_step) == ALL_WELL  # waits for the steps
            return self._clock() - began if fine else math.nan

        found: dict[str, list[float]] = {name: [] for name in programs}
        once = [call(choice.program, 1) for choice in programs.values()]
        if any(map(math.isnan, once)):
            return {}
        count = self._agreed_count(min(steps, max(1, int(CALL_SECONDS / max(min(once), 1e-6)))))
        began = self._clock()
        for turn in range(MOST_ROUNDS):
            names = list(programs)[:: 1 if turn % 2 == 0 else -1]
            for name in names:
                found[name].append(call(programs[name].program, count) / count)
            if self._agreed(turn + 1 >= LEAST_ROUNDS and self._clock() - began > MEASURING_SECONDS):
                break
        fine = not any(math.isnan(x) for seconds in found.values() for x in seconds)
        return {name: statistics.median(seconds) for name, seconds in found.items()} if fine else {}

    def _place(self, *place: int) -> Any:
        return self._train_step.exchange.handed(tf.constant(place, tf.int64))

    def _parts(self, variable: tf.Variable) -> Sequence[tf.Variable]:
        """Returns what a variable is on each replica of this process."""
        return self._train_step.exchange.strategy.experimental_local_results(variable)

    def _agreed(self, own: bool) -> bool:
        """Returns what the chief says, whose clock counts for all."""
        return self._agreement.first_text(str(own) if is_chief() else None) == "True"

    def _agreed_count(self, own: int) -> int:
        return int(self._agreement.first_text(str(own) if is_chief() else None) or 1)

    def _remembered(self) -> Compile | None:
        """Returns the choice of an earlier start, if it was made on such a machine; the chief's counts for all."""
        text = self._agreement.first_text(self._read() if is_chief() else None)
        return json.loads(text) if text else None

    def _read(self) -> str | None:
        try:
            kept = json.loads(self._file.read_bytes())
            where, words = kept["measured_on"], compile_words(kept["compile"])
            if words == AUTO:
                raise ValueError("it holds no choice")
            self._train_step.compile(what_to_compile(words))
        except FileNotFoundError:
            return None
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ):  # a damaged file: it is made anew
            self._note(f"compile: `{FILE}` can't be read: measured again")
            return None
        differs = [key for key, value in self._where.items() if where.get(key) != value]
        if differs:
            told = listed(f"{key} was {where.get(key)}, and is {self._where[key]}" for key in differs)
            self._note(f"compile: `{FILE}` was measured elsewhere ({told.replace('`', '')}): measured again")
            return None
        return json.dumps(words)

    def _remember(self, words: Compile, seconds: Mapping[str, float], refused: Mapping[str, str]) -> None:
        if is_chief():
            kept = {
                "compile": words,
                "seconds_a_step": dict(seconds),
                "refused": dict(refused),
                "measured_on": self._where,
            }
            write_whole({self._file: json_text(kept).encode()})


def _said(words: Compile) -> str:
    """Returns the choice as it is shown."""
    return words if isinstance(words, str) else ", ".join(f"{name} by {word}" for name, word in words.items()) or OFF
