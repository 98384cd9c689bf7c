"""Configurables for the tests of the configuration audit: a small experiment, and helpers to write, bind and refuse."""

import enum
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional

import gin
import pytest
from gin import config as gin_config
from gin.selector_map import SelectorMap

from core.errors import ConfigurationError
from trainers.gin_audit.audit import Configuration, read

if TYPE_CHECKING:
    from decimal import Decimal  # a name that only a type checker knows

CHECKOUT = Path(__file__).parents[3]

# The lab's configurables have names like the real ones, which other tests of the same process import: they use a
# separate registry.
REAL = gin_config._REGISTRY
gin_config._REGISTRY = SelectorMap()
for _selector, _configurable in REAL.items():
    if _configurable.module == "gin":
        gin_config._REGISTRY[_selector] = _configurable


class Rule(NamedTuple):
    """Stands for a transform."""

    name: str


Rate = Callable[[int], float]


class Base:
    """Stands for a task; it can be called, as networks can."""

    width: int
    optimizer: Rule
    anything: Any

    def __call__(self, x: int) -> int:
        return x


class Colour(enum.Enum):
    """Bound from gin as a constant."""

    RED = 1


gin.constant("audit_test.Colour.RED", Colour.RED)
gin.constant("audit_test.WIDTH", 64)


@gin.configurable(module="audit_test")
def warmup(peak: float = 1.0, *, steps: int = 10) -> Rate:
    return lambda step: peak * min(1.0, step / steps)


@gin.configurable(module="audit_test")
def adamw(learning_rate: float | Rate = 1e-3, *, decay: float = 0.0, mask: Sequence[str] | None = None) -> Rule:
    return Rule(f"adamw {learning_rate if isinstance(learning_rate, float | int) else 'rate'}")


@gin.configurable(module="audit_test")
def sgd(learning_rate: float = 0.1, momentum: Optional[float] = None) -> Rule:  # noqa: UP045
    return Rule(f"sgd {learning_rate}")


@gin.configurable("chained", module="audit_test")
def _chained(transforms: Sequence[Rule]) -> Rule:
    return Rule("+".join(rule.name for rule in transforms))


@gin.configurable(module="audit_test", denylist=["rng"])
class Digits(Base):
    """A task, as a user writes it."""

    def __init__(
        self,
        *,
        rng: int,
        width: int = 32,
        optimizer: Rule = gin.REQUIRED,
        activation: Callable[[float], float] | None = None,
        layers: tuple[int, ...] = (),
        names: Mapping[str, float] = {},
        mode: Literal["fast", "slow"] = "fast",
        colour: Colour = Colour.RED,
        anything: Any = None,
        strange: "Decimal | None" = None,
        flag: bool = False,
        kind: type[Base] = Base,
    ):
        self.optimizer, self.width, self.anything = optimizer, width, anything


@gin.configurable(module="audit_test")
def mirrored(replicas: int = 1) -> str:
    return f"mirrored {replicas}"


@gin.configurable(module="audit_test")
def points(count: int, noise: float = 0.1) -> list[int]:
    return [0] * count


@gin.configurable(module="audit_test")
def squash(x: float, scale: float = 1.0) -> float:
    return x * scale


@gin.configurable(module="audit_test")
def follower(chosen: Callable[[float], float] = squash, seed: int = 0) -> int:
    return seed


@gin.configurable("twin", module="audit_test.first")
def _first_twin(x: int = 0) -> int:
    return x


@gin.configurable("twin", module="audit_test.second")
def _second_twin(x: int = 0) -> int:
    return x


@gin.configurable("clash", module="models.clashing")
def _shipped_clash(rate: float = 0.1) -> Rule:
    return Rule(f"shipped {rate}")


@gin.configurable("clash", module="audit_test")
def _own_clash(rate: float = 0.1) -> Rule:
    return Rule(f"own {rate}")


@gin.configurable(module="audit_test", allowlist=["colour", "size"])
def listed(size: int = 1, secret: int = 2, **others: str) -> int:
    return size


@gin.configurable(module="audit_test", denylist=["secret"])
def open_to_all(size: int = 1, **others: str) -> int:
    return size


@gin.configurable(module="audit_test")
class Lab:
    """Stands for an experiment: the root of what a command calls."""

    def __init__(
        self,
        *,
        task: Callable[..., Base] = gin.REQUIRED,
        strategy: str = "",
        source: Sequence[int] | None = None,
        evaluator: Any = None,
        seed: int = 0,
    ):
        self.task = task(rng=1)
        self.strategy, self.source = strategy, source


GOOD = """
Lab.task = @Digits
Digits.optimizer = @adamw()
"""


LAB, gin_config._REGISTRY = gin_config._REGISTRY, REAL


def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixture: an empty working directory, and only the configurables of this file."""
    monkeypatch.chdir(tmp_path)
    registry = SelectorMap()  # gin's own `copy` would share the tree that partial names are looked up in
    for selector, configurable in LAB.items():
        registry[selector] = configurable
    monkeypatch.setattr(gin_config, "_REGISTRY", registry)


def written(content: str, name: str = "a.gin") -> str:
    """A gin file in the working directory."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(textwrap.dedent(content).lstrip("\n"))
    return name


def bound(content: str, *params: str, required: Sequence[Any] = (Lab,), scopes: Sequence[str] = ()) -> Configuration:
    configuration = read([written(content)], params, [CHECKOUT])
    configuration.bind([Lab], required=required, scopes=scopes)
    return configuration


def message(function: Callable[[], Any]) -> str:
    """Returns the one paragraph that `function` fails with."""
    with pytest.raises(ConfigurationError) as caught:
        function()
    text = str(caught.value)
    assert "\n" not in text
    assert " at 0x" not in text
    assert caught.value.exit_code == 2
    return text


def refused(content: str, *params: str, **options: Any) -> str:
    return message(lambda: bound(content, *params, **options))


def consumed(content: str, *params: str, call: Callable[[], Any] = Lab) -> str:
    configuration = bound(content, *params)
    call()
    return message(configuration.check_consumed)


def says(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, f"{part!r} is missing in: {text}"
