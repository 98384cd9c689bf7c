"""Groups by pattern, frozen parameters, and Muon's division of labour."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import (
    Optimizer,
    Transform,
    adam,
    adamw,
    chain,
    clip_by_global_norm,
    ema,
    frozen,
    groups,
    muon,
    schedule_free_adamw,
    sgd,
)


def optimizer(transform: Transform) -> Optimizer:
    shapes = {"encoder/0/w": [3, 2], "encoder/0/b": [2], "head/w": [2, 4], "head/b": [4], "b": []}
    return Optimizer(transform, {path: tf.Variable(tf.ones(shape)) for path, shape in shapes.items()})


def update(made: Optimizer, times: int = 1) -> dict[str, np.ndarray]:
    for _ in range(times):
        made.apply({path: tf.ones_like(v) for path, v in made.parameters.items()})
    return {path: v.numpy() for path, v in made.parameters.items()}


def test_the_first_pattern_that_matches_decides() -> None:
    after = update(optimizer(groups({"b": sgd(0.1), "head/*": sgd(0.2)}, otherwise=sgd(0.3))))
    rates = {path: round(float(1.0 - np.mean(w)), 5) for path, w in after.items()}
    assert rates == {"encoder/0/w": 0.3, "encoder/0/b": 0.1, "head/w": 0.2, "head/b": 0.1, "b": 0.1}


def test_frozen_parameters_keep_their_bits_and_have_no_slots() -> None:
    for fused in (True, False):
        made = optimizer(groups({"encoder/*": frozen()}, otherwise=adam(0.1)))
        made.parameters["encoder/0/b"].assign([-0.0, 1.0])
        before = made.parameters["encoder/0/b"].numpy().tobytes()
        made.apply({path: tf.ones_like(v) for path, v in made.parameters.items()}, fused=fused)
        assert made.parameters["encoder/0/b"].numpy().tobytes() == before
        assert not [path for path in made.variables if "encoder" in path]


def test_a_slot_keeps_its_name_when_its_parameter_changes_groups() -> None:
    one = optimizer(groups({"head/*": adamw(0.1)}, otherwise=adamw(0.2)))
    other = optimizer(groups({"encoder/*": adamw(0.1), "b": adamw(0.3)}, otherwise=adamw(0.2)))
    assert one.variables.keys() == other.variables.keys() >= {"groups/adamw/m/head/w", "groups/adamw/v/b"}


def test_group_has_its_own_shared_slots() -> None:
    rule = groups({"head/*": schedule_free_adamw(0.1)}, otherwise=schedule_free_adamw(0.2))
    made = optimizer(rule)
    update(made, 2)
    rates = {path: float(v) for path, v in made.slots["groups/schedule_free_adamw/largest_rate"].items()}
    assert rates == pytest.approx({".group_0": 0.1, ".group_1": 0.2})


def test_groups_have_their_shadows_and_the_rest_its_weights() -> None:
    made = optimizer(groups({"head/*": chain(sgd(0.1), ema(0.5))}, otherwise=sgd(0.1)))
    after = update(made, 2)
    shadow = made.shadow()
    assert shadow
    np.testing.assert_allclose(shadow["head/b"], (0.9 + 2 * 0.8) / 3 * np.ones(4), rtol=1e-6)
    np.testing.assert_array_equal(shadow["encoder/0/w"], after["encoder/0/w"])


def test_clipping_before_groups_sees_all_of_them() -> None:
    made = optimizer(chain(clip_by_global_norm(1.0), groups({"encoder/*": frozen()}, otherwise=sgd(1.0))))
    assert float(update(made)["b"]) == pytest.approx(1.0 - 1.0 / np.sqrt(6 + 2 + 8 + 4 + 1))


def test_a_parameter_without_a_group_is_named() -> None:
    with pytest.raises(ValueError, match=r"`rules` of `groups` has no pattern for the parameters b, encoder/0/b, enc"):
        optimizer(groups({"head/*": sgd(0.1)}))


def test_muon_leaves_vectors_and_chosen_parameters_to_adamw() -> None:
    made = optimizer(muon(0.1, other_for=["head/*"]))
    assert set(made.slots["muon/momentum"]) == {"encoder/0/w"}
    assert set(made.slots["muon/adamw/m"]) == {"encoder/0/b", "head/w", "head/b", "b"}
    update(made)
