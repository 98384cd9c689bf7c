"""Values and references that fit an annotation, and those that don't."""

import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar

import pytest

from trainers.gin_audit.annotations import fits, received, wanted
from trainers.gin_audit.statements import Constant, Reference

Width = NewType("Width", int)
Free = TypeVar("Free")
MADE, NAME = Reference("", "make", True), Reference("", "make", False)


class Shape(TypedDict):
    rows: int


class Named(Protocol):
    name: str


class Untestable(type):
    def __instancecheck__(cls, value):
        raise TypeError("no instance checks")

    __subclasscheck__ = __instancecheck__


class Strange(metaclass=Untestable):
    """Can't be checked."""


class Pair(NamedTuple):
    a: int
    b: int


class Called:
    def __call__(self):
        return 1


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, Any, True),
        (3, object, True),
        (3, Free, True),
        (3, "Unresolved", True),
        (3, Named, True),
        (3, Strange, True),
        (3, Width, True),
        ("x", Width, False),
        (3, Annotated[float, "a note"], True),
        ("x", Annotated[float, "a note"], False),
        (3, complex, True),
        (True, float, False),
        (True, bool, True),
        (None, None, True),
        (3, None, False),
        (None, Optional[int], True),  # noqa: UP045
        ("x", int | str, True),
        (1.5, int | str, False),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (True, Literal[1], False),
        ({"rows": 1}, Shape, True),
        (3, Shape, False),
        ("text", Sequence[str], False),
        (["text"], Sequence[str], True),
        ([1], Sequence[str], False),
        ((1, "a"), tuple[int, str], True),
        ((1,), tuple[int, str], False),
        ((1, 2), tuple[int, str], False),
        ((1, 2, 3), tuple[int, ...], True),
        ((1, "a"), tuple[int, ...], False),
        ({"a": 1}, dict[str, int], True),
        ({1: 1}, dict[str, int], False),
        ({"a": "b"}, dict[str, int], False),
        ({1}, set[str], True),  # gin has no sets: their items aren't looked at
        (3, Callable[..., int], False),
        (Constant("audit.WIDTH", 3), int, True),
        (Constant("audit.WIDTH", 3), str, False),
    ],
)
def test_value_fits_its_annotation(value, hint, expected):
    assert fits(value, hint, made_by=None) is expected


@pytest.mark.parametrize(
    ("made", "hint", "called", "alone"),
    [
        (int, int, True, False),
        (int, float, True, False),
        (bool, float, False, False),
        (bool, object, True, True),
        (str, int, False, False),
        (Any, int, True, False),
        (int | None, int, True, False),
        (None, int, False, False),
        (str, int | None, False, False),
        (list[int], Sequence[int], True, False),
        (Literal["a"], int, True, False),
        (int, Literal[3], True, True),
        (Pair, Sequence[int], False, False),
        (Pair, Pair, True, False),
        (Called, Callable[[], int], True, False),
        (int, Callable[[], int], False, True),
        (str, Callable[[], int], False, False),
        (str, Callable, False, True),
        (str, Callable[[], None], False, True),
        (int, type[int], False, True),
        (str, type[int], False, False),
        (str, type, False, True),
        (Strange, int, True, False),
        (int, Strange, True, False),
    ],
)
def test_reference_fits_by_what_it_makes_or_by_itself(made, hint, called, alone):
    assert [fits(x, hint, lambda _: made) for x in (MADE, NAME)] == [called, alone]


def test_message_says_how_to_write_a_reference():
    assert wanted(NAME, int, lambda _: int) == "`int` is wanted: write `@make()`"
    assert wanted([MADE], list[Callable[..., str]], lambda _: str).endswith("write `@make` without parentheses")
    assert "give a function, such as `@name`" in wanted(3, Callable[[], int], made_by=None)
    assert wanted("of", Literal["on", "off"], made_by=None).endswith(", perhaps 'off'")
    assert wanted(3, typing.Union[int, str], made_by=None) == ""  # noqa: UP007


def test_message_says_what_was_received():
    assert received(MADE, lambda _: int) == "`@make()`, which makes `int`"
    assert received(NAME, lambda _: int) == "`@make`, which makes `int` when called"
    assert received(NAME, lambda _: Any) == "`@make`"
    assert received(Constant("audit.WIDTH", 3), made_by=None) == "`%audit.WIDTH`, which is 3"
    assert received(None, made_by=None) == "None"
    assert received(3, made_by=None) == "3 (int)"
