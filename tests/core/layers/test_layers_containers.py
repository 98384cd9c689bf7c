"""Containers pass on `rng` and `statistics`; wrappers leave the wrapped layer alone; recomputing changes no number."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import numpy as np
import pytest
import tensorflow as tf

from core.layers import (
    BatchNorm,
    Conv2D,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Residual,
    Sequential,
    SpectralNorm,
    StochasticDepth,
    WeightNorm,
    flatten,
    recompute,
)
from core.random import Rng
from core.task.statistics import Statistics, commit, refreshed
from tests.conformance.in_numpy import in_numpy

RNG = Rng.from_seed(14)


def test_layers_of_a_sequence_draw_apart_and_functions_need_nothing() -> None:
    net = Sequential([Dropout(0.5), tf.nn.relu, lambda x: x + 0.0, Dropout(0.5)])
    x = tf.ones([40, 50])
    first, second = Dropout(0.5)(x, RNG.fold(0)), Dropout(0.5)(x, RNG.fold(3))
    np.testing.assert_array_equal(net(x, RNG), first * second)
    np.testing.assert_array_equal(net(x), x)


def test_statistics_reach_every_depth() -> None:
    inner = BatchNorm(3)
    net = Sequential([BatchNorm(3), Residual(recompute(Sequential([inner, Dropout(0.1)])), shortcut=BatchNorm(3))])
    statistics = Statistics()
    net(RNG.normal([8, 3]), RNG, statistics=statistics)
    assert len(statistics.sums) == 3
    commit(statistics.averages())
    assert all(float(module.moving_weight) > 0.0 for module in net.submodules if isinstance(module, BatchNorm))


def test_a_residual_adds_its_shortcut() -> None:
    layer = Linear(3, 3, rng=RNG)
    x = RNG.normal([4, 3])
    np.testing.assert_allclose(Residual(layer)(x), x + layer(x))
    dropped = Residual(Sequential([layer, StochasticDepth(0.5)]))
    alone = np.all(dropped(x, RNG) == x, axis=1)
    twice = np.all(np.isclose(dropped(x, RNG), x + 2.0 * layer(x)), axis=1)
    assert (alone | twice).all()
    with pytest.raises(ValueError, match=r"`layer` of `Residual` made shape \(4, 2\), to be added to \(4, 3\)"):
        Residual(Linear(3, 2, rng=RNG))(x)


def test_object_that_is_not_a_layer_is_named() -> None:
    with pytest.raises(TypeError, match="`layers` holds 3"):
        Sequential([tf.nn.relu, 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="`fn` of `recompute` is 3"):
        recompute(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`x` of `flatten` has shape \(2, None, 3\)"):
        tf.function(flatten, input_signature=[tf.TensorSpec([2, None, 3])]).get_concrete_function()


def gradients(fn: Callable[..., Any], x: tf.Tensor, variables: Any) -> Any:
    """Returns first derivatives, and those of their squares: a gradient penalty."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(fn(x)))
        first = tape.gradient(loss, [x, *variables])
        penalty = tf.add_n([tf.reduce_sum(tf.square(tf.convert_to_tensor(g))) for g in first])
    return first, outer.gradient(penalty, [x, *variables])


@pytest.mark.parametrize("mode", ["eager", "graph", pytest.param("xla", marks=pytest.mark.long)])
def test_recomputing_changes_no_gradient_of_first_or_second_order(mode: str) -> None:
    net = Sequential([Linear(3, 4, rng=RNG), tf.nn.tanh, Dropout(0.3), LayerNorm(4)])
    x, again = RNG.normal([5, 3]), recompute(net)

    def both(fn: Callable[..., Any]) -> Callable[[tf.Tensor], Any]:
        def run(x: tf.Tensor) -> Any:
            return gradients(lambda x: fn(x, RNG), x, net.trainable_variables)

        return run if mode == "eager" else tf.function(run, jit_compile=mode == "xla", autograph=False)

    for a, b in zip(tf.nest.flatten(both(net)(x)), tf.nest.flatten(both(again)(x)), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5 * max(1.0, np.abs(a).max()))


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputing_a_lookup_keeps_its_gradient(compiled: bool) -> None:
    table = Embedding(5, 3, rng=RNG)
    ids = tf.constant([1, 1, 4])

    def gradient(fn: Callable[..., Any]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(fn(ids)))
        return tf.convert_to_tensor(tape.gradient(loss, table.w))

    function = tf.function(gradient, jit_compile=True, autograph=False) if compiled else gradient
    np.testing.assert_allclose(function(recompute(table)), gradient(table), rtol=1e-6)


def test_recomputing_counts_statistics_once() -> None:
    norm = BatchNorm(3)
    block, statistics, x = recompute(norm), Statistics(), RNG.normal([6, 3])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(block(x, statistics=statistics)))
    tape.gradient(loss, norm.trainable_variables)
    assert [float(sums.count) for sums in statistics.sums.values()] == [6.0]


