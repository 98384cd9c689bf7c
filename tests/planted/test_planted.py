"""Each planted mistake raises an error that names it; correct steps pass."""

import collections
import re

import pytest

from core.testing import assert_task
from tests.planted import (  # noqa: F401  (each fills the table)
    correct,
    mistakes_gradients,
    mistakes_others,
    mistakes_rows,
    mistakes_sequences,
    mistakes_state,
)
from tests.planted.table import CORRECT, MISTAKES

OF_A_KIND = 3  # at least; a plain `pytest` tries one of each, the others are `long`
LISTED = {
    "untrained", "causality", "padding", "mask", "sum", "stopped", "detour", "rng", "list", "evaluation", "nan",
    "softmax", "label", "batch mean", "row order", "side effect",
}  # fmt: skip
OF_OUR_OWN = 30  # mistakes of kinds that aren't listed; a plain `pytest` tries every third of them


def of_a_kind(planted):
    return "own" if planted.kind.startswith("own: ") else planted.kind


def quick_first():
    """Yields all mistakes; those beyond the first of each kind are `long`."""
    seen = collections.Counter()
    for planted in MISTAKES:
        kind = of_a_kind(planted)
        seen[kind] += 1
        more = seen[kind] % 3 if kind == "own" else seen[kind] > 1
        yield pytest.param(planted, id=planted.name, marks=[pytest.mark.long] if more else [])


# Independent rows, several phases, a sequence, a rare update, and one that resembles a mistake of labels.
QUICK = {"Classifier", "Adversarial", "LanguageModel", "DecayEveryFourthStep", "RareClasses"}


def right():
    """Yields the correct steps; all but a few quick ones are `long`."""
    for planted in CORRECT:
        marks = [] if planted.name in QUICK else [pytest.mark.long]
        yield pytest.param(planted, id=planted.name, marks=marks)


def test_planted_steps_are_enough_of_each_kind():
    counts = collections.Counter(map(of_a_kind, MISTAKES))
    assert set(counts) == {*LISTED, "own"}
    assert all(counts[kind] >= OF_A_KIND for kind in LISTED)
    assert counts["own"] >= OF_OUR_OWN
    assert len(CORRECT) >= 30
    assert {planted.name for planted in CORRECT} > QUICK
    names = [planted.name for planted in [*MISTAKES, *CORRECT]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("planted", quick_first())
def test_mistake_is_named(planted):
    with pytest.raises(Exception) as caught:
        assert_task(planted.task(), planted.batch(), **planted.arguments)
    said = str(caught.value)
    assert re.search(planted.says, said, re.DOTALL), said
    if planted.kind in ("batch mean", "row order", "sum"):
        assert "mixes_rows" not in said  # which would hide it


@pytest.mark.parametrize("planted", right())
def test_correct_step_passes(planted):
    assert_task(planted.task(), planted.batch(), **planted.arguments)
