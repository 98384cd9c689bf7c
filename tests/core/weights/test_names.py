"""Renaming rules map weight names to paths of a task, one after the other."""

import pytest

from core.errors import ConfigurationError
from core.weights.fit import matching, renamed

TORCH = ["model/layers/0/weight", "model/layers/0/bias", "head/weight"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, TORCH),
        ({"model": "net/body"}, ["net/body/layers/0/weight", "net/body/layers/0/bias", "head/weight"]),
        ({"model": ""}, ["layers/0/weight", "layers/0/bias", "head/weight"]),
        ({"": "net"}, [f"net/{name}" for name in TORCH]),
        ({"*/weight": "*/w"}, ["model/layers/0/w", "model/layers/0/bias", "head/w"]),
        ({"model": "a", "a/layers": "b", "*/bias": "*/b"}, ["b/0/weight", "b/0/b", "head/weight"]),
        ({"head/weight": "out"}, [*TORCH[:2], "out"]),
        ({"*": "net/*"}, [f"net/{name}" for name in TORCH]),
    ],
)
def test_rules_change_names(rules, expected):
    assert list(renamed(TORCH, rules).values()) == expected


def test_a_beginning_ends_at_a_slash():
    assert renamed(["net/w", "network/w"], {"net": "a"}) == {"net/w": "a/w", "network/w": "network/w"}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"modle": "net"}, r"'modle': 'net', which changes no name\. Did you mean `model`\? Its keys"),
        ({"model": "a", "model/layers": "b"}, "which changes no name after the rules before it"),
        ({"*/weight": "w"}, r"'\*/weight': 'w'; give two names"),
        ({"*/a/*": "*/b/*"}, "one `\\*` each"),
        ({"model": 3}, "'model': 3; give two names"),
    ],
)
def test_a_rule_that_does_nothing_or_is_none_is_an_error(rules, message):
    with pytest.raises(ConfigurationError, match=message):
        renamed(TORCH, rules)


def test_a_pattern_matches_across_slashes_or_is_an_error():
    paths = ["net/body/0/w", "net/head/w"]
    assert matching(["net/*", "*/head/w"], paths, argument="take") == {"net/*": paths, "*/head/w": paths[1:]}
    with pytest.raises(ConfigurationError, match=r"`take` has the pattern 'nett/\*'.* Did you mean `net/\*`\?"):
        matching(["nett/*"], paths, argument="take")
