"""A canvas has its own Dice loss, so that replicas and microbatches train the same; its IoU is that of all pixels."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from segmentation import Segmentation, canvases

from core.data import ArraySource, digits
from core.errors import DataError
from core.optimizers import adam
from core.random import Rng
from core.testing import assert_accumulation_invariant, assert_replica_invariant

batch = canvases("test").gather(tf.range(8, dtype=tf.int64))


def make_task(rng=None, **settings):
    settings = {"channels": [4, 8], "optimizer": adam(1e-2, epsilon=1e-3), **settings}
    return Segmentation(rng=rng or Rng.from_seed(0), **settings)


def test_a_canvas_holds_two_digits_and_as_much_ink_shuffled():
    clean = canvases("test", noise=0.0).gather(tf.range(8, dtype=tf.int64))
    image, mask = clean["image"].numpy()[..., 0], clean["mask"].numpy()
    first = digits("test").gather(tf.range(8, dtype=tf.int64))["image"].numpy()[..., 0]
    for i in range(8):
        windows = np.lib.stride_tricks.sliding_window_view(image[i], (8, 8))
        assert (windows == first[i]).all(axis=(2, 3)).any()
        ink = image[i] >= 0.25
        assert (ink & (mask[i] == 1)).sum() == mask[i].sum() == ink.sum() / 2


def test_loss_is_that_of_each_canvas_and_iou_that_of_all_pixels():
    task = make_task()
    logits, mask = task.net(batch["image"]).numpy().astype("float64"), batch["mask"].numpy()
    p = 1.0 / (1.0 + np.exp(-logits))
    entropy = -np.where(mask == 1, np.log(p), np.log(1.0 - p)).mean(axis=(1, 2))
    dice = 1.0 - (2.0 * (p * mask).sum(axis=(1, 2)) + 1.0) / (p.sum(axis=(1, 2)) + mask.sum(axis=(1, 2)) + 1.0)
    loss = task.evaluate(batch)
    np.testing.assert_allclose(loss.per_example, entropy + dice, rtol=1e-4)
    found = [((p > 0.5) == k, mask == k) for k in (0, 1)]
    iou = np.mean([(a & b).sum() / (a | b).sum() for a, b in found])
    np.testing.assert_allclose(loss.metrics["iou"].result(), iou, rtol=1e-6)


def test_replicas_and_microbatches_train_it_to_the_same_numbers():
    task = functools.partial(make_task, channels=[4], skipped=0.3)
    assert_replica_invariant(task, batch, replicas=(1, 2), steps=3)
    assert_accumulation_invariant(task, batch, (1, 2), steps=3)


def test_a_mask_of_other_numbers_is_refused():
    source = ArraySource({"image": batch["image"].numpy(), "mask": 255 * batch["mask"].numpy()}, name="photos")
    with pytest.raises(DataError, match="`mask` of example 0 of source `photos` is 255, but `Segmentation` has 2 cla"):
        make_task().reads()["mask"].check(source, "mask", task="Segmentation")
