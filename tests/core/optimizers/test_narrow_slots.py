"""Narrow slots: which are narrowed, their updates, the wrappers around their rules, and memory."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import (
    Optimizer,
    adam,
    adamw,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    ema,
    groups,
    lion,
    lookahead,
    muon,
    reduce_on_plateau,
    sam,
    sgd,
)
from core.optimizers.narrow_slots import bytes_of_slots, is_narrow
from core.optimizers.rounding import from_codes
from core.optimizers.slots import read_all

SHAPE = [64, 70]  # more than 4,096 values, and no whole number of blocks
RULES = {
    "adam": functools.partial(adam, 0.01),
    "adamw": functools.partial(adamw, 0.01, no_decay=["b"]),
    "lion": functools.partial(lion, 0.01, no_decay=["b"]),
    "sgd": functools.partial(sgd, 0.01, momentum=0.9),
    "nesterov": functools.partial(sgd, 0.01, momentum=0.9, nesterov=True),
    "muon": functools.partial(muon, 0.01, newton_schulz_steps=2),
}
DTYPES = pytest.mark.parametrize("slots", ["bfloat16", "int8"])
NARROWED = pytest.mark.parametrize(
    ("name", "slots"), [("adam", "bfloat16"), ("nesterov", "bfloat16"), *((name, "int8") for name in RULES)]
)


def normal(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def parameters(dtype=tf.float32):
    return {
        "net/w": tf.Variable(tf.cast(normal(SHAPE, 0), dtype)),
        "net/b": tf.Variable(tf.cast(normal([70], 1), dtype)),
    }


def gradients(seed, dtype=tf.float32):
    return {"net/w": tf.cast(normal(SHAPE, seed), dtype), "net/b": tf.cast(normal([70], seed + 1), dtype)}


def bits(optimizer):
    variables = {**optimizer.parameters, **optimizer.variables}
    return {name: v.numpy().tobytes() for name, v in variables.items()}


def wide(optimizer):
    """Returns the float32 values of the slots."""
    found = {}
    for name, own in read_all(optimizer.slots).items():
        for path, x in own.items():
            if path in own and not name.endswith("_scale"):
                scales = optimizer.slots.get(f"{name}_scale", {}).get(path)
                x = from_codes(x, scales) if scales is not None else tf.cast(x, tf.float32)
                found.setdefault(name, {})[path] = tf.square(x) if own[path].dtype == tf.uint8 else x
    return found


@pytest.mark.long
@NARROWED
def test_update_is_that_of_float32_from_the_stored_slots(name, slots):
    narrow, plain = Optimizer(RULES[name](slots=slots), parameters()), Optimizer(RULES[name](), parameters())
    for i in range(3):
        stored = wide(narrow)
        for slot, own in plain.slots.items():
            for path, variable in own.items():
                variable.assign(stored[slot][path])
        for optimizer in (narrow, plain):
            optimizer.apply(gradients(10 * i), fused=False)
        for path, variable in narrow.parameters.items():
            assert variable.numpy().tobytes() == plain.parameters[path].numpy().tobytes()
        for slot, own in wide(narrow).items():
            for path, x in own.items():
                x, exact = x.numpy(), plain.slots[slot][path].numpy()
                allowed = 2.0**-7 * np.abs(exact)
                if slots == "int8":
                    if slot.endswith("/v"):
                        x, exact = np.sqrt(x), np.sqrt(exact)
                    largest = np.abs(exact).max()
                    # 7 / 2^e of a value is the distance to the next, and 8^e the value over the smallest code's.
                    allowed = 14.0 / 2**7 * largest * np.cbrt((np.abs(exact) / largest) ** 2) + 4e-6 * largest
                assert (np.abs(x - exact) <= allowed).all()
                plain.parameters[path].assign(narrow.parameters[path])


@pytest.mark.long
@NARROWED
def test_update_in_place_has_the_bits_of_the_pure_one(monkeypatch, name, slots):
    monkeypatch.setattr(optimizers.optimizer, "KERNELS_FROM", 0)
    runs = [Optimizer(chain(clip_by_global_norm(1.0), RULES[name](slots=slots)), parameters()) for _ in range(2)]
    for optimizer, fused in zip(runs, (True, False), strict=True):
        call = tf.function(functools.partial(optimizer.apply, fused=fused), autograph=False)
        for i in range(3):
            call(gradients(10 * i))
    narrow, exact = ([path for path, v in run.variables.items() if is_narrow(v)] for run in runs)
    assert narrow == exact != []
    for path, variable in runs[0].parameters.items():
        np.testing.assert_allclose(variable, runs[1].parameters[path], rtol=1e-6, atol=1e-7)
    if name != "muon":  # whose products may be computed in another order
        assert bits(runs[0]) == bits(runs[1])


@DTYPES
def test_slots_of_few_values_and_of_doubles_keep_their_dtype(slots):
    params = {
        "small": tf.Variable(tf.zeros([4095])),
        "large": tf.Variable(tf.zeros([4096])),
        "half": tf.Variable(tf.zeros([4096], tf.bfloat16)),
        "double": tf.Variable(tf.zeros([4096], tf.float64)),
        "scalar": tf.Variable(0.0),
        "empty": tf.Variable(tf.zeros([0, 8])),
    }
    optimizer = Optimizer(adam(0.1, slots=slots), params)
    optimizer.apply({path: tf.ones_like(v) for path, v in params.items()})
    kinds = (
        {"adam/m": tf.bfloat16, "adam/v": tf.bfloat16}
        if slots == "bfloat16"
        else {"adam/m": tf.int8, "adam/v": tf.uint8}
    )
    for name, dtype in kinds.items():
        found = {path: slot.dtype for path, slot in optimizer.slots[name].items()}
        assert found == {
            "small": tf.float32, "large": dtype, "half": dtype, "double": tf.float64, "scalar": tf.float32,
            "empty": tf.float32,
        }  # fmt: skip
    scales = [path for name in optimizer.slots if name.endswith("_scale") for path in optimizer.slots[name]]
    assert scales == (["large", "half"] * 2 if slots == "int8" else [])
    moved = {path: v.numpy().astype(np.float64) for path, v in params.items() if path != "empty"}
    np.testing.assert_allclose(np.concatenate([np.ravel(x) for x in moved.values()]), -0.1, rtol=0.01)


@DTYPES
def test_bytes_are_a_half_or_a_quarter(slots):
    optimizer = Optimizer(
        adam(0.1, slots=slots), {"w": tf.Variable(tf.zeros([256, 256])), "b": tf.Variable(tf.zeros([5]))}
    )
    count, small = 2 * 256 * 256, 4 * 2 * 5
    stored = 2 * count if slots == "bfloat16" else count + 4 * count // 256
    assert bytes_of_slots([optimizer]) == (stored + small, 4 * count + small)
    wide_ones = Optimizer(adam(0.1), optimizer.parameters)
    assert bytes_of_slots([wide_ones]) == (4 * count + small,) * 2


def test_float32_slots_are_the_rule_itself():
    params = parameters()
    assert bits(Optimizer(adamw(0.1, slots="float32"), params)) == bits(Optimizer(adamw(0.1), params))
    assert bits(Optimizer(adamw(0.1, slots=tf.bfloat16), params)) == bits(
        Optimizer(adamw(0.1, slots="bfloat16"), params)
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrap", "slots"),
    [
        (lambda rule: chain(clip_by_global_norm(1.0), rule, ema(0.9), reduce_on_plateau()), "int8"),
        (lambda rule: lookahead(rule, sync_period=2), "int8"),
        (lambda rule: lookahead(rule, sync_period=2), "bfloat16"),
        (sam, "int8"),
        (apply_if_finite, "bfloat16"),
        (lambda rule: groups({"b": sgd(0.1)}, otherwise=rule), "int8"),
    ],
    ids=["chain", "lookahead", "lookahead, bfloat16", "sam", "apply_if_finite, bfloat16", "groups"],
)
def test_wrapped_rule_is_masked_restarted_and_near_float32(wrap, slots):
    narrow, plain = (Optimizer(wrap(adamw(0.01, **kind)), parameters()) for kind in ({"slots": slots}, {}))
    first = bits(narrow)
    calls = [tf.function(optimizer.apply, autograph=False) for optimizer in (narrow, plain)]
    for i in range(6):
        for call in calls:
            call(gradients(10 * i), value=tf.constant(1.0), apply_if=tf.constant(True))
    before = bits(narrow)
    bad = {path: g * np.nan for path, g in gradients(5).items()}
    calls[0](bad, value=tf.constant(np.nan, tf.float32), apply_if=tf.constant(False))
    assert bits(narrow) == before
    assert {v.dtype for name, v in narrow.variables.items() if name.endswith("v/net/w")} <= {tf.bfloat16, tf.uint8}
    for path, variable in narrow.parameters.items():
        np.testing.assert_allclose(variable, plain.parameters[path], atol=0.02)
    for path, variable in parameters().items():
        narrow.parameters[path].assign(variable)
    narrow.restart()
    assert bits(narrow) == first


@DTYPES
@pytest.mark.parametrize("fused", [True, False])
def test_gradient_that_is_not_finite_shows(fused, slots):
    optimizer = Optimizer(adam(0.1, slots=slots), parameters())
    bad = gradients(0)
    bad["net/w"] = tf.tensor_scatter_nd_update(bad["net/w"], [[1, 1]], [np.nan])
    for gradient in (bad, gradients(10)):
        optimizer.apply(gradient, fused=fused)
    assert np.isnan(optimizer.parameters["net/w"].numpy()[1, 1])
    assert np.isfinite(optimizer.parameters["net/b"]).all()


@pytest.mark.long
@DTYPES
@pytest.mark.parametrize("beta_2", [0.999, 0.9999999])
def test_small_second_moments_in_a_block_with_a_huge_one_do_not_blow_up_the_update(beta_2, slots):
    size = np.full([4096], 1e-6, np.float32)
    size[::300] = 1e4
    size[1::3] = 0.0
    w = tf.Variable(tf.zeros([4096]))
    optimizer = Optimizer(
        adam(0.01, beta_2=beta_2, epsilon=0.0 if slots == "bfloat16" else 1e-30, slots=slots), {"w": w}
    )
    if slots == "bfloat16":
        size[1::3] = 1e-6
    for i in range(50):
        before = w.numpy()
        optimizer.apply({"w": tf.constant(size * normal([4096], i))})
        # float32 Adam moves by 0.01 times at most about 7; codes of one block differ by a factor of 8 at most
        assert np.abs(w.numpy() - before).max() <= 0.01 * 7.3 * 8
    assert (w.numpy()[1::3] == 0.0).all() == (slots == "int8")


@pytest.mark.long
@DTYPES
def test_slow_average_moves_on(slots):
    """With rounding to the nearest, an average with a beta next to one would never leave its value."""
    w = tf.Variable(tf.zeros([4096]))
    optimizer = Optimizer(adam(0.0, beta_1=0.0, beta_2=0.999, slots=slots), {"w": w})
    call = tf.function(optimizer.apply, autograph=False)
    steps = np.linspace(0.5, 1.5, 4096).astype(np.float32)
    call({"w": tf.constant(steps)})
    for _ in range(300):
        call({"w": tf.constant(steps)})
    exact = (1.0 - 0.999**301) * steps.astype(np.float64) ** 2
    v = wide(optimizer)["adam/v"]["w"].numpy()
    assert abs(np.mean(v / exact) - 1.0) < 0.01


@pytest.mark.parametrize("name", [name for name in RULES if name != "nesterov"])
def test_unknown_dtype_is_named(name):
    for bad in ("int4", tf.int32, None, 8):
        with pytest.raises(ValueError, match=r"`slots` is .*; give one of 'float32', 'bfloat16', 'int8'"):
            RULES[name](slots=bad)


def test_rule_without_slots_is_named():
    with pytest.raises(ValueError, match=r"`slots` is .bfloat16., but `momentum` is 0\.0"):
        sgd(0.1, slots="bfloat16")


def test_pattern_without_a_match_is_still_named():
    with pytest.raises(ValueError, match="`no_decay` has the pattern 'bias'"):
        Optimizer(adamw(0.1, no_decay=["bias"], slots="int8"), parameters())


@DTYPES
def test_rounding_of_other_paths_and_steps_is_independent(slots):
    params = {name: tf.Variable(tf.zeros(SHAPE)) for name in ("one", "other")}
    optimizer = Optimizer(sgd(0.1, momentum=0.9, slots=slots), params)
    seen = set()
    gradient = tf.constant(normal(SHAPE, 0))
    for _ in range(3):
        optimizer.restart() if not seen else optimizer.slots["sgd/momentum"]["one"].assign(
            tf.zeros_like(optimizer.slots["sgd/momentum"]["one"])
        )
        optimizer.apply({"one": gradient, "other": gradient})
        seen.add(optimizer.slots["sgd/momentum"]["one"].numpy().tobytes())
    first = Optimizer(sgd(0.1, momentum=0.9, slots=slots), params)
    first.apply({"one": gradient, "other": gradient})
    both = {path: slot.numpy().tobytes() for path, slot in first.slots["sgd/momentum"].items()}
    assert len(seen) == 3
    assert both["one"] != both["other"]
    assert both["one"] in seen
