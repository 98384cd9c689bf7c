"""Continues after a bad step if the policies allow: skips it, or returns to a checkpoint."""

from collections.abc import Callable

from core import checkpoint
from core.engine import NOT_FINITE, SPIKE, BadStep
from core.errors import CheckpointError, NotFiniteError, TapeloopError
from core.telemetry import Telemetry
from trainers.loop.run_state import RunContext
from trainers.options.bad_steps import MAX_ROLLBACKS, MAX_SKIPS, ROLLBACK, SKIP

# Writes a bad step's capsule; returns the error with the command that replays it.
LeaveCapsule = Callable[[RunContext, TapeloopError, int], TapeloopError]
CALM = "Clip gradients (`clip_by_global_norm`), lower the learning rate, or give a larger `Trainer.spike_factor`."


class Recovery:
    """Checks for bad steps between chunks; ends the run, or lets it continue."""

    def __init__(self, context: RunContext, leave_capsule: LeaveCapsule | None):
        """`leave_capsule` writes a bad step's failure snapshot, and returns the error with the replay command."""
        self.context, self.state, self.agreement = context, context.state, context.agreement
        self.policies, self.skipping = self.state.settings.policies, self.state.skipping
        self._leave, self._told, self._capsule_left = leave_capsule, 0, False

    def begin(self) -> None:
        """Saves a checkpoint of step 0 if the policies allow rollbacks, so that there is one to return to."""
        self._told = self.skipping.skipped if self.skipping else 0
        if self.policies.rolls_back and self.state.step == 0:
            with self.context.section("save", "the checkpoint of the beginning"):
                self.state.save()

    def figures(self) -> dict[str, int]:
        """Returns the numbers of skipped steps and rollbacks so far, or nothing if the policies allow none."""
        skipped = {"skipped_steps": self.skipping.skipped} if self.skipping and self.policies.skips else {}
        return {**skipped, **({"rollbacks": self.state.passed_over.rollbacks} if self.policies.rolls_back else {})}

    def went_back(self, telemetry: Telemetry, *, saving: bool) -> bool:
        """Rolls back after a bad step. Returns whether it did. Raises the step's error if the policies end the run.

        With `saving`, a checkpoint comes next, and non-finite weights count as a bad step, too.
        """
        self._tell_of_skipped(telemetry)
        bad = self._bad_step(telemetry) or (self._unfit(telemetry) if saving else None)
        if bad is None:
            return False
        step, kind, error = bad
        if self.policies.by_kind[kind] != ROLLBACK:
            most = self.policies.max_skips or MAX_SKIPS
            in_a_row = f" The {most} steps before it were left out, and `Trainer.max_skips` is {most}."
            raise type(error)(f"{error}{in_a_row}") if self.policies.by_kind[kind] == SKIP else error
        most = self.policies.max_rollbacks or MAX_ROLLBACKS
        if self.state.passed_over.rollbacks >= most:
            raise type(error)(f"{error} The run went back {most} times before, and `Trainer.max_rollbacks` is {most}.")
        with self.context.section("save", "going back to a checkpoint"):
            self._go_back(step, error, telemetry)
        return True

    def leave_capsule(self, error: TapeloopError, step: int, telemetry: Telemetry) -> TapeloopError:
        """Writes a bad step's capsule (failure snapshot). Returns `error` with the command that replays the step."""
        try:
            self.state.saves.settle(telemetry.note)  # the step is done again from the newest checkpoint
        except CheckpointError as unwritten:
            telemetry.warn_once(str(unwritten))
        if self.state.unsaved_restart:
            return type(error)(f"{error} No capsule is written: no checkpoint has the fresh optimizer yet.")
        if self._leave:
            error = self._leave(self.context, error, step)
        self.agreement.barrier()  # a worker that left before the chief has written it would end the chief
        return error

    def _bad_step(self, telemetry: Telemetry) -> tuple[int, str, TapeloopError] | None:
        """Returns (step, kind, error) of the bad step that ended the last chunk, or None."""
        step = self.state.take_bad_step()
        if step is None:
            return None
        bad = self.skipping.last if self.skipping else None
        if bad and bad.kind == SPIKE:
            return step, SPIKE, NotFiniteError(f"step {step} is a spike: {_how(bad)}. The step was undone. {CALM}")
        from trainers.loop.bad_step import explain_bad_step

        with self.context.section("step", f"looking into step {step}"):
            error = explain_bad_step(self.context.train_step, self.state.input, step)
            return step, NOT_FINITE, self.leave_capsule(error, step, telemetry)

    def _unfit(self, telemetry: Telemetry) -> tuple[int, str, TapeloopError] | None:
        """Returns (step, kind, error) if the last step left non-finite weights and rollbacks are allowed, else None."""
        if self.policies.on_nonfinite != ROLLBACK:
            return None  # saving raises it
        unfit, step = self.agreement.first_text(self.state.unfit()), self.state.step - 1
        return (step, NOT_FINITE, self.leave_capsule(NotFiniteError(unfit), step, telemetry)) if unfit else None

    def _go_back(self, step: int, error: TapeloopError, telemetry: Telemetry) -> None:
        """Restores the newest checkpoint, and saves it again with the data position after the skipped examples.

        A run killed before this save meets the bad step again. A run killed later doesn't.
        """
        state = self.state
        state.saves.settle(telemetry.note)
        self.agreement.barrier()  # the chief has written what all are about to read
        manifest = checkpoint.newest(state.workdir.checkpoints, warn=telemetry.warn_once, up_to=step)
        found = manifest.path.name if manifest else None
        others = self.agreement.any_worker(self.agreement.first_text(found) != found)  # all ask, or some would wait
        if manifest is None or others:
            raise type(error)(f"{error} There is no checkpoint to go back to in `{state.workdir.checkpoints}`.")
        state.go_back(manifest, past=step)
        self.agreement.barrier()  # all have read what is about to be replaced
        state.save(warn=telemetry.warn_once)
        self._told = self.skipping.skipped if self.skipping else 0
        telemetry.rewind(state.step)
        telemetry.warn(f"{error} The run has gone back to `{manifest.path.name}`, and past the examples.")
        telemetry.note(f"resuming from step {state.step} (`{manifest.path.name}`), past the examples of step {step}")

    def _tell_of_skipped(self, telemetry: Telemetry) -> None:
        """Warns of steps skipped since the last check. The first non-finite one of a run leaves a capsule."""
        if self.skipping is None or (skipped := self.skipping.skipped) == self._told:
            return
        count, self._told, bad = skipped - self._told, skipped, self.skipping.last
        others = f" (and {count - 1} before it)" if count > 1 else ""
        error: TapeloopError = NotFiniteError(f"step {bad.step}{others} was skipped: {_how(bad)}.")
        if bad.kind == NOT_FINITE and not self._capsule_left:
            self._capsule_left = True
            error = self.leave_capsule(error, bad.step, telemetry)
        telemetry.warn(str(error))


def _how(bad: BadStep) -> str:
    if bad.kind == SPIKE:
        return f"the gradient of phase `{bad.phase}` is a spike, far above the largest of late"
    return f"the loss or gradient of phase `{bad.phase}` is not finite, or its weights add up to less than nothing"
