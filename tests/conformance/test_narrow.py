"""All parts in bfloat16 and float16, against the same parts in float64 for the same (rounded) inputs.

Bounds are a few roundings of the dtype, `Row.roundings`: none grows with the number of terms of a sum.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core import layers, metrics
from core.losses import adversarial
from core.losses.adversarial import Game, gradient_penalty, r1, r2
from core.task import Loss
from core.task.loss import weighted_sums

from . import battery
from .battery import RNG, Row, evaluate
from .layer_rows import ROWS_OF_LAYERS
from .loss_rows import ROWS_OF_LOSSES, distributed
from .metric_rows import ROWS_OF_METRICS, MetricRow
from .sum_rows import MANY, ROWS_OF_LONG_LOSSES, ROWS_OF_SUMS

ROUNDING = {tf.bfloat16: 2.0**-8, tf.float16: 2.0**-11}  # relative, of one rounding
SMALLEST = {tf.bfloat16: 2.0**-126, tf.float16: 2.0**-24}  # subnormals of bfloat16 count as zero
READ_FLOATS = [row for row in ROWS_OF_LAYERS if any(x.dtype.is_floating for x in row.example())]
FIRST_ROWS = list({row.part: row for row in reversed(READ_FLOATS)}.values())[::-1]
MIX_ROWS = {"BatchNorm"}
BAD_VALUES = [(np.nan, tf.bfloat16), (-np.inf, tf.float16)]
GAMES = (
    adversarial.non_saturating,
    adversarial.least_squares,
    adversarial.hinge,
    adversarial.wasserstein,
    adversarial.relativistic,
)

every_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=lambda dtype: dtype.name)
Tensors = Sequence[tf.Tensor]


def name(value: Any) -> str:
    """Returns the id of a parameter of a test."""
    return getattr(value, "id", None) or getattr(value, "name", None) or str(value)


def pulled_back(row: Row, part: Any, inputs: Tensors, upstream: Tensors) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the floating outputs, and the gradient of each source for the outputs' gradients `upstream`."""
    reached = battery.sources(part, inputs)
    with tf.GradientTape() as tape:
        tape.watch(reached)
        ys = [y for y in battery.outputs(row.call, part, inputs) if y.dtype.is_floating]
    along = [tf.cast(x, y.dtype) for x, y in zip(upstream, ys, strict=True)]
    gradients = tape.gradient(ys, reached, along, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return ys, [tf.convert_to_tensor(x) for x in gradients]


class Both:
    """Outputs and gradients of a row in `dtype`, and those of its definition in float64."""

    def __init__(self, row: Row, inputs: Tensors, dtype: tf.DType, *, positive: bool = False):
        part, exact = row.make(RNG), battery.in_float64(row.make(RNG))
        wide = [tf.cast(x, tf.float64) if x.dtype.is_floating else x for x in inputs]
        rng = np.random.default_rng(7)
        ys = [y for y in battery.outputs(row.call, exact, wide) if y.dtype.is_floating]
        drawn = (rng.normal(size=y.shape) for y in ys)
        self.upstream = [tf.cast(np.abs(x) + 0.5 if positive else x, dtype) for x in drawn]
        self.ys, self.gradients = pulled_back(row, part, inputs, self.upstream)
        self.exact_ys, self.exact_gradients = pulled_back(row, exact, wide, self.upstream)
        self.reached = battery.sources(part, inputs)

    def check_dtypes(self, dtype: tf.DType) -> None:
        """Asserts that outputs have the dtype of the inputs, and gradients that of what they belong to."""
        assert all(y.dtype == dtype for y in self.ys)
        for source, gradient in zip(self.reached, self.gradients, strict=True):
            assert (gradient.dtype, gradient.shape) == (source.dtype, source.shape)


def off_by(found: tf.Tensor, exact: tf.Tensor, dtype: tf.DType, least: float = 0.0) -> float:
    """Returns the largest error in roundings of the largest value (at least `least`); where `dtype` has the value."""
    found, exact = (tf.cast(x, tf.float64).numpy() for x in (found, exact))
    held = np.isfinite(exact) & (np.abs(exact) < 0.99 * dtype.max)
    found, exact = found[held], exact[held]
    if not exact.size:
        return 0.0
    size = max(least, float(np.abs(exact).max()))
    error = float(np.abs(found - exact).max()) / (ROUNDING[dtype] * size + SMALLEST[dtype])
    return np.inf if np.isnan(error) else error


def test_only_embedding_reads_no_floats() -> None:
    assert {row.part for row in ROWS_OF_LAYERS} - {row.part for row in READ_FLOATS} == {"Embedding"}


# Cases of a part cast in the same places: bfloat16, with the fewest digits, shows a sum or a cast in the wrong dtype.
DTYPES = [(row, tf.bfloat16) for row in READ_FLOATS] + [(row, tf.float16) for row in FIRST_ROWS]


@pytest.mark.parametrize(("row", "dtype"), DTYPES, ids=name)
def test_computes_in_its_inputs_dtype_from_float32_variables(row: Row, dtype: tf.DType) -> None:
    both = Both(row, row.example(dtype=dtype), dtype)
    both.check_dtypes(dtype)
    for y, exact in zip(both.ys, both.exact_ys, strict=True):
        assert off_by(y, exact, dtype, 1.0) <= row.roundings
    for gradient, exact in zip(both.gradients, both.exact_gradients, strict=True):
        assert off_by(gradient, exact, dtype, 1.0) <= row.roundings


def scaled(row: Row, dtype: tf.DType, kind: str) -> list[tf.Tensor]:
    """Returns an example whose floats have extreme sizes."""
    rng, found = np.random.default_rng(3), []
    for x in row.example(dtype=dtype):
        if x.dtype.is_floating:
            signs = np.sign(rng.normal(size=x.shape))
            # Below, not the lowest number itself: that pads the input of `MaxPool`.
            most = np.where(signs > 0.0, 65504.0, 65472.0)
            values = {
                "largest": signs * np.where(rng.random(x.shape) < 0.5, most, 1.0),
                "subnormal": signs * SMALLEST[tf.float16] * rng.integers(0, 5, x.shape),
                "zero": 0.0 * signs,
            }[kind]
            x = tf.cast(values, dtype)
        found.append(x)
    return found


# The extremes are float16's, which bfloat16 has room for; in rows of many operations, values between exceed both.
EXTREMES = [(row, "largest", tf.float16) for row in READ_FLOATS if row.roundings <= 2]
EXTREMES += [(row, "subnormal", tf.float16) for row in FIRST_ROWS] + [(row, "zero", tf.bfloat16) for row in FIRST_ROWS]


@pytest.mark.long
@pytest.mark.parametrize(("row", "kind", "dtype"), EXTREMES, ids=name)
def test_extreme_inputs_give_what_float64_gives_if_the_dtype_has_it(row: Row, kind: str, dtype: tf.DType) -> None:
    inputs = scaled(row, dtype, kind)
    both = Both(row, inputs, dtype)
    both.check_dtypes(dtype)
    if row.roundings > 2 and kind == "subnormal":  # values between its operations are subnormal too
        assert all(np.isfinite(tf.cast(x, tf.float32)).all() for x in both.ys + both.gradients)
        return
    # Products of large inputs may cancel, and a rounding of each remains.
    largest = 65504.0 if kind == "largest" else 0.0
    for y, exact in zip(both.ys, both.exact_ys, strict=True):
        assert off_by(y, exact, dtype, largest) <= row.roundings
    for source, gradient, exact in zip(both.reached, both.gradients, both.exact_gradients, strict=True):
        least = largest if isinstance(source, tf.Variable) else 0.0
        assert off_by(gradient, exact, dtype, least) <= row.roundings


@pytest.mark.long
@pytest.mark.parametrize(("value", "dtype"), BAD_VALUES, ids=name)
@pytest.mark.parametrize("row", [row for row in FIRST_ROWS if row.part not in MIX_ROWS], ids=name)
def test_a_bad_value_stays_in_its_row(row: Row, value: float, dtype: tf.DType) -> None:
    clean, part = row.example(dtype=dtype), row.make(RNG)
    spoilt = [x.numpy() if x.dtype.is_floating else x for x in clean]
    spoilt[0].flat[0] = value
    upstream = [tf.ones(y.shape, dtype) for y in battery.outputs(row.call, part, clean) if y.dtype.is_floating]
    (ys, gradients), (found, found_gradients) = (
        pulled_back(row, part, list(map(tf.constant, inputs)), upstream) for inputs in (clean, spoilt)
    )
    floats = sum(x.dtype.is_floating for x in clean)
    for a, b in zip([*ys, *gradients[:floats]], [*found, *found_gradients[:floats]], strict=True):
        np.testing.assert_array_equal(a[1:], b[1:])
    wide = [tf.cast(x, tf.float32) if x.dtype.is_floating else x for x in map(tf.constant, spoilt)]
    expected = [y for y in battery.outputs(row.call, part, wide) if y.dtype.is_floating]
    for y, exact in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(tf.cast(y, tf.float32)), np.isnan(exact))


