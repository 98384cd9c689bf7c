"""An experiment: what is trained, on what, where. Every mode starts by building one."""

import inspect
from collections.abc import Callable

import gin
import tensorflow as tf

from core.data import Source
from core.distribution import one_device
from core.engine import checked_phases
from core.errors import ConfigurationError
from core.module import named_variables
from core.optimizers import Optimizer
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
        self.optimizers = {phase.name: self._make_optimizer(phase) for phase in updates}
        for source in filter(None, (train_source, eval_source)):
            self.task.check_source(source)

    def make_task(self) -> Task:
        """A task as it is before the first step."""
        rng = Rng.from_seed(self.seed).fold("init")
        with self.strategy.scope():
            task = _make(self._factory, rng)
        if task.one_device and self.strategy.num_replicas_in_sync > 1:
            # The same task once more, outside the scope, to take from it what isn't to be replicated.
            with tf.device(self._device):
                plain = _make(self._factory, rng)
            for name in task.one_device:
                _check_apart(task, name)
                setattr(task, name, _network(plain, name))
        return task

    @property
    def alone(self) -> set[int]:
        """The ids of the variables that live on one device only."""
        if self.strategy.num_replicas_in_sync == 1:
            return set()
        return {id(v) for name in self.task.one_device for v in named_variables(_network(self.task, name)).values()}

    @property
    def _device(self) -> str:
        return str(self.strategy.extended.worker_devices[0])

    def _make_optimizer(self, phase: Update) -> Optimizer:
        variables = phase.variables()
        alone = [path for path, variable in variables.items() if id(variable) in self.alone]
        if not alone:
            with self.strategy.scope():
                return Optimizer(phase.optimizer, variables)
        if len(alone) < len(variables):
            raise ConfigurationError(
                f"phase `{phase.name}` trains `{alone[0]}`, which the task keeps on one device (`one_device`), "
                "together with variables that it doesn't: make two phases of it, or keep both networks in one place."
            )
        with tf.device(self._device):
            return Optimizer(phase.optimizer, variables)

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


def _network(task: Task, name: str) -> tf.Module:
    network = getattr(task, name, None)
    if not isinstance(network, tf.Module):
        raise ConfigurationError(
            f"`{type(task).__name__}.one_device` names `{name}`, which is {network!r}; name attributes that hold a "
            "network."
        )
    return network


def _check_apart(task: Task, name: str) -> None:
    """A network that moves to one device mustn't leave a part of it behind, which would live on as a second copy."""
    network = _network(task, name)
    own = {id(variable): path for path, variable in named_variables(network).items()}
    delattr(task, name)
    shared = [path for path, variable in named_variables(task).items() if id(variable) in own]
    setattr(task, name, network)
    if shared:
        raise ConfigurationError(
            f"`{type(task).__name__}.one_device` names `{name}`, but its variable `{shared[0]}` belongs to another "
            "attribute of the task as well: it can't be in both places. Name both, as one module that holds all of it, "
            "or keep the network on every replica."
        )
