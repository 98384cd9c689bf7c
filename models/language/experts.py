"""A feed-forward layer of several experts, of which each token uses a few (Shazeer et al., 2017)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.casts import cast_to
from core.errors import ConfigurationError
from core.initializers import Initializer
from core.layers import Linear, gelu
from core.layers.products import product
from core.layers.shapes import add_wide, merge_leading, sizes, widen
from core.metrics.state import ratio
from core.module import Module
from core.random import Rng
from core.task.statistics import Statistics, Sums, Values
from core.tracing import computes_by_parts
from models.language.config import TransformerConfig

_SPLITS = 2  # blocks of an expert with an average load; more waste fewer slots, and copy more matrices


class Routes(NamedTuple):
    """Where the choices of tokens are computed: in blocks of slots, each block by one expert."""

    expert: tf.Tensor  # of each block [blocks]
    token: tf.Tensor  # in each slot [blocks, slots]
    filled: tf.Tensor  # whether the slot holds a token [blocks, slots]
    slot: tf.Tensor  # of each choice [tokens, top_k], in blocks * slots


class Experts(Module):
    """Returns Σ g_e · expert_e(x) over the `experts_per_token` experts with the highest s_e + b_e.

    The scores s are the router's softmax. The gates g are the chosen scores divided by their sum; of a single expert,
    its score (Fedus et al., 2022). No token is dropped. So a token's output depends on no other token.

    The balance b moves tokens to experts with few of them, without a loss that would disturb the gradient (Wang et al.,
    2024; DeepSeek-V3). After each update with c_e tokens of expert e in the global batch, b_e grows by `balance_rate` ·
    sign(mean(c) - c_e).
    """

    sync = True  # counts of all replicas are added up with the gradients; no output depends on them

    def __init__(self, config: TransformerConfig, *, rng: Rng, w_init: Initializer, out_init: Initializer):
        super().__init__()
        assert config.experts is not None
        self.top_k, self.rate = config.experts_per_token, config.balance_rate
        size, hidden, experts = config.size, config.hidden_size, config.experts
        self.router = Linear(size, experts, rng=rng.fold("router"), bias=False, w_init=w_init)
        self.balance = tf.Variable(tf.zeros([experts]), trainable=False, name="balance")

        def linear(name: str, in_size: int, out_size: int, init: Initializer) -> LinearOfExperts:
            sizes = [experts, in_size, out_size]
            return LinearOfExperts(sizes, bias=config.bias, w_init=init, rng=rng.fold(name))

        self.gate = linear("gate", size, hidden, w_init) if config.feed_forward == "swiglu" else None
        self.up, self.down = linear("up", size, hidden, w_init), linear("down", hidden, size, out_init)

    def __call__(
        self, x: tf.Tensor, counts: tf.Tensor | None = None, statistics: Statistics | None = None
    ) -> tf.Tensor:
        """Returns the outputs for `x` [..., size]. `statistics` get the load of tokens where `counts` [...] is true."""
        if computes_by_parts(self.router.w):
            raise ConfigurationError(
                "`experts` sort the tokens of all rows by expert, which has no layout on a mesh: train on replicas, "
                "with `Experiment.strategy = @mirrored()`, or leave `LanguageModel.experts` out."
            )
        rows, leading = merge_leading(x, 1)
        scores = tf.nn.softmax(self.router(widen(rows)))
        chosen = tf.math.top_k(scores + tf.cast(self.balance, scores.dtype), self.top_k).indices
        gates = tf.gather(scores, chosen, batch_dims=1)
        if self.top_k > 1:
            gates /= tf.reduce_sum(gates, 1, keepdims=True)
        if statistics is not None:
            statistics.add(self, self._load(chosen, counts))
        made = tf.gather(self._computed(rows, routes := routed(chosen, self.balance.shape[0])), routes.slot)
        y = tf.reduce_sum(gates[..., tf.newaxis] * widen(made), 1)
        return tf.reshape(tf.cast(y, x.dtype), [*leading, x.shape[-1]])

    def averages(self, sums: Sums) -> Values:
        """Returns the balance after an update with the load `sums`."""
        above = sums.total - tf.reduce_mean(sums.total)
        return {self.balance.ref(): self.balance - self.rate * tf.cast(tf.sign(above), tf.float32)}

    def _load(self, chosen: tf.Tensor, counts: tf.Tensor | None) -> Sums:
        """Returns the number of tokens, and how many of them chose each expert."""
        seen = (
            tf.ones_like(chosen[:, 0], tf.float64) if counts is None else tf.cast(tf.reshape(counts, [-1]), tf.float64)
        )
        chose = tf.reduce_sum(tf.one_hot(chosen, self.balance.shape[0], dtype=tf.float64), 1)
        total = tf.reduce_sum(seen[:, tf.newaxis] * chose, 0)
        return Sums(tf.reduce_sum(seen), total, total)  # the square of a one is a one

    def _computed(self, rows: tf.Tensor, routes: Routes) -> tf.Tensor:
        """Returns the outputs of all slots [blocks * slots, size]."""
        x = tf.where(routes.filled[..., tf.newaxis], tf.gather(rows, routes.token), tf.zeros([], rows.dtype))
        expert = tf.one_hot(routes.expert, self.balance.shape[0], dtype=rows.dtype)
        y = self.up(x, expert)
        y = gelu(y) if self.gate is None else tf.nn.silu(self.gate(x, expert)) * y
        return merge_leading(self.down(y, expert), 1)[0]


class LinearOfExperts(Module):
    """Computes `x @ w[e] + b[e]` for blocks [blocks, slots, in_size], of which each has one expert e."""

    def __init__(self, sizes: Sequence[int], *, bias: bool, w_init: Initializer, rng: Rng):
        super().__init__()
        experts, in_size, out_size = sizes
        matrices = [w_init(rng.fold("w").fold(i), [in_size, out_size]) for i in range(experts)]
        self.w = tf.Variable(tf.stack(matrices), name="w")
        self.b = tf.Variable(tf.zeros([experts, out_size]), name="b") if bias else None

    def __call__(self, x: tf.Tensor, expert: tf.Tensor) -> tf.Tensor:
        """Returns the outputs for `x`; `expert` [blocks, experts] is one for a block's expert, and else zero."""
        # Chosen by a product, not gathered: the gradient is then dense, of one size for any choice.
        w = tf.reshape(cast_to(self.w, x.dtype), [self.w.shape[0], -1])
        y = product(x, tf.reshape(product(expert, w), [sizes(expert)[0], *self.w.shape[1:]]))
        if self.b is None:
            return y
        return add_wide(y, tf.matmul(widen(expert), tf.cast(self.b, widen(expert).dtype))[:, tf.newaxis])


