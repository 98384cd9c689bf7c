"""Rows of the public losses, at least one each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from core import losses

from .battery import Arrays, Row, evaluate
from .in_numpy import in_numpy

Generator = np.random.Generator
CLASS_WEIGHTS = [1.0, 2.0, 0.5, 0.0, 3.0]


def normal(*shapes: tuple[int, ...]) -> Callable[[Generator, int], Arrays]:
    return lambda rng, rows: tuple(rng.normal(size=(rows, *shape)).astype(np.float32) for shape in shapes)


def classified(rng: Generator, rows: int) -> Arrays:
    """Returns logits of five classes, and indices."""
    return rng.normal(size=(rows, 3, 5)).astype(np.float32), rng.integers(0, 5, (rows, 3)).astype(np.int32)


def partly_classified(rng: Generator, rows: int) -> Arrays:
    """The same with some indices −1."""
    logits, labels = classified(rng, rows)
    return logits, np.where(rng.random(labels.shape) < 0.4, -1, labels).astype(np.int32)


def distributed(rng: Generator, rows: int) -> Arrays:
    """Returns logits and distributions."""
    logits, odds = rng.normal(size=(2, rows, 3, 5))
    return logits.astype(np.float32), (np.exp(odds) / np.exp(odds).sum(-1, keepdims=True)).astype(np.float32)


def detected(rng: Generator, rows: int) -> Arrays:
    """Returns logits and answers 0 or 1."""
    return 2 * rng.normal(size=(rows, 6)).astype(np.float32), rng.integers(0, 2, (rows, 6)).astype(np.int32)


def partly_detected(rng: Generator, rows: int) -> Arrays:
    """The same with some answers −1."""
    return 2 * rng.normal(size=(rows, 6)).astype(np.float32), rng.integers(-1, 2, (rows, 6)).astype(np.int32)


def spoken(rng: Generator, rows: int) -> Arrays:
    """Returns logits of frames, up to three labels of three kinds (some neighbours are equal), and both lengths."""
    labels = rng.integers(1, 4, (rows, 3)).astype(np.int32)
    return rng.normal(size=(rows, 8, 4)).astype(np.float32), labels, rng.integers(6, 9, rows), rng.integers(0, 4, rows)


def ctc(logits: Any, labels: Any, logit_lengths: Any, label_lengths: Any) -> Any:
    return losses.ctc(logits, labels, logit_lengths=logit_lengths, label_lengths=label_lengths)


def ctc_peer(logits: np.ndarray, labels: np.ndarray, logit_lengths: np.ndarray, label_lengths: np.ndarray) -> Any:
    frames, words = (
        (np.arange(x.shape[1])[np.newaxis] >= lengths[:, np.newaxis]).astype(np.float32)  # Optax: 1 where padded
        for x, lengths in ((logits, logit_lengths), (labels, label_lengths))
    )
    return in_numpy(optax.ctc_loss)(logits, frames, labels, words)


def nt_xent_peer(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Computes one view after the other, among all views without itself."""
    views, rows = unit(np.concatenate([one, other]).astype(np.float64)), len(one)
    costs = np.zeros(2 * rows)
    for i, view in enumerate(views):
        rest = np.delete(np.arange(2 * rows), i)
        key = (i + rows) % (2 * rows)
        costs[i] = np.log(np.sum(np.exp(views[rest] @ view / 0.5))) - views[key] @ view / 0.5
    return (costs[:rows] + costs[rows:]) / 2.0


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)


