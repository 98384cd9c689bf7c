"""Losses by hand: ignored labels, weights, labels out of range, wrong shapes, and errors of bad input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from core import losses
from core.task import Loss

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]], np.float32)


def mean_of(loss: Loss) -> tf.Tensor:
    """Acts as the engine: selects where the weight is zero, sums, divides once."""
    assert loss.weight is not None
    total = tf.reduce_sum(tf.where(loss.weight == 0.0, 0.0, loss.weight * loss.per_example))
    return total / tf.reduce_sum(loss.weight)


def test_softmax_cross_entropy_by_hand() -> None:
    odds = np.exp(LOGITS)
    expected = -np.log(odds[[0, 1], [1, 2]] / odds.sum(axis=1))
    np.testing.assert_allclose(losses.softmax_cross_entropy(LOGITS, [1, 2]), expected, rtol=1e-6)
    one_hot = np.eye(3, dtype=np.float32)[[1, 2]]
    np.testing.assert_allclose(losses.softmax_cross_entropy(LOGITS, one_hot), expected, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_a_class_out_of_range_never_gives_a_number(compiled: bool) -> None:
    function = tf.function(losses.softmax_cross_entropy, jit_compile=compiled)
    for label in (-1, 3, 1000):
        try:
            loss = function(tf.constant(LOGITS), tf.constant([0, label]))
        except tf.errors.InvalidArgumentError as error:
            assert str(label) in str(error)  # noqa: PT017 - one of two right answers
        else:
            np.testing.assert_array_equal(np.isnan(loss), [False, True])


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_a_binary_label_out_of_range_gives_nan(compiled: bool) -> None:
    binary = [losses.sigmoid_cross_entropy, losses.focal, losses.hinge, losses.dice]
    function = tf.function(lambda logits, labels: [loss(logits, labels) for loss in binary], jit_compile=compiled)
    for label in (-1, 2, float("nan")):
        for loss, values in zip(
            binary, function(tf.constant([[1.0], [2.0]]), tf.constant([[1.0], [label]])), strict=True
        ):
            np.testing.assert_array_equal(np.ravel(np.isnan(values)), [False, True], err_msg=loss.__name__)


def ctc_and_gradient(logits: tf.Tensor, labels: tf.Tensor, frames: tf.Tensor, lengths: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.ctc(logits, labels, logit_lengths=frames, label_lengths=lengths)
    return loss, tape.gradient(loss, logits)


LENGTHS = tf.TensorSpec([None], tf.int32)
CTC_SPEC = [tf.TensorSpec([None, None, 4]), tf.TensorSpec([None, None], tf.int32), LENGTHS, LENGTHS]
HOW = {
    "eager": ctc_and_gradient,
    "graph": tf.function(ctc_and_gradient, input_signature=CTC_SPEC),
    "compiled": tf.function(ctc_and_gradient, jit_compile=True),
}


@pytest.mark.long
@pytest.mark.parametrize("how", ["graph", "compiled"])
def test_ctc_of_a_label_or_length_out_of_range_is_nan_and_of_no_alignment_infinite(how: str) -> None:
    labels = [[1, 2], [1, 4], [1, 0], [1, 9], [1, 2], [1, 2], [1, 2], [1, 1]]
    frames, lengths = [3, 3, 3, 3, 4, 3, 1, 2], [2, 2, 2, 1, 2, 3, 2, 2]
    loss, gradient = HOW[how](tf.zeros([8, 3, 4]), *(tf.constant(x) for x in (labels, frames, lengths)))
    # Five of 64 paths of three frames read "ab"; 6 read "a".
    expected = [np.log(64 / 5), np.nan, np.nan, np.log(64 / 6), np.nan, np.nan, np.inf, np.inf]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    unusable = ~np.isfinite(expected)
    assert np.all(gradient[unusable] == 0.0)
    assert np.all(np.isfinite(gradient))


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
def test_ctc_of_no_labels_is_all_blanks_and_of_no_frames_no_labels(how: str) -> None:
    for frames, max_labels in [(3, 0), (0, 2), (0, 0)][: 2 if how == "compiled" else 3]:
        logits, labels = tf.random.stateless_normal([3, frames, 4], [0, 1]), tf.ones([3, max_labels], tf.int32)
        loss, gradient = HOW[how](logits, labels, tf.constant([frames] * 3), tf.constant([0, 0, 1]))
        log_p = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
        # The third asks for a label: beyond the room there is, or with no frame to be in.
        np.testing.assert_allclose(loss, [*-log_p[:2, :, 0].sum(1), np.inf if max_labels else np.nan], rtol=1e-5)
        assert gradient.shape == logits.shape
        assert np.all(np.isfinite(gradient))
        np.testing.assert_allclose(gradient[:2], np.exp(log_p[:2]) - np.eye(4)[0], atol=1e-5)


IGNORING: list[tuple[Callable[..., tf.Tensor], Any, Any]] = [
    (losses.softmax_cross_entropy, [[1.0, 2.0], [np.nan, np.inf]], [1, -1]),
    (losses.sigmoid_cross_entropy, [1.0, np.nan], [1, -1]),
    (losses.focal, [1.0, np.inf], [1, -1]),
    (losses.hinge, [0.5, np.nan], [1, -1]),
    (losses.dice, [[1.0, 2.0], [np.nan, np.inf]], [[1, 0], [-1, -1]]),
]


@pytest.mark.parametrize(("loss", "logits", "labels"), IGNORING)
def test_an_ignored_label_gives_zero_and_no_gradient_whatever_its_logits(
    loss: Callable[..., tf.Tensor], logits: Any, labels: Any
) -> None:
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        values = loss(logits, tf.constant(labels), ignore=-1)
    gradient = tape.gradient(values, logits)
    assert values[1] == 0.0
    assert np.all(gradient[1] == 0.0)
    assert np.any(gradient[0] != 0.0)


def test_an_ignored_label_may_be_smoothed_and_z_lossed() -> None:
    values = losses.softmax_cross_entropy(LOGITS, [0, 9], ignore=9, label_smoothing=0.1, z_loss=0.1)
    assert values[0] > 0.0
    assert values[1] == 0.0


def test_label_weights_make_the_mean_that_of_what_counts() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(5, 3)).astype(np.float32), np.array([0, 2, -1, 1, -1])
    weights = losses.label_weights(labels, ignore=-1, class_weights=[1.0, 2.0, 0.5])
    loss = Loss(losses.softmax_cross_entropy(logits, labels, ignore=-1), weight=weights)
    kept, class_weights = [0, 1, 3], np.array([1.0, 0.5, 2.0])
    each = losses.softmax_cross_entropy(logits[kept], labels[kept]).numpy()
    np.testing.assert_allclose(mean_of(loss), (class_weights * each).sum() / class_weights.sum(), rtol=1e-6)


def test_label_weights_of_sigmoid_labels_weigh_positives() -> None:
    weights = losses.label_weights([[0, 1], [-1, 1]], ignore=-1, class_weights=[1.0, 4.0])
    np.testing.assert_array_equal(weights, [[1.0, 4.0], [0.0, 4.0]])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_label_without_a_class_weight_weighs_nan(compiled: bool) -> None:
    def call(labels: tf.Tensor) -> tf.Tensor:
        return losses.label_weights(labels, class_weights=[1.0, 2.0])

    weights = tf.function(call, jit_compile=compiled)(tf.constant([0, 2, -1, 1]))
    np.testing.assert_array_equal(weights, [1.0, np.nan, np.nan, 2.0])


def test_distributions_need_not_sum_to_one_for_the_right_gradient() -> None:
    logits = tf.constant([[1.0, -2.0, 0.5]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.softmax_cross_entropy(logits, tf.zeros([1, 3]))
    assert loss[0] == 0.0
    assert np.all(tape.gradient(loss, logits) == 0.0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_cosine_distance_does_not_depend_on_length(scale: float) -> None:
    x, y = tf.constant([[3.0, 4.0]]), tf.constant([[4.0, 3.0]])
    np.testing.assert_allclose(losses.cosine_distance(scale * x, y), [1 - 24 / 25], rtol=1e-5)


def test_cosine_distance_of_zeros_is_one_without_gradient() -> None:
    x = tf.zeros([1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        distance = losses.cosine_distance(x, [[4.0, 3.0]])
    assert distance[0] == 1.0
    assert np.all(tape.gradient(distance, x) == 0.0)


@pytest.mark.parametrize("garbage", [0.0, np.nan, np.inf])
def test_info_nce_of_masked_rows_is_that_of_the_others_alone(garbage: float) -> None:
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(2, 5, 4)).astype(np.float32)
    mask = np.array([True, False, True, True, False])
    queries[~mask], keys[~mask] = garbage, garbage
    x = tf.constant(queries)
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = losses.info_nce(x, keys, mask=mask)
    assert losses.info_nce(tf.cast(queries, tf.float64), keys, mask=mask).dtype == tf.float64
    np.testing.assert_allclose(values[mask], losses.info_nce(queries[mask], keys[mask]), rtol=1e-5)
    assert np.all(values[~mask] == 0.0)
    gradient = tape.gradient(values, x)
    assert np.all(np.isfinite(gradient))
    assert np.all(gradient[~mask] == 0.0)
    assert np.all(losses.info_nce(queries, keys, mask=np.zeros(5, bool)) == 0.0)


def test_an_empty_mask_found_empty_has_no_dice_loss() -> None:
    np.testing.assert_allclose(losses.dice(tf.fill([1, 3, 3], -1e4), tf.zeros([1, 3, 3], tf.int32)), [0.0], atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shapes", [([4], [1]), ([1], [4]), ([2, 3], [3, 2]), ([4, 1], [4, 4])])
def test_shapes_known_only_while_running_are_never_broadcast(
    shapes: tuple[list[int], list[int]], compiled: bool
) -> None:
    unknown = tf.TensorSpec([None] * len(shapes[0]), tf.float32)
    function = tf.function(losses.squared_error, input_signature=[unknown, unknown], jit_compile=compiled)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        function(tf.zeros(shapes[0]), tf.ones(shapes[1]))


def test_time_major_labels_are_refused_while_running() -> None:
    specs = [tf.TensorSpec([None, None, 3], tf.float32), tf.TensorSpec([None, None], tf.int32)]
    function = tf.function(losses.softmax_cross_entropy, input_signature=specs)
    with pytest.raises(tf.errors.InvalidArgumentError, match="inputs must match"):
        function(tf.zeros([4, 2, 3]), tf.zeros([2, 4], tf.int32))


SCORES, HITS, BATCH = np.zeros([2, 3], np.float32), np.zeros([2, 3], np.int32), np.zeros([2, 4, 3], np.float32)
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: losses.softmax_cross_entropy(HITS, [0, 1]), r"`logits` is int32.*tf.cast"),
    (lambda: losses.softmax_cross_entropy(1.0, 0), r"`logits` has shape \(\).*\[\.\.\., classes\]"),
    (lambda: losses.softmax_cross_entropy(SCORES, [0.0, 1.0]), r"`labels` is float32; give integers"),
    (lambda: losses.softmax_cross_entropy(SCORES, HITS), r"`labels` has shape \(2, 3\).*tf.squeeze.*one-hot"),
    (lambda: losses.softmax_cross_entropy(SCORES, [[0], [1]]), r"`labels` has shape \(2, 1\).*tf.squeeze"),
    (lambda: losses.softmax_cross_entropy(SCORES, [0, 1, 2]), r"`labels` has shape \(3,\).*`logits` \(2, 3\)"),
    (lambda: losses.softmax_cross_entropy(SCORES, SCORES[:, :2]), r"`labels` has shape \(2, 2\).*`logits` \(2, 3\)"),
    (lambda: losses.softmax_cross_entropy(SCORES, SCORES, ignore=-1), r"`ignore` is -1.*weight of zero"),
    (lambda: losses.softmax_cross_entropy(SCORES, [0, 1], label_smoothing=1.0), r"`label_smoothing` is 1.0.*\[0, 1\)"),
    (lambda: losses.softmax_cross_entropy(SCORES, [0, 1], label_smoothing=-0.1), r"`label_smoothing` is -0.1"),
    (lambda: losses.softmax_cross_entropy(SCORES, [0, 1], z_loss=-1.0), r"`z_loss` is -1.0; it is at least 0"),
    (lambda: losses.sigmoid_cross_entropy(SCORES, HITS[0]), r"`labels` has shape \(3,\).*`logits` \(2, 3\)"),
    (lambda: losses.sigmoid_cross_entropy(SCORES, HITS, label_smoothing=2.0), r"`label_smoothing` is 2.0"),
    (lambda: losses.focal(SCORES, HITS, gamma=-1.0), r"`gamma` is -1.0"),
    (lambda: losses.focal(SCORES, HITS, alpha=2.0), r"`alpha` is 2.0.*\[0, 1\]"),
    (lambda: losses.squared_error(SCORES, SCORES[:, :1]), r"`targets` has shape \(2, 1\), but `predictions` \(2, 3\)"),
    (lambda: losses.squared_error(HITS, HITS), r"`predictions` is int32"),
    (lambda: losses.huber(SCORES, SCORES, delta=0.0), r"`delta` is 0.0; it is above 0"),
    (lambda: losses.huber(SCORES, SCORES, delta="1"), r"`delta` is '1', of type str; give a Python number"),
    (lambda: losses.triplet(SCORES, SCORES, SCORES, margin=None),
        r"`margin` is None, of type NoneType; give a Python number"),
    (lambda: losses.cosine_distance(1.0, 1.0), r"`predictions` has shape \(\).*\[\.\.\., size\]"),
    (lambda: losses.kl_divergence(SCORES, SCORES[:1]), r"`targets` has shape \(1, 3\)"),
    (lambda: losses.triplet(SCORES, SCORES, SCORES[:1]), r"`negatives` has shape \(1, 3\)"),
    (lambda: losses.triplet(SCORES, SCORES, SCORES, margin=-1.0), r"`margin` is -1.0"),
    (lambda: losses.info_nce(BATCH, BATCH), r"`queries` has shape \(2, 4, 3\).*\[batch, size\]"),
    (lambda: losses.info_nce(SCORES, SCORES[:1]), r"`keys` has shape \(1, 3\)"),
    (lambda: losses.info_nce(SCORES, SCORES, temperature=0.0), r"`temperature` is 0.0"),
    (lambda: losses.info_nce(SCORES, SCORES, temperature=tf.constant(0.1)),
        r"`temperature` is <tf.Tensor.*give a Python number"),
    (lambda: losses.info_nce(SCORES, SCORES, mask=[True]), r"`mask` has shape \(1,\)"),
    (lambda: losses.dice(SCORES[0], HITS[0]), r"`logits` has shape \(3,\).*\[batch, \.\.\.\]"),
    (lambda: losses.dice(SCORES, HITS, smooth=0.0), r"`smooth` is 0.0"),
    (lambda: losses.label_weights([0.0, 1.0]), r"`labels` is float32; give integers"),
    (lambda: losses.label_weights([0, 1], class_weights=[[1.0]]),
        r"`class_weights` has shape \(1, 1\).*one weight per"),
]  # fmt: skip
CTC: list[tuple[dict[str, Any], str]] = [
    ({"logits": SCORES}, r"`logits` has shape \(2, 3\).*\[batch, time, classes\]"),
    ({"blank": 3}, r"`blank` is 3.*\[0, 3\)"),
    ({"labels": [[1.0], [2.0]]}, r"`labels` is float32"),
    ({"labels": [1, 2]}, r"`labels` has shape \(2,\).*\[batch, max_labels\]"),
    ({"labels": [[1]]}, r"`labels` has shape \(1, 1\) for logits \(2, 4, 3\)"),
    ({"label_lengths": [[1], [1]]}, r"`label_lengths` has shape \(2, 1\)"),
    ({"logit_lengths": [4.0, 4.0]}, r"`logit_lengths` is float32; give integers"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_named_with_its_value_and_a_remedy(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
    with pytest.raises(ValueError, match=message):  # while tracing, before any step
        tf.function(call, autograph=False).get_concrete_function()


@pytest.mark.parametrize(("change", "message"), CTC)
def test_bad_input_of_ctc(change: dict[str, Any], message: str) -> None:
    good = {"logits": BATCH, "labels": [[1, 2], [2, 1]], "logit_lengths": [4, 4], "label_lengths": [2, 1]}
    assert np.all(np.isfinite(losses.ctc(**good)))
    with pytest.raises(ValueError, match=message):
        losses.ctc(**(good | change))