def routed(chosen: tf.Tensor, experts: int) -> Routes:
    """Sorts the choices [tokens, top_k] by expert, into blocks of equal size (Gale et al., 2023).

    An expert has as many blocks as its choices fill. The number of all blocks suffices for any distribution.
    """
    tokens, top_k = sizes(chosen)
    n, flat = tokens * top_k, tf.reshape(chosen, [-1])
    slots = _at_least(-(-n // (_SPLITS * experts)), 1)
    blocks = _at_most((n + experts * (slots - 1)) // slots, n)
    order = tf.argsort(flat, stable=True)  # the choices of expert 0 come first
    count = tf.reduce_sum(tf.one_hot(flat, experts, dtype=tf.int32), 0)
    first = tf.cumsum(count, exclusive=True)  # of each expert in `order`
    filled_blocks = (count + slots - 1) // slots
    ends = tf.cumsum(filled_blocks)
    begins = ends - filled_blocks
    block = tf.range(blocks)
    expert = tf.minimum(tf.searchsorted(ends, block, side="right"), experts - 1)  # blocks may remain
    place = (block - tf.gather(begins, expert))[:, tf.newaxis] * slots + tf.range(slots)
    filled = place < tf.gather(count, expert)[:, tf.newaxis]
    choice = tf.gather(order, tf.minimum(tf.gather(first, expert)[:, tf.newaxis] + place, n - 1))
    rank = tf.argsort(order) - tf.gather(first, flat)  # of a choice among those of its expert
    slot = tf.gather(begins, flat) * slots + rank
    return Routes(expert, choice // top_k, filled, tf.reshape(slot, tf.shape(chosen)))


def _at_least(x: Any, least: int) -> Any:
    return max(x, least) if isinstance(x, int) else tf.maximum(x, least)


def _at_most(x: Any, most: Any) -> Any:
    return min(x, most) if isinstance(x, int) else tf.minimum(x, most)


class ExpertLoad(NamedTuple):
    """The load of the busiest expert divided by the mean load, as a mean over layers: 1 if tokens are spread evenly."""

    chosen: tf.Tensor  # tokens of each expert [layers, experts]

    @classmethod
    def of(cls, statistics: Statistics) -> "ExpertLoad":
        return cls(tf.stack([sums.total for sums in statistics.sums.values()]))

    def result(self) -> tf.Tensor:
        return tf.reduce_mean(ratio(tf.reduce_max(self.chosen, 1), tf.reduce_mean(self.chosen, 1)))