# A sum in bfloat16 stops earliest; one of terms near 100 also exceeds float16.
SUMS = [(row, tf.bfloat16) for row in ROWS_OF_SUMS]
SUMS += [(row, tf.float16) for row in ROWS_OF_SUMS if "Norm" in row.part or row.part == "attend"]


@pytest.mark.long
@pytest.mark.parametrize(("row", "dtype"), SUMS, ids=name)
def test_sums_of_many_terms_are_those_of_float64(row: Row, dtype: tf.DType) -> None:
    both = Both(row, row.example(dtype=dtype), dtype, positive=True)
    both.check_dtypes(dtype)
    for y, exact in zip(both.ys, both.exact_ys, strict=True):
        assert off_by(y, exact, dtype) <= row.roundings
    pairs = zip(both.reached, both.gradients, both.exact_gradients, strict=True)
    # A scale's gradient is the difference of sums as large as the offset's.
    most = max([float(tf.reduce_max(tf.abs(z))) for x, _, z in pairs if isinstance(x, tf.Variable)], default=0.0)
    for source, gradient, exact in zip(both.reached, both.gradients, both.exact_gradients, strict=True):
        least = most if isinstance(source, tf.Variable) else 0.0
        assert off_by(gradient, exact, dtype, least) <= row.roundings


