"""How a network writes: one token after the other, with the keys and values of those before it kept.

Prompts of unlike lengths are gone through together, all rows at the same position: where a prompt isn't over, its next
token is taken in place of one that is chosen. So nothing is padded, and a row is what it would be alone, but for the
random numbers, which go by its place.
"""

from collections.abc import Callable
from typing import Any, Protocol

import gin
import tensorflow as tf

from core.arguments import check_positive, check_size
from core.layers.attention import Cache
from core.random import Rng
from models.language.transformer import Transformer

Choice = Callable[[tf.Tensor, Rng], tf.Tensor]  # logits [rows, vocabulary] -> a token for each row


class Decoder(Protocol):
    """Makes text with a network."""

    def __call__(
        self,
        net: Transformer,
        prompts: tf.Tensor,
        lengths: tf.Tensor,
        *,
        length: int,
        end: int,
        vocabulary: int,
        rng: Rng,
    ) -> tf.Tensor:
        """Returns tokens [rows, length] that begin with the `lengths` [rows] first of each of `prompts` [rows, time].

        They are below `vocabulary`, of which the network may have more. A row is over after the token `end`, which
        fills what is left of it.
        """


@gin.configurable
def greedy() -> Decoder:
    """Takes the most probable token."""
    return _by_choice(lambda logits, rng: tf.argmax(logits, -1, tf.int32))


@gin.configurable
def sampled(temperature: float = 1.0, *, top_k: int | None = None, top_p: float | None = None) -> Decoder:
    """Draws each token from what the network expects, sharpened by a `temperature` below 1.

    Only the `top_k` most probable ones are drawn (Fan et al., 2018), or the fewest that together have the probability
    `top_p` (nucleus sampling: Holtzman et al., 2020).
    """
    check_positive(temperature=temperature)
    if top_k is not None:
        check_size(top_k=top_k)
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ValueError(f"`top_p` is {top_p}; it is a probability: give a number above 0 and up to 1, such as 0.9.")

    def choose(logits: tf.Tensor, rng: Rng) -> tf.Tensor:
        logits /= temperature
        logits = logits if top_k is None else keep_top_k(logits, top_k)
        logits = logits if top_p is None else keep_nucleus(logits, top_p)
        # The largest of logits with Gumbel's noise is a draw of their softmax (Gumbel, 1954). A uniform number of zero
        # would make it minus infinity, as what isn't to be drawn has it.
        uniform = tf.maximum(rng.rows.uniform(logits.shape[0], logits.shape[1]), 2.0**-25)
        noise = -tf.math.log(-tf.math.log(uniform))
        return tf.argmax(logits + noise, -1, tf.int32)

    return _by_choice(choose)


@gin.configurable
def beam_search(width: int = 4) -> Decoder:
    """Looks for the most probable text: at each position the `width` best beginnings go on (Lowerre, 1976)."""
    check_size(width=width)

    def decode(
        net: Transformer,
        prompts: tf.Tensor,
        lengths: tf.Tensor,
        *,
        length: int,
        end: int,
        vocabulary: int,
        rng: Rng,
    ) -> tf.Tensor:
        rows = prompts.shape[0]
        i, tokens, logits, caches = _begin(net, prompts, lengths, length, end, vocabulary)
        ids, row = tf.range(vocabulary), tf.range(rows)[:, tf.newaxis]
        # The beams of a row are one and the same as long as its prompt lasts, and only the first may go on.
        score = tf.tile([[0.0] + [-float("inf")] * (width - 1)], [rows, 1])
        tokens, ended = tf.repeat(tokens[:, tf.newaxis], width, 1), tf.zeros([rows, width], tf.bool)

        def body(i: tf.Tensor, tokens: tf.Tensor, ended: tf.Tensor, score: tf.Tensor, logits: Any, caches: Any) -> Any:
            log_p = tf.reshape(tf.nn.log_softmax(logits), [rows, width, vocabulary])
            given = (i < lengths)[:, tf.newaxis]
            # What follows is certain, and costs nothing, in a prompt and after the end.
            certain = tf.where(given, tokens[:, :, i], end)
            only = tf.where(ids == certain[..., tf.newaxis], 0.0, -float("inf"))
            log_p = tf.where((given | ended)[..., tf.newaxis], only, log_p)
            candidates = tf.reshape(score[..., tf.newaxis] + log_p, [rows, width * vocabulary])
            score, best = tf.math.top_k(candidates, width)
            parent, chosen = best // vocabulary, best % vocabulary
            tokens = _write(tf.gather(tokens, parent, batch_dims=1), i, chosen)
            ended = tf.gather(ended, parent, batch_dims=1) | (~given & (chosen == end))
            caches = _rows_of(caches, tf.reshape(row * width + parent, [-1]))
            logits, caches = _next(net, tf.reshape(chosen, [-1, 1]), caches, vocabulary)
            return i + 1, tokens, ended, score, logits, caches

        def goes_on(i: tf.Tensor, tokens: tf.Tensor, ended: tf.Tensor, *_: Any) -> tf.Tensor:
            return (i < length) & ~tf.reduce_all(ended[:, 0])  # what isn't over becomes less probable yet

        copies = tf.repeat(tf.range(rows), width)
        start = (i, tokens, ended, score, tf.gather(logits, copies), _rows_of(caches, copies))
        return tf.while_loop(goes_on, body, start)[1][:, 0]

    return decode


