"""Labels are read off the most likely frames and compared by edit distance; the loss is that of Optax."""

import numpy as np
import optax
import tensorflow as tf
from speech import LONGEST, Speech, mistakes, utterances, written

from core.optimizers import adam
from core.random import Rng
from core.testing import assert_accumulation_invariant, assert_replica_invariant

batch = utterances(count=16).gather(tf.range(16, dtype=tf.int64))


def make_task(rng=None):
    return Speech(rng=rng or Rng.from_seed(0), size=8, optimizer=adam(1e-2, epsilon=1e-3))


def distance(a, b):
    """Returns Levenshtein's distance by its recursion."""
    if not a or not b:
        return len(a) + len(b)
    return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))


def test_repetitions_and_blanks_are_left_out_of_what_is_written():
    best = tf.constant([[0, 3, 3, 0, 3, 1], [2, 2, 1, 1, 5, 5], [0, 0, 0, 0, 0, 0]])
    found = written(tf.one_hot(best, 7), tf.constant([6, 4, 6]))
    assert found.to_list() == [[3, 3, 1], [2, 1], []]
    labels, length = np.array([[3, 1, 0], [1, 2, 4], [6, 0, 0]]), np.array([2, 3, 1])
    truth = [row[:n].tolist() for row, n in zip(labels, length, strict=True)]
    expected = [distance(a, b) for a, b in zip(found.to_list(), truth, strict=True)]
    np.testing.assert_array_equal(mistakes(found, tf.constant(labels, tf.int32), tf.constant(length)), expected)


def test_loss_is_that_of_optax_and_errors_are_counted_for_each_label():
    task = make_task()
    logits = task.net(batch["sound"], batch["frames"])
    frames, length = (batch[key].numpy()[:, None] for key in ("frames", "length"))
    padded = np.arange(logits.shape[1]) >= frames, np.arange(LONGEST) >= length
    expected = optax.ctc_loss(logits.numpy(), padded[0] * 1.0, batch["labels"].numpy(), padded[1] * 1.0)
    loss = task.evaluate(batch)
    np.testing.assert_allclose(loss.per_example, expected, rtol=1e-4)
    wrong = mistakes(written(logits, batch["frames"]), batch["labels"], batch["length"]).numpy()
    np.testing.assert_allclose(loss.metrics["label_errors"].result(), wrong.sum() / length.sum(), rtol=1e-6)


def test_frames_after_the_end_are_not_heard():
    sound = batch["sound"].numpy()
    after = np.arange(sound.shape[1]) >= batch["frames"].numpy()[:, None]
    task = make_task()
    expected = task.loss(batch, None).per_example
    found = task.loss({**batch, "sound": tf.constant(np.where(after[..., None], 9.0, sound), tf.float32)}, None)
    np.testing.assert_allclose(found.per_example, expected, rtol=1e-6)


def test_replicas_and_microbatches_train_it_to_the_same_numbers():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=3)
    assert_accumulation_invariant(make_task, batch, (1, 2), steps=3)
