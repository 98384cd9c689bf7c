"""The program of a chunk of steps: traced, and compiled as `Trainer.compile` says."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from core.engine import make_chunk
from core.telemetry import Telemetry
from trainers.errors.tensorflow import compiled_or_refused, explained, repeatable_or_refused
from trainers.loop.run_state import RunContext
from trainers.options.compile import AUTO

if TYPE_CHECKING:
    from trainers.loop.compile_choice import Choosing

Program = Callable[[Any, Any], object]  # called with a chunk and the position in it


class Programs:
    """Makes the program that takes a chunk of steps. `chunk` is the last traced function."""

    def __init__(self, context: RunContext, *, alive: Callable[[], object], look: Callable[[], object]):
        """`look` ends the run after a signal. It is called while a program is chosen, which takes seconds."""
        self.context, self._alive, self._look = context, alive, look
        step, state = context.train_step, context.state
        spec, progress = state.input.chunk_spec, state.progress
        self._make_chunk: Callable[[], Any] = functools.partial(make_chunk, step, spec, progress, state.takes)
        self.chunk = self._make_chunk()

    def make(self, stacked: Any, note: Callable[[str], object] = lambda text: None) -> Program:
        """Traces a chunk of steps, compiled as `Trainer.compile` says; "auto" measures the choices on `stacked`."""
        with self.explained():
            choosing = self._choosing(note)
            return choosing.choose(stacked) if choosing else self._traced()

    @functools.cached_property
    def again(self) -> Program:
        """Returns the program that the run has used before: for "auto", compiled as the workdir records."""
        with self.explained():
            choosing = self._choosing(lambda text: None)
            return choosing.again() if choosing else self._traced()

    def begin(self, run: Program, stacked: Any) -> None:
        """Calls the program `run` for zero steps. On a mesh, the first call fixes the order of writing variables."""
        with self.explained():
            run(stacked, self.context.train_step.backend.handed(tf.zeros([3], tf.int64)))

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Translates TensorFlow's errors from a chunk of steps for the user."""
        experiment = self.context.experiment
        repeatable = repeatable_or_refused(experiment.deterministic)
        with explained(self.context.state.input.source), repeatable, compiled_or_refused():
            yield

    def tell(self, telemetry: Telemetry, seconds: float) -> None:
        """Reports to `telemetry` what was traced or compiled, and the `seconds` that this took."""
        step, state = self.context.train_step, self.context.state
        chunk_steps = state.input.chunk_steps
        verb = "compiled" if step.whole else "traced"
        later = "; XLA compiles updates as they are first taken" if step.runner.compiled else ""
        for what in (*step.left_out, *step.remarks):
            telemetry.note(what)
        telemetry.note(f"{verb} in {seconds:.1f} s; {chunk_steps} steps a chunk{later}")
        if short := state.settings.short_chunks(chunk_steps):
            telemetry.warn_once(short)

    def _choosing(self, note: Callable[[str], object]) -> "Choosing | None":
        """Returns the `Choosing` for `Trainer.compile = "auto"`. Other values, meshes and servers give None."""
        context = self.context
        if context.state.settings.compile != AUTO or context.train_step.backend.not_compiled:
            return None
        from trainers.loop.compile_choice import Choosing

        return Choosing(context, self._traced, note=note, alive=self._alive, look=self._look)

    def _traced(self) -> Program:
        """Returns the program of a newly traced chunk; calling its one trace directly saves about a millisecond."""
        self.chunk = self._make_chunk()
        step, traced = self.context.train_step, self.chunk.get_concrete_function()
        program: Program = step.backend.program(traced, step.exchange.ledger)
        return program
