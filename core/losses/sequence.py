"""Losses of sequences whose alignment is unknown: CTC."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from core import arguments
from core.choice import nan, zero_where

_IMPOSSIBLE = -1e30  # the logarithm of probability zero: finite, so that its gradient is


def ctc(logits: Any, labels: Any, *, logit_lengths: Any, label_lengths: Any, blank: int = 0) -> tf.Tensor:
    """Returns −log p(labels | logits) [batch], summed over all alignments of labels with frames (Graves et al., 2006).

    `logits` are [batch, time, classes]. `labels` are [batch, max_labels] class indices other than `blank`.
    `logit_lengths` and `label_lengths` [batch] count the valid frames and labels. An alignment needs a frame for each
    label, and one for the blank between equal neighbours. With fewer frames, the loss is infinite without a gradient:
    give such examples a weight of zero. A label or length out of range gives `nan`.
    """
    logits = arguments.floats("logits", logits)
    if logits.shape.rank not in (3, None):
        raise ValueError(f"`logits` has shape {logits.shape}; it needs the axes [batch, time, classes].")
    classes = logits.shape[-1]
    if blank < 0 or (classes is not None and blank >= classes):
        raise ValueError(f"`blank` is {blank}; it is one of the {classes} classes: in [0, {classes}).")
    labels = arguments.integers("labels", labels)
    if labels.shape.rank not in (2, None) or not labels.shape[:1].is_compatible_with(logits.shape[:1]):
        raise ValueError(f"`labels` has shape {labels.shape} for logits {logits.shape}; it needs [batch, max_labels].")
    logit_lengths, label_lengths = (
        tf.ensure_shape(
            arguments.shaped_like(name, arguments.integers(name, lengths), "logits", logits, leading=1), [None]
        )
        for name, lengths in (("logit_lengths", logit_lengths), ("label_lengths", label_lengths))
    )
    logits, labels = tf.ensure_shape(logits, [None, None, classes]), tf.ensure_shape(labels, [None, None])
    counted = tf.sequence_mask(label_lengths, tf.shape(labels)[1])
    valid = (labels >= 0) & (labels < tf.shape(logits, labels.dtype)[2]) & (labels != blank)
    sane = tf.reduce_all(valid | ~counted, axis=1)
    for lengths, values, axis in ((logit_lengths, logits, 1), (label_lengths, labels, 1)):
        sane &= (lengths >= 0) & (lengths <= tf.shape(values, lengths.dtype)[axis])
    labels = _at_least_one(tf.where(valid & counted, labels, tf.cast(blank, labels.dtype)))
    label_lengths, logits = zero_where(~sane, label_lengths), _at_least_one(logits)

    # l' is l with a blank before, between and after its labels.
    blanks = tf.fill(tf.shape(labels), tf.cast(blank, labels.dtype))
    extended = tf.reshape(tf.stack([blanks, labels], axis=2), [tf.shape(labels)[0], 2 * tf.shape(labels)[1]])
    extended = tf.concat([extended, tf.fill([tf.shape(labels)[0], 1], tf.cast(blank, labels.dtype))], axis=1)
    frames = tf.sequence_mask(logit_lengths, tf.shape(logits)[1])
    log_p = tf.nn.log_softmax(zero_where(~frames[..., tf.newaxis], logits))
    log_p = tf.maximum(tf.gather(log_p, extended, axis=2, batch_dims=1), _IMPOSSIBLE)  # [batch, time, states]
    # A path may skip the blank between two labels, unless they are the same.
    skips = tf.concat([tf.zeros_like(extended[:, :2], tf.bool), extended[:, 2:] != extended[:, :-2]], axis=1)
    # A path ends in the last label or in the blank after it.
    states = tf.expand_dims(tf.range(tf.shape(extended)[1]), 0)
    last = 2 * tf.cast(label_lengths, tf.int32)[:, tf.newaxis]
    ends = tf.equal(states, last) | tf.equal(states, last - 1)
    loss = -_log_likelihood(log_p, frames, skips, ends)
    loss = tf.where(loss > -0.1 * _IMPOSSIBLE, tf.constant(float("inf"), loss.dtype), loss)
    return tf.where(sane, loss, nan(loss.dtype))


def _at_least_one(x: tf.Tensor) -> tf.Tensor:
    """Returns `x`. If its second axis is empty, it gets one zero there, which the lengths don't count."""
    if x.shape[1]:
        return x
    missing = tf.maximum(1 - tf.shape(x)[1], 0)
    return tf.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.shape.rank - 2)])


def _log_likelihood(log_p: tf.Tensor, frames: tf.Tensor, skips: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns log p(l | x) for `log_p` [batch, time, states], with the variables of the paper's section 4.1.

    The gradient is the probability of each state at each frame. It is computed here, because under XLA a tape outside
    a loop can't differentiate the loop.
    """
    impossible = tf.cast(_IMPOSSIBLE, log_p.dtype)
    shift = tf.fill([tf.shape(log_p)[0], 1], impossible)

    def forward(alpha: tf.Tensor, frame: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        log_p_t, counts = frame
        one = tf.concat([shift, alpha[:, :-1]], axis=1)
        two = tf.where(skips, tf.concat([shift, one[:, :-1]], axis=1), impossible)
        moved = tf.reduce_logsumexp(tf.stack([alpha, one, two]), axis=0) + log_p_t
        return tf.where(counts[:, tf.newaxis], moved, alpha)

    def backward(beta: tf.Tensor, frame: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        log_p_next, counts = frame
        stay = beta + log_p_next
        one = tf.concat([stay[:, 1:], shift], axis=1)
        two = tf.concat([tf.where(skips, stay, impossible)[:, 2:], shift, shift], axis=1)
        return tf.where(counts[:, tf.newaxis], tf.reduce_logsumexp(tf.stack([stay, one, two]), axis=0), beta)

    @tf.custom_gradient
    def log_likelihood(log_p: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        by_time, counts = tf.transpose(log_p, [1, 0, 2]), tf.transpose(frames)
        # A path starts before the first frame, in a state that leads to the first blank and the first label.
        start = tf.concat([tf.zeros_like(shift), tf.fill(tf.shape(log_p[:, 0, 1:]), impossible)], axis=1)
        end = tf.where(ends, tf.zeros_like(start), impossible)
        alphas = tf.scan(forward, (by_time, counts), start)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            following = (tf.concat([x[1:], tf.zeros_like(x[:1])], axis=0) for x in (by_time, counts))
            betas = tf.scan(backward, tuple(following), end, reverse=True)
            states = tf.transpose(tf.nn.softmax(alphas + betas), [1, 0, 2])
            return upstream[:, tf.newaxis, tf.newaxis] * states

        return tf.reduce_logsumexp(alphas[-1] + end, axis=1), gradient

    return log_likelihood(log_p)
