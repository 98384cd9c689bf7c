"""The first matching pattern lays out a variable on a mesh; errors name patterns that don't fit."""

import re

import pytest

from core.errors import ConfigurationError
from core.parallel.mesh.layouts import Layouts

SIZES = {"batch": 2, "model": 4}
SHAPES = {"net/up/w": [8, 12], "net/up/b": [12], "net/down/w": [12, 8], "net/down/b": [8], "net/step": []}
MEGATRON = [("*/up/?", "...,model"), ("*/down/w", "model,-")]


def test_the_first_pattern_that_matches_counts_and_the_rest_is_whole():
    layouts = Layouts([("*/up/w", "batch, model"), *MEGATRON], SIZES)
    found = {path: layouts.of(path, shape) for path, shape in SHAPES.items()}
    assert found == {
        "net/up/w": ("batch", "model"),
        "net/up/b": ("model",),
        "net/down/w": ("model", "-"),
        "net/down/b": ("-",),
        "net/step": (),
    }
    local = {path: layouts.local_shape(path, shape) for path, shape in SHAPES.items()}
    assert list(local.values()) == [(4, 3), (3,), (3, 8), (8,), ()]


def test_the_rest_stands_for_any_number_of_dimensions():
    layouts = Layouts([("*", "batch,...,model")], SIZES)
    assert layouts.of("x", [2, 4]) == ("batch", "model")
    assert layouts.of("x", [2, 3, 5, 4]) == ("batch", "-", "-", "model")
    assert layouts.local_shape("x", [2, 3, 5, 4]) == (1, 3, 5, 1)


def test_layouts_that_fit_pass():
    Layouts(MEGATRON, SIZES).check(SHAPES)
    Layouts([], SIZES).check(SHAPES)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([("*/up/w", "model")], "'*/up/w' by 'model', 1 dimensions, but `net/up/w` has the 2 of [8, 12]"),
        ([("*/up/b", "-,...,model")], "2 dimensions or more, but `net/up/b` has the 1 of [12]"),
        ([("*/sideways/w", "model,-")], "'*/sideways/w', which matches no variable. Paths are `net/up/w`"),
        ([("net/upp/w", "model,-")], "'net/upp/w', which matches no variable. Did you mean `net/up/w`?"),
        (
            [*MEGATRON, ("*/up/b", "model")],
            "'*/up/b', but the patterns before it match all that it does, `net/up/b`",
        ),
    ],
)
def test_patterns_that_do_not_fit_the_variables_are_named(patterns, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Layouts(patterns, SIZES).check(SHAPES)


def test_an_axis_that_does_not_divide_is_named_with_the_sizes_that_would():
    with pytest.raises(ConfigurationError) as found:
        Layouts(MEGATRON, {"batch": 1, "model": 5}).check(SHAPES)
    said = str(found.value)
    assert "`mesh.model` is 5, which doesn't divide the 12 of `net/up/w` [8, 12]" in said
    assert "are 1, 2, 3, 4, 6, 12;" in said  # 8 is cut nowhere
    assert "('net/up/w', '-,-')" in said
    Layouts([("net/up/w", "-,-"), ("net/up/b", "-"), ("net/down/w", "-,-")], {"model": 5}).check(SHAPES)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            [("*/w", "modle,-")],
            "'modle' isn't an axis of the mesh. Did you mean `model`? Give `batch`, `model`, or `-`",
        ),
        ([("*/w", "model,model")], "names one twice"),
        ([("*/w", "...,...")], "names one twice; an axis cuts one dimension of a variable, and `...` stands for"),
        ([("*/w", "")], "'' isn't an axis"),
        (["*/w"], "has '*/w'; give pairs of a pattern of paths and a layout"),
        ([("*/w", ("model", "-"))], "give pairs"),
        ([3], "has 3; give pairs"),
    ],
)
def test_malformed_layouts_are_refused_at_once(patterns, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Layouts(patterns, SIZES)


def test_errors_name_the_binding():
    with pytest.raises(ConfigurationError, match=re.escape("`mesh.slot_layouts` has 'x'")):
        Layouts([("x", "-")], SIZES, binding="mesh.slot_layouts").check(SHAPES)