def keep_top_k(logits: tf.Tensor, k: int) -> tf.Tensor:
    """Returns `logits` [rows, vocabulary], minus infinity but for the `k` largest of each row."""
    return tf.where(_ranks(logits) < k, logits, -float("inf"))


def keep_nucleus(logits: tf.Tensor, p: float) -> tf.Tensor:
    """Returns `logits`, minus infinity but for the fewest whose probabilities reach `p` together."""
    before = tf.cumsum(tf.nn.softmax(tf.sort(logits, -1, "DESCENDING")), -1, exclusive=True)
    count = tf.math.count_nonzero(before < p, -1, keepdims=True, dtype=tf.int32)
    return tf.where(_ranks(logits) < count, logits, -float("inf"))


def _ranks(logits: tf.Tensor) -> tf.Tensor:
    """Returns how many of each row come before each: those that are larger, and of equals those of smaller number."""
    return tf.argsort(tf.argsort(logits, -1, "DESCENDING", stable=True), -1)


def _by_choice(choose: Choice) -> Decoder:
    def decode(
        net: Transformer,
        prompts: tf.Tensor,
        lengths: tf.Tensor,
        *,
        length: int,
        end: int,
        vocabulary: int,
        rng: Rng,
    ) -> tf.Tensor:
        i, tokens, logits, caches = _begin(net, prompts, lengths, length, end, vocabulary)

        def body(i: tf.Tensor, tokens: tf.Tensor, ended: tf.Tensor, logits: tf.Tensor, caches: Any) -> Any:
            given = i < lengths
            chosen = tf.where(ended, end, choose(logits, rng.fold(i)))
            chosen = tf.where(given, tokens[:, i], chosen)
            ended |= ~given & (chosen == end)
            logits, caches = _next(net, chosen[:, tf.newaxis], caches, vocabulary)
            return i + 1, _write(tokens, i, chosen), ended, logits, caches

        def goes_on(i: tf.Tensor, tokens: tf.Tensor, ended: tf.Tensor, *_: Any) -> tf.Tensor:
            return (i < length) & ~tf.reduce_all(ended)

        start = (i, tokens, tf.zeros([prompts.shape[0]], tf.bool), logits, caches)
        return tf.while_loop(goes_on, body, start)[1]

    return decode


def _begin(
    net: Transformer, prompts: tf.Tensor, lengths: tf.Tensor, length: int, end: int, vocabulary: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[Cache]]:
    """Reads what all prompts have, at once.

    Returns the position that comes next, the tokens [rows, length], the logits for that position, and the caches.
    """
    rows, longest = prompts.shape
    if longest >= length:
        raise ValueError(
            f"a prompt has {longest} tokens, but a text has {length} together with its prompt: give a shorter prompt, "
            "or a larger `text_length`, up to the task's `context`."
        )
    if net.positions is not None and length > net.context:
        raise ValueError(f"`length` is {length}, but the network has learnt `context={net.context}` positions.")
    tf.debugging.assert_positive(lengths, "`lengths` holds zero: a prompt has one token or more")
    tf.debugging.assert_less_equal(lengths, longest, "`lengths` holds more than `prompts` has tokens")
    given = tf.range(length) < lengths[:, tf.newaxis]
    tokens = tf.where(given, tf.pad(prompts, [[0, 0], [0, length - longest]]), end)
    first = tf.reduce_min(lengths)
    logits, caches = _next(net, prompts[:, :first], net.empty_caches(rows, length), vocabulary)
    return first, tokens, logits, caches


def _next(net: Transformer, tokens: tf.Tensor, caches: list[Cache], vocabulary: int) -> tuple[tf.Tensor, list[Cache]]:
    """Returns the logits of those tokens that may follow, and the caches; raises an error where one isn't finite."""
    logits, caches = net.decode(tokens, caches)
    return tf.debugging.check_numerics(logits[:, :vocabulary], "the logits of what comes next"), caches


def _write(tokens: tf.Tensor, i: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Returns `tokens` [..., length] with those `chosen` [...] at position `i`."""
    return tf.where(tf.range(tokens.shape[-1]) == i, chosen[..., tf.newaxis], tokens)


def _rows_of(caches: list[Cache], rows: tf.Tensor) -> list[Cache]:
    return [Cache(tf.gather(c.keys, rows), tf.gather(c.values, rows), c.length) for c in caches]
