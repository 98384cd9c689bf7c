"""An experiment: what is trained, on what, where. Every mode starts by building one."""

import inspect
from collections.abc import Callable

import gin
import tensorflow as tf

from core.data import Source
from core.distribution import one_device
from core.engine import assemble_optimizer, assemble_task, checked_phases, kept_alone
from core.errors import ConfigurationError
from core.module import named_variables
from core.random import Rng
from core.task import Task, Update


@gin.configurable
class Experiment:
    """Builds the task inside the strategy's scope and checks that everything is in its place.

    `task` is a factory, called with `rng=`; sources and the strategy hold no variables and come ready made. `synthetic`
    trains on the first batches over and over, to see what a run costs without its input.
    """

    def __init__(
        self,
        *,
        task: Callable[..., Task] = gin.REQUIRED,
        train_source: Source = gin.REQUIRED,
        eval_source: Source | None = None,
        strategy: tf.distribute.Strategy | None = None,
        seed: int = 0,
        synthetic: bool = False,
    ):
        self.train_source = train_source
        self.eval_source = eval_source
        self.strategy = strategy or one_device()
        self.seed = seed
        self.synthetic = synthetic
        self._factory = task
        self.task = self.make_task()
        self.phases = checked_phases(self.task)
        self._check_variables()
        updates = [phase for phase in self.phases if isinstance(phase, Update)]
        self.optimizers = {phase.name: assemble_optimizer(phase, self.strategy, self.alone) for phase in updates}
        for source in filter(None, (train_source, eval_source)):
            self.task.check_source(source)

    def make_task(self) -> Task:
        """A task as it is before the first step."""
        rng = Rng.from_seed(self.seed).fold("init")
        return assemble_task(lambda: _make(self._factory, rng), self.strategy)

    @property
    def alone(self) -> set[int]:
        """The ids of the variables that live on one device only."""
        return kept_alone(self.task, self.strategy)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All that is learnt, by path: the task's variables and the optimizers'."""
        found = {f"task/{path}": v for path, v in named_variables(self.task).items()}
        for phase, optimizer in self.optimizers.items():
            found |= {f"optimizer/{phase}/{path}": v for path, v in optimizer.variables.items()}
        return found

    def _check_variables(self) -> None:
        """Each variable belongs to the strategy, and what is trained to the task."""
        name = type(self.task).__name__
        known = {id(v): path for path, v in named_variables(self.task).items()}
        for phase in self.phases:
            for path, variable in phase.variables().items() if isinstance(phase, Update) else ():
                if id(variable) not in known:
                    raise ConfigurationError(
                        f"phase `{phase.name}` trains `{path}`, which isn't part of `{name}`: no checkpoint would hold "
                        "it. Make the network in `__init__` of the task and keep it there as an attribute (`self.net = "
                        "...`)."
                    )
        for path, variable in named_variables(self.task).items():
            if id(variable) in self.alone:
                continue
            # Outside the scope it would train to wrong numbers without an error (TensorFlow issue 41768).
            if not self.strategy.extended.variable_created_in_scope(variable):
                raise ConfigurationError(
                    f"variable `{path}` of `{name}` was made outside the experiment's strategy. Make it in the task's "
                    "`__init__`, which the experiment calls inside `strategy.scope()`; don't make it when a module is "
                    "imported or in `phases()`, and don't share it between tasks."
                )


def _make(factory: Callable[..., Task], rng: Rng) -> Task:
    if isinstance(factory, Task):
        raise ConfigurationError(
            f"`Experiment.task` is a finished `{type(factory).__name__}`; give the class itself (in gin "
            f"`@{type(factory).__name__}` without parentheses): the experiment calls it inside the strategy's scope."
        )
    name = getattr(factory, "__name__", repr(factory))
    parameters = inspect.signature(factory).parameters
    if "rng" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ConfigurationError(
            f"`Experiment.task` is `{name}`, which takes no `rng`. Write `def __init__(self, *, rng, ...)` and make "
            "the variables from it: a run's seed is what decides its initial weights."
        )
    task = factory(rng=rng)
    if not isinstance(task, Task):
        raise ConfigurationError(
            f"`Experiment.task` is `{name}`, which made {task!r}; it must make a `core.task.Task`."
        )
    return task
