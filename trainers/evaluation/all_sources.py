"""All evaluations of an experiment: on its `eval_source`, and on each of its `eval_sources`."""

from collections.abc import Callable, Iterator

from core.checkpoint import Better
from core.errors import ConfigurationError
from core.task.loss import means
from trainers.evaluation.averaged_weights import averaged_task, readable_task
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.options.checkpoints import check_figure
from trainers.options.eval_sources import EVAL, refused_by_its_shape


class Evaluations:
    """Evaluates a task on what is held out, by the split that the figures of each source go to.

    It is false where nothing is held out.
    """

    def __init__(self, experiment: Experiment):
        self._evaluators: dict[str, Evaluator] = {}
        for split, source in experiment.held_out.items():
            with refused_by_its_shape(experiment.task, experiment.train_source, split, source):
                self._evaluators[split] = Evaluator(experiment, source, *self._evaluators.values())
        evaluators = list(self._evaluators.values())
        self.averaged = evaluators[0].averaged if evaluators else averaged_task(experiment)
        self.readable = readable_task(experiment, self.averaged)
        figures = {name.partition("/")[0] for evaluator in evaluators for name in evaluator.sums.spec.sums}
        for name in experiment.eval_sources:
            if name in figures:
                raise ConfigurationError(
                    f"`Experiment.eval_sources` calls a source `{name}`, which is a figure of "
                    f"`{type(experiment.task).__name__}.evaluate` already: give the source another name."
                )

    @property
    def figures(self) -> list[str]:
        """Lists all figures, as they are called in results and gin files."""
        sums = {split: evaluator.sums.spec.zero_sums() for split, evaluator in self._evaluators.items()}
        return [short_name(split, name) for split, found in sums.items() for name in means(found)]

    def check_figure(self, best: Better | None) -> None:
        """Raises a `ConfigurationError` if no evaluation has the figure by which the best checkpoint is kept."""
        if best:
            check_figure(best, self.figures, "Trainer.keep_best")

    def __len__(self) -> int:
        return len(self._evaluators)

    def trace(self) -> None:
        """Compiles in advance what can't wait for the first evaluation."""
        for evaluator in self._evaluators.values():
            evaluator.sums.trace()

    def check(self) -> None:
        """Raises a `ConfigurationError` where there is nothing to evaluate on."""
        if not self._evaluators:
            raise ConfigurationError(
                "there is nothing to evaluate on: bind `Experiment.eval_source`, or name some as "
                "`Experiment.eval_sources = {'clean': @digits()}`."
            )

    def evaluate(self, alive: Callable[[], None] = lambda: None) -> Iterator[tuple[str, dict[str, float]]]:
        """Yields each split with its figures; calls `alive` as it gets ahead."""
        self.check()
        for split, evaluator in self._evaluators.items():
            yield split, evaluator.evaluate(alive)


def short_name(split: str, figure: str) -> str:
    """Returns how a figure is called in results and gin files, where what is held out needs no mention.

    >>> short_name("eval", "accuracy"), short_name("eval/noisy", "accuracy"), short_name("quality", "accuracy")
    ('accuracy', 'noisy/accuracy', 'quality/accuracy')
    """
    return f"{split}/{figure}".removeprefix(f"{EVAL}/")
