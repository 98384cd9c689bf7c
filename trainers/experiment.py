"""An experiment: task, sources, strategy and seed. Every mode builds one first."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import is_count
from core.cluster.membership import joined
from core.data import Source, Stream, check_examples
from core.distribution import backend_of, is_strategy, made_strategy
from core.distribution import one_device as default_strategy
from core.distribution.shapes_only import shapes_only
from core.engine import Assembly, assemble, assemble_task
from core.errors import ConfigurationError, NoRoomError, shown
from core.initializers import announced
from core.layers.recompute_by_path import Patterns, recompute_by_path
from core.machine import machine_memory
from core.module import named_variables
from core.precision import FLOAT32, Narrowing, Precision
from core.random import Rng
from core.task import Placement, Task
from core.weights import StartFrom
from trainers.options.eval_sources import by_split, check_held_out

# Settings for one device: a run's devices and initial weights don't affect its checkpoint, and needn't be available.
HERE: Mapping[str, Any] = {
    "start_from": None,
    "strategy": None,
    "placements": {},
    "one_device": (),
    "deterministic": False,
}
LARGE = 16  # a task of 1/16 of the memory is measured before it is made


@gin.configurable
class Experiment:
    """Makes the task inside the strategy's scope, and checks the task's variables.

    `task` is a factory, called with `rng=`; sources and the strategy are objects without variables. `eval_source`
    measures progress. `eval_sources`, {name: source}, are evaluated as well. A new run begins with the weights of
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
        """Returns an untrained copy of the experiment on `strategy`. `placements`, if given, replace its placements."""
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
        """Sets the training's precision for evaluation, samples and exports."""
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
        """Makes another task outside the strategy's scope. `recompute`, if given, replaces the experiment's."""
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
    if not callable(factory):
        raise ConfigurationError(
            f"`Experiment.task` is {shown(factory)}; give the class of a task, or a function of `rng` that makes one."
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
    """Returns the precision that gin binds, for modes that compute with a run's weights and don't train."""
    given = gin.get_bindings("Trainer", resolve_references=False).get("precision", "float32")
    return Precision(copy.deepcopy(given))  # which resolves a macro


def refuse_servers(why: str) -> None:
    """Raises a `ConfigurationError` if the configuration uses parameter servers. It doesn't connect to them."""
    strategy = gin.get_bindings(Experiment, resolve_references=False).get("strategy")
    if str(getattr(strategy, "selector", "")).endswith("parameter_server"):
        raise ConfigurationError(why)


class _LargeError(BaseException):
    """Aborts the construction of a large task; a `BaseException`, so that no `except Exception` catches it."""


def fitting(make: Callable[[], Assembly], make_task: Callable[[], Task], strategy: tf.distribute.Strategy) -> Assembly:
    """Returns the result of `make`. If this machine's memory is too small, it raises a `NoRoomError`.

    A task that takes more than 1/16 of the memory is aborted, and measured with `make_task` from shapes alone. With
    several workers, each task is measured so before it is made. GPU memory isn't checked.
    """
    memory, so_far = machine_memory(), 0

    def count(values: int) -> None:
        nonlocal so_far
        so_far += values
        if so_far * LARGE > memory:
            raise _LargeError

    if any("GPU" in str(device) for device in backend_of(strategy).local_devices):
        return make()
    membership = joined()
    # With several workers, none may stop while others wait for its values.
    if membership is None or membership.cluster.size == 1:
        try:
            with announced(count):
                return make()
        except _LargeError:
            pass
    with shapes_only():
        task = make_task()
        _refuse(task, _held(named_variables(task).values(), strategy), memory, "variables")
        assembly = make()
    gradients = [v for optimizer in assembly.optimizers.values() for v in optimizer.parameters.values()]
    together = _held([*assembly.variables.values(), *gradients], strategy)
    _refuse(task, together, memory, "variables, slots of optimizers and gradients")
    return make()


def _held(variables: Iterable[tf.Variable], strategy: tf.distribute.Strategy) -> int:
    """Returns the bytes of `variables` on all local devices: a full copy on each device, or shards on a mesh."""
    backend = backend_of(strategy)
    return len(backend.local_devices) * sum(map(backend.bytes_per_device, variables))


def _refuse(task: Task, need: int, memory: int, what: str) -> None:
    if need > memory:
        from trainers.options.sizes import size

        raise NoRoomError(
            f"the {what} of `{type(task).__name__}` take {size(need)}, and this machine has {size(memory)} of memory. "
            "Make the task smaller, or train it on a mesh over more machines or GPUs "
            "(docs/choose-a-strategy.md#a-mesh-tensor-parallel): virtual CPU devices share one memory. "
            "`--mode=dry_run` says what each device would hold."
        )
