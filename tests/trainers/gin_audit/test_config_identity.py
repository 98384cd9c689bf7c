"""Configurations are the same if their bindings are, by configurables' own names, wherever their files are."""

import dataclasses
from collections.abc import Sequence

import gin
import pytest
from config_lab import GOOD, Lab, bound, clean

from trainers.gin_audit.identity import config_hash, difference, identity, operative_text, read_identity
from trainers.gin_audit.statements import Place

_clean = pytest.fixture(autouse=True)(clean)


def identity_of(content: str, *params: str, exclude: Sequence[str] = ()) -> dict[str, str]:
    bound(content, *params)
    Lab()
    return identity(exclude)


def test_identity_is_what_was_in_effect() -> None:
    found = identity_of(
        GOOD + "adamw.learning_rate = %lr\nlr = 0.5\nDigits.names = {'a': %lr}\nDigits.anything = [@o/sgd(), @points]"
    )
    assert found["Digits.optimizer"] == "@adamw()"
    assert found["adamw.learning_rate"] == "0.5"
    assert found["adamw.decay"] == "0.0"  # a default
    assert found["Digits.names"] == "{'a': 0.5}"
    assert found["Digits.anything"] == "[@o/sgd(), @points]"
    assert found["o/sgd.learning_rate"] == "0.1"
    assert "Digits.rng" not in found


@pytest.mark.parametrize(
    "same",
    [
        "adamw.learning_rate = 0.5",
        "audit_test.adamw.learning_rate = 0.50",
        "adamw.learning_rate = %lr\nlr = 5e-1",
        "adamw:\n  learning_rate = %a\na = %b\nb = 0.5",
        "adamw.learning_rate = 0.5\nadamw.decay = 0.0",
    ],
)
def test_spelling_does_not_change_the_hash(same: str) -> None:
    expected = identity_of(GOOD + "adamw.learning_rate = 0.5")
    found = identity_of(GOOD + same)
    assert found == expected
    assert config_hash(found) == config_hash(dict(reversed(expected.items())))
    assert config_hash(found) != config_hash(identity_of(GOOD))


def test_constants_appear_by_value_or_name() -> None:
    found = identity_of(GOOD + "Digits.width = %WIDTH\nDigits.colour = %Colour.RED")
    assert found["Digits.width"] == "64"
    assert found["Digits.colour"] == "%audit_test.Colour.RED"


def test_exclusions_are_patterns_of_names_without_modules() -> None:
    content = GOOD + "Lab.strategy = @g/mirrored()\nmirrored.replicas = 2"
    everything = identity_of(content)
    left = identity_of(content, exclude=["Lab.s*", "mirrored.*"])
    assert set(everything) - set(left) == {
        "Lab.strategy",
        "Lab.seed",
        "Lab.source",
        "g/mirrored.replicas",
    } & set(everything)
    assert "Lab.strategy" in everything


def test_difference_is_readable() -> None:
    old = identity_of(GOOD + "adamw.learning_rate = 0.5")
    new = identity_of(GOOD + "adamw.learning_rate = %lr\nlr = 0.25\nLab.source = [1]")
    assert difference(old, new).splitlines() == [
        "- Lab.source = None",
        "+ Lab.source = [1]",
        "- adamw.learning_rate = 0.5",
        "+ adamw.learning_rate = 0.25",
    ]
    assert difference(old, old) == ""
    assert difference({"a.F.x": "1", "b.F.x": "1"}, {"a.F.x": "2"}).splitlines() == [
        "- a.F.x = 1",
        "+ a.F.x = 2",
        "- b.F.x = 1",
    ]


def test_operative_text_is_a_configuration_with_the_same_identity() -> None:
    expected = identity_of(
        GOOD + "adamw.learning_rate = @warmup()\nwarmup.peak = %lr\nlr = 0.5\nLab.strategy = @g/mirrored()"
    )
    content = operative_text()
    assert content.endswith("\n")
    assert identity_of(content) == expected


