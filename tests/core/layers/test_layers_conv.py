"""Linear maps and convolutions: properties that hold for all settings, sizes known late, and bad input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from core.layers import (
    AveragePool,
    Conv1D,
    Conv2D,
    Conv3D,
    ConvTranspose1D,
    ConvTranspose2D,
    DepthwiseConv2D,
    Linear,
    MaxPool,
    Pad,
    PixelShuffle,
    Resize,
    SeparableConv2D,
)
from core.random import Rng

RNG = Rng.from_seed(6)

settings_of_one_axis = st.fixed_dictionaries(
    {
        "size": st.integers(4, 9),  # of 3, padding can take everything off
        "kernel_size": st.integers(1, 3),
        "stride": st.integers(1, 3),
        "dilation": st.integers(1, 2),
        "padding": st.sampled_from(["SAME", "VALID", [(1, 0)], [(2, 1)]]),
        "groups": st.sampled_from([1, 2]),
    }
)


@settings(max_examples=15, deadline=None)
@given(settings_of_one_axis)
def test_a_transposed_convolution_is_the_adjoint_of_its_convolution(s: dict[str, Any]) -> None:
    """<conv(x), y> = <x, transposed(y)> for any x and y."""
    size = s.pop("size")
    conv = Conv1D(2, 4, rng=RNG, bias=False, **s)
    transposed = ConvTranspose1D(4, 2, rng=RNG, bias=False, **s)
    # Inputs and outputs change places, group by group.
    transposed.w.assign(tf.concat([tf.transpose(w, [0, 2, 1]) for w in tf.split(conv.w, s["groups"], -1)], -1))
    y = RNG.fold("y").normal([1, size, 4])
    back = transposed(y)
    x = RNG.fold("x").normal(back.shape)
    np.testing.assert_allclose(tf.reduce_sum(conv(x) * y), tf.reduce_sum(x * back), rtol=1e-4, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=3))
def test_linear_takes_any_leading_axes(leading: list[int]) -> None:
    layer = Linear(3, 2, rng=RNG)
    x = RNG.normal([*leading, 3])
    np.testing.assert_allclose(layer(x), np.asarray(x) @ layer.w.numpy() + layer.b.numpy(), atol=1e-6)


SPATIAL = {
    "Conv2D": lambda: Conv2D(4, 2, 3, rng=RNG, stride=2, dilation=2),
    "Conv2D VALID": lambda: Conv2D(4, 2, 3, rng=RNG, padding="VALID", groups=2),
    "ConvTranspose2D": lambda: ConvTranspose2D(4, 2, 3, rng=RNG, stride=2),
    "ConvTranspose2D explicit": lambda: ConvTranspose2D(4, 2, 3, rng=RNG, stride=2, padding=1),
    "DepthwiseConv2D": lambda: DepthwiseConv2D(4, 3, rng=RNG, stride=(1, 2)),
    "MaxPool": lambda: MaxPool(2, padding="SAME"),
    "AveragePool explicit": lambda: AveragePool(3, padding=1),
    "Pad": lambda: Pad(1),
    "PixelShuffle": lambda: PixelShuffle(2),
    "Resize nearest": lambda: Resize(scale=2, method="nearest"),
    "Resize to a size": lambda: Resize(size=(5, 9), method="nearest"),
    "Resize bilinear": lambda: Resize(scale=2),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SPATIAL)
def test_sizes_may_be_known_only_while_running(name: str) -> None:
    layer = SPATIAL[name]()
    graph = tf.function(layer, input_signature=[tf.TensorSpec([None, None, None, 4])], autograph=False)
    for shape in ([2, 6, 7, 4], [1, 5, 5, 4], [0, 6, 6, 4]):
        x = RNG.normal(shape)
        np.testing.assert_allclose(graph(x), layer(x), atol=1e-6)
    assert graph.experimental_get_tracing_count() == 1


def test_linear_takes_axes_known_only_while_running() -> None:
    layer = Linear(3, 2, rng=RNG)
    graph = tf.function(layer, input_signature=[tf.TensorSpec([None, None, 3])], autograph=False)
    assert graph(tf.zeros([2, 5, 3])).shape == [2, 5, 2]
    assert graph(tf.zeros([0, 5, 3])).shape == [0, 5, 2]


def test_a_causal_convolution_does_not_see_the_future() -> None:
    layer = Conv1D(2, 3, 3, rng=RNG, dilation=2, padding=[(4, 0)])
    x = RNG.normal([1, 8, 2])
    changed = tf.concat([x[:, :5], x[:, 5:] + 1.0], 1)
    np.testing.assert_array_equal(layer(x)[:, :5], layer(changed)[:, :5])


def test_gradients_of_groups_and_dilation_exist_in_half_precision() -> None:
    layer = Conv2D(4, 4, 3, rng=RNG, groups=2, dilation=2, stride=2)
    with tf.GradientTape() as tape:
        y = layer(tf.cast(RNG.normal([2, 7, 7, 4]), tf.bfloat16))
        loss = tf.reduce_sum(tf.cast(y, tf.float32))
    assert [g.dtype for g in tape.gradient(loss, layer.trainable_variables)] == [tf.float32, tf.float32]


def test_whole_numbers_may_be_those_of_numpy() -> None:
    layer = Conv2D(np.int64(4), 6, np.int64(3), rng=RNG, stride=np.array([2, 1]), padding=[np.int64(1), (0, 1)])
    same = Conv2D(4, 6, 3, rng=RNG, stride=(2, 1), padding=[1, (0, 1)])
    np.testing.assert_array_equal(layer(IMAGE), same(IMAGE))
    np.testing.assert_array_equal(MaxPool(np.int64(2))(IMAGE), MaxPool(2)(IMAGE))


def test_a_transposed_convolution_that_leaves_nothing_is_refused_while_running() -> None:
    layer = ConvTranspose2D(4, 6, 3, rng=RNG, padding=[4, 4])
    graph = tf.function(layer, input_signature=[tf.TensorSpec([None, None, None, 4])], autograph=False)
    assert graph(IMAGE).shape == [2, 2, 2, 6]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`padding` is \[\(4, 4\), \(4, 4\)\]"):
        graph(IMAGE[:, :6])


IMAGE = RNG.fold("image").normal([2, 8, 8, 4])


def shaped(*shape: int | None) -> Any:
    """Returns a symbolic input: errors come while tracing, from the shape known then."""
    return tf.TensorSpec(shape)


def trace(layer: Callable[..., Any], *specs: tf.TensorSpec) -> None:
    tf.function(layer, autograph=False).get_concrete_function(*specs)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Linear(0, 3, rng=RNG), r"`in_size` is 0; give"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, groups=3), r"`groups` is 3, which doesn't divide `in_channels=4`"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, groups=4), r"`groups` is 4, which doesn't divide `out_channels=6`"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, groups=0), r"`groups` is 0"),
        (lambda: Conv2D(4, 6, (3, 3, 3), rng=RNG), r"`kernel_size` is \(3, 3, 3\); .* \[height, width\]"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, padding="same"), r"`padding` is 'same'; give 'SAME', 'VALID'"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, padding=[1, -1]), r"`padding` is \[1, -1\]"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, stride=0), r"`stride` is 0; give"),
        (lambda: Conv1D(4, 6, 3, rng=RNG, dilation=(1, 2)), r"`dilation` is \(1, 2\); .* \[length\]"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, stride=1.5), r"`stride` is 1.5; give a whole number"),
        (lambda: Conv2D(4, 6, [3, 2.0], rng=RNG), r"`kernel_size` is \[3, 2.0\]; give a whole number"),
        (lambda: Conv2D(4, 6.0, 3, rng=RNG), r"`out_channels` is 6.0; give a whole number"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, padding=None), r"`padding` is None; give 'SAME', 'VALID'"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, padding=[(0, 1.5), 1]), r"`padding` is \[\(0, 1.5\), 1\]; give"),
        (lambda: Conv2D(4, 6, 3, rng=RNG, padding=["SAME", "no"]), r"`padding` is \['SAME', 'no'\]; give"),
        (lambda: ConvTranspose2D(4, 6, 3, rng=RNG, padding=9)(IMAGE), r"takes 18 off the 10 values .*along axis 1"),
        (lambda: ConvTranspose2D(4, 6, 3, rng=RNG, padding=[1, 5])(IMAGE), r"takes 10 off the 10 values .*axis 2"),
        (lambda: trace(ConvTranspose2D(4, 6, 3, rng=RNG, padding=9), shaped(None, None, 8, 4)),
            r"takes 18 off the 10 values .*axis 2"),
        (lambda: MaxPool(2, padding="same"), r"`padding` is 'same'; give"),
        (lambda: MaxPool(2, padding=2), r"`padding` is 2 for `window=2`"),
        (lambda: MaxPool(2, stride=0), r"`stride` is 0; give"),
        (lambda: AveragePool(0), r"`window` is 0; give"),
        (lambda: AveragePool((2, 2), stride=(1,)), r"`stride` is \(1,\); .* \[height, width\]"),
        (lambda: AveragePool((2, 2, 2, 2)), r"`AveragePool` got \(2, 2, 2, 2\); there are one to three axes"),
        (lambda: MaxPool(2, padding=2)(tf.zeros([1, 4, 4, 1])), r"`padding` is 2.*`window=2`"),
        (lambda: MaxPool(5)(tf.zeros([1, 4, 4, 1])), r"`window` is 5, larger than `x` of shape \(1, 4, 4, 1\)"),
        (lambda: MaxPool(2)(tf.zeros([4, 4])), r"`x` of `MaxPool` has shape \(4, 4\)"),
        (lambda: Pad("SAME"), r"`padding` of `Pad` is 'SAME'"),
        (lambda: Pad(1, mode="EDGE"), r"`mode` is 'EDGE'; give one of 'REFLECT', 'CONSTANT'"),
        (lambda: Resize(), r"`size` is None and `scale` is None; give one"),
        (lambda: Resize(scale=2, method="cubic"), r"`method` is 'cubic'; give one of"),
        (lambda: trace(Linear(4, 2, rng=RNG), shaped(None, 3)),
            r"`x` of `Linear` has shape .*`in_size=4`.*`in_size=3`"),
        (lambda: trace(Linear(4, 2, rng=RNG), shaped(None, None)), r"isn't known while tracing; .*ensure_shape"),
        (lambda: trace(Conv2D(3, 2, 3, rng=RNG), shaped(None, 8, 8)),
            r"`Conv2D` has shape \(None, 8, 8\).*\[batch, height"),
        (lambda: trace(Conv3D(3, 2, 3, rng=RNG), shaped(None, 8, 8, 3)), r"`Conv3D` .*\[batch, depth, height, width"),
        (lambda: trace(Conv2D(3, 2, 3, rng=RNG), shaped(None, 8, 8, 1)),
            r"`in_channels=3`; make it with `in_channels=1`"),
        (lambda: trace(Conv2D(3, 2, 5, rng=RNG, padding="VALID"), shaped(None, 4, 8, 3)),
            r"`x` has 4 values .*`kernel_size=5`"),
        (lambda: trace(ConvTranspose2D(3, 2, 3, rng=RNG), shaped(None, 8, 8, 1)),
            r"`ConvTranspose2D` .*`in_channels=3`"),
        (lambda: trace(SeparableConv2D(3, 2, 3, rng=RNG), shaped(None, 8, 8, 1)), r"`DepthwiseConv2D` .*`channels=3`"),
        (lambda: trace(Pad(3), shaped(None, 3, 8, 1)), r"`padding` is \[\(3, 3\), \(3, 3\)\], .* 2 here; pad less"),
        (lambda: trace(PixelShuffle(2), shaped(None, 3, 8, 6)), r"`factor=2` takes channels in blocks of 4"),
    ],
)  # fmt: skip
def test_bad_input_is_named(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()


def test_arrays_are_no_tensors() -> None:
    with pytest.raises(TypeError, match="`x` of `Linear` is of type ndarray; give a tensor"):
        Linear(3, 2, rng=RNG)(np.zeros([1, 3], np.float32))


def test_max_pool_of_finite_values_has_no_pass_for_nan():
    """A branch does that: ignoring NaN took a twentieth of a convolutional network's step."""

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = MaxPool(2)(x)
        return tape.gradient(y, x)

    outside = {op.type for op in gradient.get_concrete_function(tf.TensorSpec([4, 8, 8, 3])).graph.get_operations()}
    assert "MaxPoolGrad" in outside
    assert not outside & {"IsNan", "SelectV2"}
    x = np.random.RandomState(0).randn(4, 8, 8, 3).astype("float32")
    x[0, 0, 0, 0] = np.nan
    dx = gradient(tf.constant(x)).numpy()
    assert not dx[0, :2, :2, 0].any()  # nothing goes back where no number came out
    assert dx.sum() == 4 * 4 * 4 * 3 - 1