def test_a_tensor_that_the_gradient_would_miss_is_named() -> None:
    context = tf.ones([3])
    with pytest.raises(ValueError, match=r"closes over the tensor `context`.*make `context` an argument"):
        recompute(lambda x: x * context)(tf.ones([2, 3]))
    np.testing.assert_array_equal(recompute(lambda x, c: x * c)(tf.ones([2, 3]), context), tf.ones([2, 3]))


def operations(graph: Any, kind: str) -> int:
    return sum(op.type == kind for op in graph.get_operations())


def test_recomputing_computes_again_in_a_graph() -> None:
    layer = Linear(3, 3, rng=RNG)

    def count(fn: Callable[..., Any]) -> int:
        @tf.function(autograph=False)
        def run(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.tanh(fn(x)))
            return tape.gradient(loss, layer.trainable_variables)

        return operations(run.get_concrete_function(tf.TensorSpec([2, 3])).graph, "Tanh")

    assert (count(lambda x: tf.tanh(layer(x))), count(recompute(lambda x: tf.tanh(layer(x))))) == (2, 3)


@pytest.mark.parametrize("make", [lambda: Linear(5, 4, rng=RNG), lambda: Conv2D(3, 4, 3, rng=RNG)])
def test_wrappers_leave_the_kernel_alone_and_start_as_they_say(make: Callable[[], Any]) -> None:
    layer = make()
    x = RNG.normal([2, *([6, 6] if layer.w.shape.rank == 4 else []), layer.w.shape[-2]])
    kernel = layer.w.numpy()
    np.testing.assert_allclose(WeightNorm(layer)(x), layer(x), atol=1e-5)
    spectral = SpectralNorm(layer, rng=RNG)
    largest = np.linalg.norm(kernel.reshape(-1, 4), 2)
    np.testing.assert_allclose(spectral.kernel(), kernel / largest, rtol=1e-3, atol=1e-6)
    vector = spectral.vector.numpy()
    spectral(x)
    np.testing.assert_array_equal(layer.w, kernel)
    np.testing.assert_array_equal(spectral.vector, vector)


def test_spectral_vector_follows_its_kernel_as_in_flax() -> None:
    spectral = SpectralNorm(Linear(5, 4, rng=RNG), rng=RNG)
    x = RNG.normal([2, 5])
    spectral.layer.w.assign(RNG.fold("new").normal([5, 4]))
    module = nn.SpectralNorm(nn.Dense(4), n_steps=1)
    params = {"layer_instance": {"kernel": spectral.layer.w.numpy(), "bias": spectral.layer.b.numpy()}}
    vector, sigma = spectral.vector.numpy()[None], np.ones([], np.float32)
    stats = {"layer_instance/kernel/u": vector, "layer_instance/kernel/sigma": sigma}
    apply = in_numpy(functools.partial(module.apply, update_stats=True, mutable=["batch_stats"]))
    for _ in range(3):
        commit(refreshed(spectral))
        stats = apply({"params": params, "batch_stats": stats}, x.numpy())[1]["batch_stats"]
        np.testing.assert_allclose(spectral.vector, stats["layer_instance/kernel/u"][0], atol=1e-5)
    for _ in range(60):
        commit(refreshed(spectral))
    largest = np.linalg.norm(spectral.layer.w.numpy(), 2)
    np.testing.assert_allclose(spectral.kernel(), spectral.layer.w / largest, rtol=1e-5)


def test_a_kernel_of_zeros_stays_finite_and_loses_no_direction() -> None:
    spectral, weight = (
        kind(Linear(3, 2, rng=RNG), **options) for kind, options in ((SpectralNorm, {"rng": RNG}), (WeightNorm, {}))
    )
    for wrapper in (spectral, weight):
        wrapper.layer.w.assign(tf.zeros([3, 2]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(wrapper(tf.ones([1, 3])) - 1.0))
        assert all(np.isfinite(g).all() for g in tape.gradient(loss, wrapper.trainable_variables))
    commit(refreshed(spectral))
    assert np.linalg.norm(spectral.vector) == pytest.approx(1.0, abs=1e-5)


def test_refreshed_finds_every_wrapper_of_a_network() -> None:
    net = Sequential(
        [SpectralNorm(Linear(3, 3, rng=RNG), rng=RNG), tf.nn.relu, SpectralNorm(Linear(3, 1, rng=RNG), rng=RNG)]
    )
    assert set(refreshed(net)) == {net.layers[0].vector.ref(), net.layers[2].vector.ref()}


def test_a_layer_without_a_kernel_is_named() -> None:
    with pytest.raises(ValueError, match=r"`layer` of `SpectralNorm` is LayerNorm.*such as `Linear` or `Conv2D`"):
        SpectralNorm(LayerNorm(3), rng=RNG)  # type: ignore[arg-type]