def test_identity_excludes_references_of_excluded_parameters() -> None:
    content = GOOD + "Lab.evaluator = [@points(), @warmup()]\npoints.count = 3\nadamw.learning_rate = @warmup()"
    left = identity_of(content, exclude=["Lab.evaluator"])
    assert "points.count" not in left
    assert left["warmup.steps"] == "10"  # the optimizer asks for it too
    assert left == identity_of(GOOD + "adamw.learning_rate = @warmup()", exclude=["Lab.evaluator"])


def test_identity_excludes_scoped_references_of_excluded_parameters_alone() -> None:
    content = GOOD + "Lab.source = @points()\npoints.count = 3\n"
    more = "Lab.evaluator = [@o/points(), @p/points()]\no/points.count = 4\nDigits.anything = @p/points()\n"
    left = identity_of(content + more, exclude=["Lab.evaluator", "Lab.seed"])
    assert (left["points.count"], left["p/points.count"]) == ("3", "3")
    assert "o/points.count" not in left
    before = {**left, "o/points.count": "4"}  # as it was written once
    assert read_identity(before, left, ["Lab.evaluator", "Lab.seed"]) == left
    assert read_identity({**before, "q/points.count": "4"}, left) != left


def test_another_configurable_of_the_same_name_changes_nothing_until_it_is_used() -> None:
    content = GOOD.replace("@adamw", "@audit_test.adamw") + "Digits.anything = [@squash, 'an @audit_test.adamw()']\n"
    alone = identity_of(content)

    @gin.configurable("adamw", module="elsewhere.optimizers")
    def _other(warmth: float = 1.0) -> float:
        return warmth

    assert identity_of(content) == alone
    both = identity_of(content + "Lab.evaluator = @elsewhere.optimizers.adamw()")
    assert both["audit_test.adamw.learning_rate"] == alone["adamw.learning_rate"]
    assert both["elsewhere.optimizers.adamw.warmth"] == "1.0"
    assert both["Digits.optimizer"] == "@audit_test.adamw()"
    assert both["Lab.evaluator"] == "@elsewhere.optimizers.adamw()"
    assert both["Digits.anything"] == alone["Digits.anything"] == "[@squash, 'an @audit_test.adamw()']"
    # As part of a binding that may change, it doesn't count.
    left = identity_of(content + "Lab.evaluator = @elsewhere.optimizers.adamw()", exclude=["Lab.evaluator"])
    assert left == identity_of(content, exclude=["Lab.evaluator"])


def test_methods_go_by_their_class() -> None:
    @gin.register(module="audit_test.anywhere")
    class Schedules:
        @gin.register
        def flat(self, rate: float = 1.0) -> float:
            return rate

    found = identity_of(GOOD + "Schedules.flat.rate = 0.5\nLab.evaluator = @Schedules()")
    assert not [key for key in found if "flat" in key]
    gin.get_configurable("Schedules")().flat()
    found = identity()
    assert found["Schedules.flat.rate"] == "0.5"
    old = {"old.place.Lab.evaluator": "@old.place.Schedules.flat", "old.place.Schedules.flat.rate": "0.5"}
    read = read_identity(old, found)
    assert (read["Lab.evaluator"], read["Schedules.flat.rate"]) == ("@Schedules.flat", "0.5")
    assert read.keys() <= found.keys()