@every_dtype
def test_the_mean_of_many_ones_is_one(dtype: tf.DType) -> None:
    ones = tf.ones([1, MANY, 1, 1], dtype)
    for mean in (layers.global_average_pool, layers.AveragePool([MANY, 1])):
        np.testing.assert_array_equal(tf.cast(mean(ones), tf.float32), np.ones(mean(ones).shape))
    v = tf.ones([1, MANY // 10, 1, 4], dtype)  # more keys have weights that are subnormal in float16
    np.testing.assert_array_equal(tf.cast(layers.attend(v[:, :1], v, v), tf.float32), np.ones([1, 1, 1, 4]))


LOSSES = [row for row in ROWS_OF_LOSSES if any(x.dtype.is_floating for x in row.example())]
COMPARED = ("info_nce", "nt_xent")  # each value depends on all rows
KINDS = {"normal": None, "logits": 1e4, "largest": 65504.0, "subnormal": SMALLEST[tf.float16]}


def loss_inputs(row: Row, dtype: tf.DType, kind: str) -> list[tf.Tensor]:
    """Returns an example of the loss with extreme values; probabilities are next to 0 and 1."""
    rng, found, size = np.random.default_rng(4), [], KINDS[kind]
    for i, x in enumerate(row.example(4, dtype=dtype)):
        if x.dtype.is_floating and size and i and row.inputs is distributed:
            x = tf.one_hot(tf.argmax(x, -1), x.shape[-1], 1.0 - ROUNDING[dtype], ROUNDING[dtype] / 4.0, dtype=dtype)
        elif x.dtype.is_floating and size:
            x = tf.cast(rng.choice([-size, size, 1.0], x.shape), dtype)
        found.append(x)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("normal", tf.bfloat16), ("logits", tf.bfloat16), ("largest", tf.float16), ("subnormal", tf.float16)],
    ids=name,
)
@pytest.mark.parametrize("row", LOSSES, ids=name)
def test_loss_is_that_of_float64(row: Row, kind: str, dtype: tf.DType) -> None:
    both = Both(row, loss_inputs(row, dtype, kind), dtype)
    assert (both.ys[0].dtype, both.exact_ys[0].dtype) == (tf.float32, tf.float64)
    assert battery.distance(both.ys[0], both.exact_ys[0]) <= row.tolerance
    for source, gradient, exact in zip(both.reached, both.gradients, both.exact_gradients, strict=True):
        assert gradient.dtype == source.dtype
        assert off_by(gradient, exact, dtype) <= row.roundings


