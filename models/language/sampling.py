"""Text generation: one token after another, with what the network has kept of earlier ones: keys and values, or states.

Prompts of different lengths are processed together, with all rows at the same position. Within a prompt, the prompt's
next token replaces the generated token, so there is no padding. A row's text is independent of the other rows. Only
random numbers depend on the row's index.
"""

from collections.abc import Callable
from typing import Any, Protocol

import gin
import tensorflow as tf

from core.arguments import check_positive, check_size
from core.random import Rng

Choice = Callable[[tf.Tensor, Rng], tf.Tensor]  # logits [rows, vocabulary] -> a token for each row


class Network(Protocol):
    """A network that generates text, and keeps what later tokens need of earlier ones in a list of caches."""

    @property
    def most_positions(self) -> int | None:
        """Returns the length of the longest text that the network can continue; None if there is no limit."""

    def empty_caches(self, rows: int | tf.Tensor, room: int) -> list[Any]:
        """Returns the caches of `rows` empty texts, with room for `room` positions."""

    def decode(self, tokens: tf.Tensor, caches: list[Any]) -> tuple[tf.Tensor, list[Any]]:
        """Returns logits [rows, vocabulary] of the token after `tokens` [rows, time], and the caches after them."""


class Decoder(Protocol):
    """A function that generates text with a network."""

    def __call__(
        self,
        net: Network,
        prompts: tf.Tensor,
        lengths: tf.Tensor,
        *,
        length: int,
        end: int,
        vocabulary: int,
        rng: Rng,
    ) -> tf.Tensor:
        """Returns tokens [rows, length]. Each row begins with its prompt, the first `lengths[row]` of `prompts[row]`.

        Tokens are below `vocabulary`, which may be smaller than the network's vocabulary. After the first generated
        token `end`, the row is filled with `end`.
        """


@gin.configurable
def greedy() -> Decoder:
    """Makes a decoder that always takes the most probable next token."""
    return _by_choice(lambda logits, rng: tf.argmax(logits, -1, tf.int32))


@gin.configurable
def sampled(temperature: float = 1.0, *, top_k: int | None = None, top_p: float | None = None) -> Decoder:
    """Makes a decoder that samples each token; a `temperature` below 1 favours probable tokens.

    With `top_k`, only the `top_k` most probable tokens may be drawn (Fan et al., 2018). With `top_p`, only the most
    probable tokens whose total probability reaches `top_p` (nucleus sampling: Holtzman et al., 2020).
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
        return rng.rows.categorical(logits)

    return _by_choice(choose)


@gin.configurable
def beam_search(width: int = 4) -> Decoder:
    """Makes a decoder that searches for the most probable text, keeping the `width` best prefixes (Lowerre, 1976)."""
    check_size(width=width)

    def decode(
        net: Network, prompts: tf.Tensor, lengths: tf.Tensor, *, length: int, end: int, vocabulary: int, rng: Rng
    ) -> tf.Tensor:
        rows = prompts.shape[0]
        i, tokens, logits, caches = _begin(net, prompts, lengths, length, end, vocabulary)
        ids, row = tf.range(vocabulary), tf.range(rows)[:, tf.newaxis]
        # All beams of a row are identical during its prompt, so only the first may continue.
        score = tf.tile([[0.0] + [-float("inf")] * (width - 1)], [rows, 1])
        tokens, ended = tf.repeat(tokens[:, tf.newaxis], width, 1), tf.zeros([rows, width], tf.bool)

        def body(i: tf.Tensor, tokens: tf.Tensor, ended: tf.Tensor, score: tf.Tensor, logits: Any, caches: Any) -> Any:
            log_p = tf.reshape(tf.nn.log_softmax(logits), [rows, width, vocabulary])
            given = (i < lengths)[:, tf.newaxis]
            # Within a prompt and after the end, the next token is certain and costs nothing.
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
            return (i < length) & ~tf.reduce_all(ended[:, 0])  # unfinished beams can only become less probable

        copies = tf.repeat(tf.range(rows), width)
        start = (i, tokens, ended, score, tf.gather(logits, copies), _rows_of(caches, copies))
        return tf.while_loop(goes_on, body, start)[1][:, 0]

    return decode


def keep_top_k(logits: tf.Tensor, k: int) -> tf.Tensor:
    """Returns `logits` [rows, vocabulary] with all but the `k` largest of each row replaced by minus infinity."""
    return tf.where(_ranks(logits) < k, logits, -float("inf"))


def keep_nucleus(logits: tf.Tensor, p: float) -> tf.Tensor:
    """Keeps the largest logits of each row until their total probability reaches `p`. Others become minus infinity."""
    before = tf.cumsum(tf.nn.softmax(tf.sort(logits, -1, "DESCENDING")), -1, exclusive=True)
    count = tf.math.count_nonzero(before < p, -1, keepdims=True, dtype=tf.int32)
    return tf.where(_ranks(logits) < count, logits, -float("inf"))


def _ranks(logits: tf.Tensor) -> tf.Tensor:
    """Returns the rank of each value in its row, 0 for the largest; equal values rank by index."""
    return tf.argsort(tf.argsort(logits, -1, "DESCENDING", stable=True), -1)


def _by_choice(choose: Choice) -> Decoder:
    def decode(
        net: Network, prompts: tf.Tensor, lengths: tf.Tensor, *, length: int, end: int, vocabulary: int, rng: Rng
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
    net: Network, prompts: tf.Tensor, lengths: tf.Tensor, length: int, end: int, vocabulary: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[Any]]:
    """Processes the first `min(lengths)` tokens of all prompts in one call of `net`.

    Returns the next position, the tokens [rows, length], the logits of the next token, and the caches.
    """
    rows, longest = prompts.shape
    if longest >= length:
        raise ValueError(
            f"a prompt has {longest} tokens, but a text has {length}, including its prompt: give a shorter prompt, "
            "or a larger `text_length`, up to the task's `context`."
        )
    if net.most_positions is not None and length > net.most_positions:
        raise ValueError(f"`length` is {length}, but the network has learnt `context={net.most_positions}` positions.")
    tf.debugging.assert_positive(lengths, "`lengths` holds zero: a prompt has one token or more")
    tf.debugging.assert_less_equal(lengths, longest, "`lengths` holds more than `prompts` has tokens")
    given = tf.range(length) < lengths[:, tf.newaxis]
    tokens = tf.where(given, tf.pad(prompts, [[0, 0], [0, length - longest]]), end)
    first = tf.reduce_min(lengths)
    logits, caches = _next(net, prompts[:, :first], net.empty_caches(rows, length), vocabulary)
    return first, tokens, logits, caches


def _next(net: Network, tokens: tf.Tensor, caches: list[Any], vocabulary: int) -> tuple[tf.Tensor, list[Any]]:
    """Returns the next token's logits [rows, vocabulary] and the caches. A non-finite logit raises an error."""
    logits, caches = net.decode(tokens, caches)
    logits = tf.cast(logits[:, :vocabulary], tf.float32)
    return tf.debugging.check_numerics(logits, "the logits of what comes next"), caches


def _write(tokens: tf.Tensor, i: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Returns `tokens` [..., length] with `chosen` [...] at position `i`."""
    return tf.where(tf.range(tokens.shape[-1]) == i, chosen[..., tf.newaxis], tokens)


def _rows_of(caches: list[Any], rows: tf.Tensor) -> list[Any]:
    kept: list[Any] = tf.nest.map_structure(lambda x: tf.gather(x, rows) if x.shape.rank else x, caches)
    return kept