def test_an_old_manifest_is_read_as_today() -> None:
    own = identity_of(GOOD + "Digits.anything = [@o/sgd(), @points, {'a': 'as in @audit_test.sgd()'}]")
    saved = {
        "old.lab.Lab.evaluator": "None",
        "old.lab.Lab.seed": "0",
        "old.lab.Lab.source": "None",
        "old.lab.Lab.strategy": "''",
        "old.lab.Lab.task": "@old.place.Digits",
        "old.place.Digits.anything": "[@o/old.rules.sgd(), @old.place.points, {'a': 'as in @audit_test.sgd()'}]",
        "old.place.Digits.flag": "False",
        "old.place.Digits.layers": "()",
        "old.place.Digits.mode": "'fast'",
        "old.place.Digits.names": "{}",
        "old.place.Digits.activation": "None",
        "old.place.Digits.optimizer": "@old.rules.adamw()",
        "old.place.Digits.strange": "None",
        "old.place.Digits.width": "32",
        "old.rules.adamw.decay": "0.0",
        "old.rules.adamw.learning_rate": "0.001",
        "old.rules.adamw.mask": "None",
        "o/old.rules.sgd.learning_rate": "0.1",
        "o/old.rules.sgd.momentum": "None",
    }
    assert difference(read_identity(saved, own), own) == ""
    assert read_identity(saved, own) == own
    assert read_identity(own, own) == own
    # Old manifests hold hooks' bindings, though `Trainer.hooks` itself was left out then as now.
    hooks = {"old.hooks.Grid.judge": "@old.hooks.quality()", "old.hooks.quality.seed": "0", "old.hooks.Grid.every": "5"}
    assert read_identity({**saved, **hooks}, own) == own
    # A placement that has moved since, with all its bindings.
    placement = {"old.place.Digits.placement": "@old.task.when_large()", "old.task.when_large.rows": "64"}
    assert read_identity({**saved, **placement}, own, ["Digits.placement"]) == own
    changed = {**saved, "old.rules.adamw.decay": "0.5"}
    assert difference(read_identity(changed, own), own).splitlines() == ["- adamw.decay = 0.5", "+ adamw.decay = 0.0"]


def test_a_parameter_that_has_come_since_is_what_it_was_without() -> None:
    own = identity_of(GOOD)
    before = {key: x for key, x in own.items() if key not in ("adamw.decay", "adamw.mask")}
    assert read_identity(before, own) == own
    bound = identity_of(GOOD + "adamw.decay = 0.5")
    assert difference(read_identity(before, bound), bound).splitlines() == ["+ adamw.decay = 0.5"]


def test_two_of_one_name_keep_their_modules_in_an_old_manifest_too() -> None:
    saved = {"a.Lab.source": "[@a.twin(), @b.twin()]", "a.twin.x": "1", "b.twin.x": "2"}
    assert read_identity(saved, {"Lab.source": "None"}) == {
        "Lab.source": "[@a.twin(), @b.twin()]",
        "a.twin.x": "1",
        "b.twin.x": "2",
    }


@pytest.mark.parametrize(
    ("content", "params"),
    [
        ("adamw.learning_rate = 1e-3\nadamw.mask = ['a\\n#', \"b'\", '\"']", ["Lab.seed = 3"]),
        ("Digits.anything = [1e999, -1e999, 1e-999, {2: 'caf\\udce9 ä\\x00'}, b'\\xff']", []),
        ("adamw.learning_rate = %lr\nlr = %base\nbase = 0.1", ["adamw.learning_rate = 0.30000000000000004"]),
        ("Digits.anything = (@o/sgd(), [1, ()], {'k': -1e-30})\no/sgd.learning_rate = 0.2", []),
        ("adamw.learning_rate = @warmup()\nwarmup.steps = %steps\nsteps = 7", ["adamw.learning_rate = 0.5"]),
    ],
)
def test_given_is_the_same_experiment(content: str, params: Sequence[str]) -> None:
    """Also if a later value has put others out of use: alone, they would be refused as mistakes."""
    head = "\n".join(line for line in GOOD.splitlines() if line.partition(" =")[0] not in content) + "\n"
    configuration = bound(head + content, *params)
    Lab()
    expected = identity()
    configuration.check_consumed()
    given = configuration.given
    for _ in range(2):
        again = bound(given)
        Lab()
        assert identity() == expected
        again.check_consumed()
        given = again.given


def test_given_from_a_folder_of_any_name() -> None:
    configuration = bound(GOOD)
    place = Place("runs/a\nLab.seed = 99\udce9/given.gin", 3)
    moved = [dataclasses.replace(binding, place=place) for binding in configuration.bindings]
    given = dataclasses.replace(configuration, bindings=tuple(moved)).given
    assert len(given.splitlines()) == len(moved)
    given.encode()