@pytest.mark.long
@pytest.mark.parametrize(("value", "dtype"), BAD_VALUES, ids=name)
@pytest.mark.parametrize("row", [row for row in LOSSES if row.part not in COMPARED], ids=name)
def test_a_bad_prediction_stays_in_its_row(row: Row, value: float, dtype: tf.DType) -> None:
    clean = row.example(4, dtype=dtype)
    spoilt = [clean[0].numpy(), *clean[1:]]
    spoilt[0].flat[0] = value
    upstream = [tf.ones(y.shape) for y in battery.outputs(row.call, row.make(RNG), clean)]
    (ys, gradients), (found, found_gradients) = (
        pulled_back(row, row.make(RNG), list(map(tf.constant, inputs)), upstream) for inputs in (clean, spoilt)
    )
    for a, b in zip([*ys, *gradients], [*found, *found_gradients], strict=True):
        np.testing.assert_array_equal(a[1:], b[1:])


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS_OF_LONG_LOSSES, ids=name)
def test_loss_of_many_terms_is_that_of_float64(row: Row) -> None:
    dtype = tf.bfloat16
    both = Both(row, row.example(dtype=dtype), dtype, positive=True)
    assert both.ys[0].dtype == tf.float32
    assert battery.distance(both.ys[0], both.exact_ys[0]) <= 2e-6
    for gradient, exact in zip(both.gradients, both.exact_gradients, strict=True):
        assert off_by(gradient, exact, dtype) <= row.roundings


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.__name__)
@pytest.mark.parametrize(("size", "dtype"), [(1.0, tf.bfloat16), (1e4, tf.bfloat16), (65504.0, tf.float16)], ids=name)
def test_game_of_narrow_logits_is_that_of_float64(game: Callable[[], Game], size: float, dtype: tf.DType) -> None:
    real, fake = (tf.cast(size * np.random.default_rng(i).choice([-1.0, 0.5, 1.0], [4, 3]), dtype) for i in range(2))
    for loss, inputs in ((game().discriminator, (real, fake)), (game().generator, (fake, real))):
        row = Row("game", lambda rng, loss=loss: loss, lambda *_: (), lambda *_: None, "", call=evaluate)
        both = Both(row, inputs, dtype)
        assert both.ys[0].dtype == tf.float32
        assert battery.distance(both.ys[0], both.exact_ys[0]) <= 1e-6
        assert all(off_by(a, b, dtype) <= 2 for a, b in zip(both.gradients, both.exact_gradients, strict=True))
    shares = game().accuracy(real, tf.cast(fake, tf.float32))  # as a critic of its own dtype may give them
    assert all(x.dtype == tf.float32 for x in shares.values())


@every_dtype
def test_penalties_of_a_narrow_critic_are_float32(dtype: tf.DType) -> None:
    critic, rng = layers.Linear(5, 1, rng=RNG), np.random.default_rng(0)
    real, fake = (tf.cast(rng.normal(size=[4, 5]), dtype) for _ in range(2))
    square = float(tf.reduce_sum(tf.square(critic.w)))
    for penalty, expected in (
        (r1(critic, real), square),
        (r2(critic, fake), square),
        (gradient_penalty(critic, real, fake, RNG), (square**0.5 - 1.0) ** 2),
    ):
        assert penalty.dtype == tf.float32
        np.testing.assert_allclose(penalty, [expected] * 4, rtol=0, atol=4.0 * ROUNDING[dtype] * square)


# test_metrics.py compares any dtype with float32 on few rows, and float32 with the peer. These peers are slow, and the
# metrics have one value per example, or count.
SHORT = ("ssim", "AUC", "in_manifold", "top_k_accuracy", "accuracy", "psnr")


@pytest.mark.parametrize("row", [row for row in ROWS_OF_METRICS if row.part not in SHORT], ids=name)
def test_metric_of_many_rows_is_its_definition(row: MetricRow) -> None:
    arrays = row.inputs(np.random.default_rng(2), 3000)
    narrow = [tf.cast(x, tf.bfloat16) if x.dtype.kind == "f" else tf.constant(x) for x in arrays]
    found = row.call(row.make(RNG), *narrow)
    expected = row.peer(None, *(tf.cast(x, tf.float64).numpy() if x.dtype.is_floating else x.numpy() for x in narrow))
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert a.dtype == tf.float32
        assert battery.distance(a, b) <= row.tolerance


@every_dtype
def test_the_mean_of_many_equal_metrics_is_their_value(dtype: tf.DType) -> None:
    ones = tf.ones([MANY], dtype)
    assert float(metrics.Mean.of(ones).result()) == 1.0
    assert float(metrics.RMSE.of(ones, 0.0 * ones).result()) == 1.0
    total, sums = weighted_sums(Loss(ones, weight=ones, metrics={"one": ones}))
    assert float(total) == float(sums["weight"]) == float(sums["one"]) == MANY
