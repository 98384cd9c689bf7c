"""An experiment: task, sources, strategy and seed. Every mode builds one first."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import is_count
from core.data import Source, Stream, check_examples
from core.distribution import backend_of, is_strategy, made_strategy
from core.distribution import one_device as default_strategy
from core.engine import assemble, assemble_task
from core.errors import ConfigurationError, shown
from core.layers.recompute_by_path import Patterns, recompute_by_path
from core.precision import FLOAT32, Narrowing, Precision
from core.random import Rng
from core.task import Placement, Task
from core.weights import StartFrom
from trainers.errors.too_large import fitting
from trainers.options.eval_sources import by_split, check_held_out


@gin.configurable
class Experiment:
    """Makes the task inside the strategy's scope, and checks the task's variables.

    `task` is a factory, called with `rng=`; sources and the strategy are objects without variables. `eval_source`
    measures progress; `eval_sources`, {name: source}, are evaluated as well. A new run begins with the weights of
    `start_from`, or with random ones. `placements`, {phase: placement}, override the task's placements. `one_device`
    names networks of the task that exist on one device only. Modules whose paths match a pattern of `recompute`, such
    as "net/blocks/*", compute their activations again for the gradient. `{"net/blocks/*": "every_other"}` chooses half
    of them. `synthetic` trains on the first batches repeatedly, to time a run without input. `deterministic` makes
    TensorFlow use bit-reproducible operations in the whole process, and raise errors for other operations.
    """

    def __init__(
        self,
        *,
        task: Callable[..., Task] = gin.REQUIRED,
        train_source: Source | Stream = gin.REQUIRED,
        eval_source: Source | None = None,
        eval_sources: Mapping[str, Source] = {},
        start_from: StartFrom | None = None,
        strategy: Any = None,
        placements: Mapping[str, Placement] = {},
        one_device: Sequence[str] = (),
        recompute: Sequence[str] | Mapping[str, str] = (),
        seed: int = 0,
        synthetic: bool = False,
        deterministic: bool = False,
    ):
        check_seed(seed)
        if deterministic:  # before any computation; it can't be undone in this process
            tf.config.experimental.enable_op_determinism()
        self.deterministic = deterministic
        check_examples("Experiment.train_source", train_source)
        if strategy is not None and not is_strategy(strategy):
            raise ConfigurationError(
                f"`Experiment.strategy` is {shown(strategy)}; give a strategy made by a call: "
                "`core.distribution.mirrored()`, in gin `@mirrored()` with parentheses."
            )
        self.train_source = train_source
        self.eval_source, self.eval_sources = eval_source, dict(eval_sources)
        self.held_out = by_split(eval_source, self.eval_sources)  # {split: source}
        self.start_from = start_from
        self.strategy = made_strategy(strategy) if strategy is not None else default_strategy()
        if deterministic and not backend_of(self.strategy).repeatable:
            raise ConfigurationError(
                f"`Experiment.deterministic` is True, but {backend_of(self.strategy).how} no run repeats "
                "another: the order of the workers' steps depends on their speed. Remove it, or train on "
                "replicas (`@mirrored()`)."
            )
        self.seed = seed
        self.precision = FLOAT32  # of evaluation, samples and exports
        self.synthetic = synthetic
        self._factory, self._placements, self._one_device = task, placements, one_device
        self._recompute = recompute
        self._assemble()
        self.task.check_source(train_source)
        check_held_out(self.task, train_source, self.held_out)

    def on(self, strategy: tf.distribute.Strategy, placements: Mapping[str, Placement] | None = None) -> "Experiment":
        """Returns an untrained copy of the experiment on `strategy`; `placements`, if given, replace its placements."""
        other = copy.copy(self)
        other.strategy = strategy
        if placements is not None:
            other._placements = placements
        other._assemble()
        return other

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Returns {phase: placement}, which override the task's placements."""
        return self._placements

    def compute_in(self, precision: Precision) -> None:
        """Sets the precision of evaluation, samples and exports, which is that of the training."""
        self.precision = precision

    def narrowing(self, use: str, features: Mapping[str, tf.TensorSpec] = {}) -> Narrowing:
        """Returns the casts of a use of the task, such as "evaluate", for a batch of `features`."""
        return self.precision.narrowing(use, features)

    @property
    def one_device(self) -> Sequence[str]:
        """Returns the names of networks on one device, besides the task's own."""
        return self._one_device

    @property
    def recompute(self) -> Patterns:
        """Returns the patterns of modules that recompute their activations."""
        return self._recompute

    def recomputing(self, patterns: Patterns) -> None:
        """Makes the modules that match `patterns` recompute, also in tasks that are made later."""
        recompute_by_path(self.task, patterns, argument="Experiment.recompute")
        self._recompute = patterns

    def make_task(self) -> Task:
        """Makes a new task, with newly initialised variables."""
        return assemble_task(self.make_plain_task, self.strategy, one_device=self._one_device)

    def make_plain_task(self, recompute: Patterns | None = None) -> Task:
        """Makes another task outside the strategy's scope; `recompute`, if given, replaces the experiment's."""
        return made_by(self._factory, self.seed, self._recompute if recompute is None else recompute)

    def make_host_task(self) -> Task:
        """Makes another task with its variables on the CPU, where they can be read with any strategy."""
        with tf.device("CPU:0"):
            return self.make_plain_task()

    @property
    def variables(self) -> Mapping[str, tf.Variable]:
        """Returns all saved variables by path: the task's and the optimizers'."""
        return self.assembly.variables

    @property
    def shown_source(self) -> Source:
        """Returns the source of examples for samples: a held-out source, or the training source if there is none."""
        source = next(iter(self.held_out.values()), self.train_source)
        if isinstance(source, Stream):
            raise ConfigurationError(
                f"`Experiment.train_source` is the stream `{source.name}`, which has no single examples: bind "
                "`Experiment.eval_source` to a source that has some."
            )
        return source

    def _assemble(self) -> None:
        self.assembly = fitting(
            lambda: assemble(
                self.make_plain_task, self.strategy, placements=self._placements, one_device=self._one_device
            ),
            self.make_task,
            self.strategy,
        )
        self.task = self.assembly.task


def check_seed(seed: int) -> None:
    """Raises a `ConfigurationError` for an invalid seed."""
    if not (is_count(seed) and seed < 2**62):
        raise ConfigurationError(
            f"`Experiment.seed` is {shown(seed)}; it must be at least 0 and less than 2 ** 62. Give a whole number."
        )


def made_by(factory: Callable[..., Task], seed: int, recompute: Patterns = ()) -> Task:
    """Returns the task that `factory` makes from the run's seed; modules that match `recompute` recompute."""
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
            "the variables from it: the run's seed determines the initial weights."
        )
    task = factory(rng=Rng.from_seed(seed).fold("init"))
    if not isinstance(task, Task):
        raise ConfigurationError(
            f"`Experiment.task` is `{name}`, which made {task!r}; it must make a `core.task.Task`."
        )
    recompute_by_path(task, recompute, argument="Experiment.recompute")
    return task


def given_precision() -> Precision:
    """Returns the precision that gin binds, for what computes with a run's weights, and doesn't train."""
    given = gin.get_bindings("Trainer", resolve_references=False).get("precision", "float32")
    return Precision(copy.deepcopy(given))  # which resolves a macro


def trains_by_servers() -> bool:
    """Returns whether the configuration uses parameter servers; doesn't connect to the servers."""
    strategy = gin.get_bindings(Experiment, resolve_references=False).get("strategy")
    return str(getattr(strategy, "selector", "")).endswith("parameter_server")
