"""Calls hooks in their order, and ends the run where one of them asks for it."""

from collections.abc import Sequence

from core.distribution import Agreement
from core.errors import ConfigurationError
from trainers.hooks.base import Hook, Run
from trainers.loop.run_state import RunState
from trainers.loop.standard_hooks import SaveCheckpoint
from trainers.loop.watchdog import Watchdog


class Calling:
    """The hooks of a run, and the wish of one of them that it be over."""

    def __init__(self, hooks: Sequence[Hook], state: RunState, agreement: Agreement, watchdog: Watchdog):
        self.hooks, self._state, self._agreement, self._watchdog = hooks, state, agreement, watchdog
        self._stop_reason: str | None = None

    def check(self, run: Run) -> None:
        """Has each hook see that it fits what is trained."""
        self._watchdog.begin("hook", "checking the hooks")
        for hook in self.hooks:
            name = f"`{type(hook).__name__}"
            try:
                hook.check(run)
            except ConfigurationError as error:
                if name in str(error):
                    raise
                raise ConfigurationError(f"`Trainer.hooks` holds a {name}`, which can't be called: {error}") from error

    def due(self, run: Run) -> list[Hook]:
        """Lists the hooks to call after the step that `run` is at."""
        return [hook for hook in self.hooks if hook.due(run.step, run.steps)]

    def stop(self, reason: str) -> None:
        """Ends the run once all hooks that are due have been called."""
        self._stop_reason = self._stop_reason or reason

    def call(self, due: Sequence[Hook], run: Run) -> None:
        """Calls the hooks that are due; if one of them stops the run, also those that belong to its end.

        What is saved then says already that the run is over: a kill after it would let it go on otherwise.
        """
        ends = False
        for hook in self.hooks:
            saves = isinstance(hook, SaveCheckpoint)
            if saves and not self._state.finished and self._agreement.any_worker(self._stop_reason is not None):
                ends = True
                self._state.stopped = self._agreement.first_text(self._stop_reason)
                for other in self.hooks:
                    if other not in due and other is not hook and other.due(run.step, run.step):
                        self.call_one(other, run)
            if saves:
                self._state.complete = self._state.finished
            if hook in due or (saves and ends):
                self.call_one(hook, run)

    def call_one(self, hook: Hook, run: Run) -> None:
        """Calls one hook, under watch."""
        name = f"the hook `{type(hook).__name__}`"
        self._watchdog.begin(hook.section, name)
        hook(run)
        self._watchdog.begin(hook.section, f"what follows {name}")  # where a worker may wait for one still at the hook