def ignoring(peer: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda logits, labels: np.where(labels == -1, 0.0, peer(jnp.asarray(logits), np.maximum(labels, 0)))


def z_loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    z = logits.astype(np.float64)
    return -np.take_along_axis(log_softmax(z), labels[..., None], -1)[..., 0] + 0.1 * np.log(np.exp(z).sum(-1)) ** 2


def triplet(a: np.ndarray, p: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.maximum(((a - p) ** 2).sum(-1) - ((a - n) ** 2).sum(-1) + 0.2, 0.0)


def smooth(labels: np.ndarray) -> Any:
    return optax.smooth_labels(jnp.asarray(np.eye(5)[labels] if labels.dtype.kind == "i" else labels), 0.1)


SOFTMAX, SIGMOID = "softmax_cross_entropy", "sigmoid_cross_entropy"
INDICES, DISTRIBUTIONS = "optax.softmax_cross_entropy_with_integer_labels", "optax.softmax_cross_entropy"
SMOOTHED, HAND = "optax.smooth_labels", "NumPy, by the definition"
smoothed = partial(losses.softmax_cross_entropy, label_smoothing=0.1)
by_indices = in_numpy(optax.softmax_cross_entropy_with_integer_labels)


def smoothed_peer(z: np.ndarray, y: np.ndarray) -> Any:
    return in_numpy(optax.softmax_cross_entropy)(z, smooth(y))


# part, case, loss, inputs, peer, its name, paper
TABLE: list[tuple[str, str, Callable[..., Any], Callable[[Generator, int], Arrays], Callable[..., Any], str, str]] = [
    (SOFTMAX, "indices", losses.softmax_cross_entropy, classified, by_indices, INDICES, ""),
    (SOFTMAX, "distributions", losses.softmax_cross_entropy, distributed, in_numpy(optax.softmax_cross_entropy),
        DISTRIBUTIONS, ""),
    (SOFTMAX, "smoothing", smoothed, classified, smoothed_peer, SMOOTHED, "Szegedy et al., 2016"),
    (SOFTMAX, "smoothed distributions", smoothed, distributed, smoothed_peer, SMOOTHED, "Szegedy et al., 2016"),
    (SOFTMAX, "ignored labels", partial(losses.softmax_cross_entropy, ignore=-1), partly_classified,
        ignoring(by_indices), INDICES, ""),
    (SOFTMAX, "z-loss", partial(losses.softmax_cross_entropy, z_loss=0.1), classified, z_loss, HAND,
        "Chowdhery et al., 2022"),
    (SIGMOID, "", losses.sigmoid_cross_entropy, detected, in_numpy(optax.sigmoid_binary_cross_entropy),
        "optax.sigmoid_binary_cross_entropy", ""),
    (SIGMOID, "smoothing, ignored labels", partial(losses.sigmoid_cross_entropy, label_smoothing=0.2, ignore=-1),
        partly_detected, ignoring(lambda z, y: optax.sigmoid_binary_cross_entropy(z, 0.8 * y + 0.1)),
        "optax.sigmoid_binary_cross_entropy", "Szegedy et al., 2016"),
    ("focal", "", partial(losses.focal, alpha=0.25), detected, in_numpy(partial(optax.sigmoid_focal_loss, alpha=0.25)),
        "optax.sigmoid_focal_loss", "Lin et al., 2017"),
    ("focal", "ignored labels", partial(losses.focal, gamma=1.5, ignore=-1), partly_detected,
        ignoring(in_numpy(partial(optax.sigmoid_focal_loss, gamma=1.5))), "optax.sigmoid_focal_loss",
        "Lin et al., 2017"),
    ("hinge", "", partial(losses.hinge, ignore=-1), partly_detected,
        ignoring(lambda z, y: optax.hinge_loss(z, 2.0 * y - 1.0)), "optax.hinge_loss", "Cortes and Vapnik, 1995"),
    ("squared_error", "", losses.squared_error, normal((3,), (3,)), optax.squared_error, "optax.squared_error", ""),
    ("absolute_error", "", losses.absolute_error, normal((3,), (3,)), lambda p, t: np.abs(p - t), HAND, ""),
    (
        "huber",
        "",
        partial(losses.huber, delta=0.7),
        normal((3,), (3,)),
        partial(optax.huber_loss, delta=0.7),
        "optax.huber_loss",
        "Huber, 1964",
    ),
    ("log_cosh", "", losses.log_cosh, normal((3,), (3,)), optax.log_cosh, "optax.log_cosh", ""),
    ("cosine_distance", "", losses.cosine_distance, normal((4,), (4,)), optax.cosine_distance, "optax.cosine_distance",
        ""),
    ("kl_divergence", "", losses.kl_divergence, distributed, lambda z, t: optax.kl_divergence(log_softmax(z), t),
        "optax.kl_divergence", "Kullback and Leibler, 1951"),
    ("triplet", "", losses.triplet, normal((4,), (4,), (4,)), triplet, HAND, "Schroff et al., 2015"),
    ("info_nce", "", losses.info_nce, normal((4,), (4,)),
        lambda q, k: by_indices(10.0 * unit(q) @ unit(k).T, np.arange(len(q))), INDICES, "van den Oord et al., 2018"),
    ("nt_xent", "", losses.nt_xent, normal((4,), (4,)), nt_xent_peer, "NumPy, by the definition", "Chen et al., 2020"),
    ("ctc", "", ctc, spoken, ctc_peer, "optax.ctc_loss", "Graves et al., 2006"),
    (
        "dice",
        "",
        losses.dice,
        detected,
        # Optax halves numerator and denominator, but not the smoothing term.
        lambda z, y: optax.losses.dice_loss(jnp.asarray(z)[..., None], y[..., None], smooth=0.5),
        "optax.losses.dice_loss",
        "Milletari et al., 2016",
    ),
    ("label_weights", "", partial(losses.label_weights, ignore=-1, class_weights=CLASS_WEIGHTS),
        lambda rng, rows: partly_classified(rng, rows)[1:],
        lambda y: np.where(y == -1, 0.0, np.array(CLASS_WEIGHTS)[y]), HAND, ""),
]  # fmt: skip


def _row(
    part: str,
    case: str,
    loss: Callable[..., Any],
    inputs: Callable[[Generator, int], Arrays],
    peer: Callable[..., Any],
    peer_name: str,
    paper: str,
) -> Row:
    return Row(
        part=part,
        case=case,
        make=lambda rng: loss,
        call=evaluate,
        inputs=inputs,
        peer=lambda _, *arrays: peer(*arrays),
        peer_name=peer_name,
        paper=paper,
        tolerance=2e-6,
    )


ROWS_OF_LOSSES = [_row(*line) for line in TABLE]
