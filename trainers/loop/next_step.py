"""The step that comes next, looked at without being taken."""

from core.engine import TrainStep, Watch
from core.errors import ConfigurationError
from trainers.experiment import Experiment
from trainers.loop.input import Chunks, Input


class NextStep:
    """Measures what the next step would do, once somebody asks for it."""

    def __init__(self, experiment: Experiment, input: Input, train_step: TrainStep, *, steps: int):
        self._experiment, self._input, self._backend, self._steps = experiment, input, train_step.backend, steps
        self._watch: Watch | None = None
        self.chunks: Chunks | None = None  # those that the loop takes

    def prepare(self) -> Watch:
        """Makes what looks at the step; refuses where it isn't one step of all devices together."""
        if not self._backend.steps_together:
            who = f"{self._backend.how} {'replicas' if self._backend.steps_here else 'workers'} take"
            raise ConfigurationError(
                f"`Trainer.hooks` looks at the step that comes next, as all devices take it together, but {who} steps "
                "of their own: leave `Norms` out."
            )
        if self._watch is None:
            assembly, specs = self._experiment.assembly, (self._input.batch_spec, self._input.chunk_spec)
            decode = self._input.decode
            self._watch = Watch(assembly, *specs, seed=self._experiment.seed, steps=self._steps, decode=decode)
        return self._watch

    def norms(self, step: int) -> dict[str, float]:
        """Returns the norms of gradients, weights and updates of each module in `step`, which is the next."""
        self.chunks = self.chunks or self._input.chunks_from(step)
        within = step % self._input.chunk_steps
        return self.prepare().norms(self.chunks.peek(within=within > 0), first=step - within, step=step)
