"""Bindings without effect, and messages without gin's additions."""

from collections.abc import Callable

import gin
import pytest
from config_lab import GOOD, Lab, bound, clean, consumed, mirrored, refused, says

from trainers.errors.exit_report import plain

_clean = pytest.fixture(autouse=True)(clean)


@pytest.mark.parametrize(
    ("content", "call", "parts"),
    [
        ("sgd.learning_rate = 0.3", Lab, ["`sgd.learning_rate = 0.3` (a.gin:3) has no effect", "nothing uses `sgd`"]),
        ("sgd.learning_rate = 0.3", Lab, ["Did you mean `adamw.learning_rate`?"]),
        ("sgd.momentum = 0.9", Lab, ["nothing uses `sgd`. In use are `Digits`, `Lab`, `adamw`."]),
        ("Lab.seed = 3", lambda: Lab(seed=4), ["(a.gin:3) has no effect", "which overrides the binding"]),
        (
            "Lab.strategy = @g/mirrored()\ng/adamw.decay = 0.1",
            Lab,
            ["(a.gin:4) has no effect", "nothing calls `adamw` in scope `g`, only in no scope", "`@g/adamw()`"],
        ),
    ],
)
def test_binding_without_an_effect_is_named(content: str, call: Callable[[], object], parts: list[str]) -> None:
    says(consumed(GOOD + content, call=call), *parts)


def test_an_explicit_argument_in_one_call_of_two_does_not() -> None:
    configuration = bound(GOOD + "Lab.seed = 3")
    Lab(seed=4)
    Lab()
    configuration.check_consumed()


def test_scopes_match_by_whole_components() -> None:
    content = "Lab.task = @Digits\nDigits.optimizer = @ab/c/adamw()\n{}/adamw.decay = 0.1"
    for scope in ("ab", "ab/c"):
        configuration = bound(content.format(scope))
        Lab()
        configuration.check_consumed()
    for scope in ("a", "ab/cd", "c"):
        says(refused(content.format(scope)), f"scope `{scope}`")


def test_calls_by_code_count() -> None:
    configuration = bound(GOOD + "mirrored.replicas = 2")
    Lab()
    mirrored()
    configuration.check_consumed()


def test_calls_of_another_mode_count() -> None:
    configuration = bound(
        GOOD + "Lab.source = @points()\npoints.count = 3\nDigits.activation = @squash\nsquash.scale = 2.0"
    )
    configuration.check_consumed()  # nothing has been called yet


def test_binding_that_only_an_overridden_value_uses_is_no_mistake() -> None:
    configuration = bound(
        GOOD + "adamw.decay = %decay\ndecay = 0.1", "Digits.optimizer = @sgd()", "sgd.learning_rate = 1"
    )
    Lab()
    configuration.check_consumed()
    bound(GOOD + "adamw.decay = %decay\ndecay = 0.1", "adamw.decay = 0.2")


def test_a_dependency_of_an_overridden_value_is_not_required() -> None:
    bound(GOOD + "Lab.source = @points()", "Lab.source = [1]")


def test_plain_message_drops_what_gin_appends() -> None:
    bound(GOOD + "Lab.source = @points()\npoints.count = -1")

    @gin.configurable(module="audit_test_messages")
    def failing(x: int) -> None:
        raise ValueError(f"`x` is {x};\n  give another")

    with pytest.raises(ValueError, match="In call to configurable") as caught:
        failing(3)
    assert plain(caught.value) == "`x` is 3;\n  give another"
    with pytest.raises(TypeError, match="No values supplied") as missing:
        failing()
    assert plain(missing.value).endswith("missing 1 required positional argument: 'x'")
    assert plain(KeyError("a")) == "'a'"
