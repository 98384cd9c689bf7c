"""Attention in tiles of queries and keys. The scores are never all in memory (Dao et al., 2022).

The forward pass keeps two numbers per query: the running maximum and the running sum of its softmax (Rabe and Staats,
2021). The backward pass computes the scores again, and the softmax from these two numbers.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from core.layers.dense_attention import sum_like
from core.layers.dropout import drop
from core.layers.products import product
from core.layers.shapes import sizes, widen
from core.layers.tile_sums import Grid, Place, Stack, filled
from core.random import Rng, noticing_draws

HIDDEN = 0.5 * tf.float32.min  # the score of a key that a query doesn't see: its softmax is zero


class Sight(NamedTuple):
    """The keys that a query may see, by position. Positions of queries count from `first_query`."""

    causal: bool
    window: int | None  # a query sees itself and the `window - 1` keys before it
    first_query: tf.Tensor | int

    def hides_nothing_of(self, first: int, last: int, first_key: int, last_key: int) -> bool:
        """Says whether queries from `first` to `last` all see keys from `first_key` to `last_key`."""
        return (not self.causal or last_key <= first) and (self.window is None or last - first_key < self.window)

    def hides_all_of(self, first: int, last: int, first_key: int, last_key: int) -> bool:
        """Says whether queries from `first` to `last` see none of the keys from `first_key` to `last_key`."""
        return (self.causal and first_key > last) or (self.window is not None and first - last_key >= self.window)

    def distance(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Returns how many positions before each query each key is: [queries, keys]. `queries` are indices from 0."""
        return tf.expand_dims(self.first_query + queries, 1) - tf.expand_dims(keys, 0)

    def seen(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Returns whether each query may see each key: booleans [queries, keys]."""
        distance = self.distance(queries, keys)
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < self.window)


def grid_of(sight: Sight, all_sizes: tuple[int, int, int], largest: tuple[int, int, int]) -> Grid:
    """Divides groups, queries and keys into equal tiles of at most `largest`, and leaves out hidden tiles."""
    groups, queries, columns = (-(-size // most) for size, most in zip(all_sizes, largest, strict=True))
    group, tile, width = (-(-size // n) for size, n in zip(all_sizes, (groups, queries, columns), strict=True))
    _, time, keys = all_sizes
    whole: list[tuple[int, int]] = []
    cut: list[tuple[int, int]] = []
    for i in range(queries):
        for j in range(columns):
            last_key = min((j + 1) * width, keys) - 1
            full = (j + 1) * width <= keys
            if not sight.causal:
                (whole if full else cut).append((i, j))
            elif not isinstance(sight.first_query, int):
                cut.append((i, j))
            else:
                first = sight.first_query + i * tile
                last = sight.first_query + min((i + 1) * tile, time) - 1
                edges = first, last, j * width, last_key
                if sight.hides_all_of(*edges):
                    continue
                (whole if full and sight.hides_nothing_of(*edges) else cut).append((i, j))
    by_group = ([(g, *at) for g in range(groups) for at in places] for places in (whole, cut))
    places = (np.array(each, np.int32).reshape(-1, 3) for each in by_group)
    return Grid((groups, queries, columns), (group, tile, width), *places)


class Result(NamedTuple):
    """Tiles of the result, and each query's sum of `exp(score - largest)`. `largest` counts as a constant."""

    y: tf.Tensor
    total: tf.Tensor
    largest: tf.Tensor


class Tiled(NamedTuple):
    """Attention in the tiles of a grid. Masks are stacks, true where attention is allowed.

    The arguments are the stacks `q`, `k` and `v`, then `bias` if `biased`, then `slopes` if `sloped`. A tile of `q` is
    [batch, groups, heads, queries, size]. A tile of `k` or `v` is [batch, groups, keys, size]. All others broadcast to
    [batch, groups, heads, queries, keys].
    """

    grid: Grid
    sight: Sight
    keys: int
    mask: Stack | None
    documents: tuple[Stack, Stack] | None  # the document of each query, and of each key
    biased: bool
    sloped: bool
    dropout_rate: float
    rng: Rng | None
    cap: float | None  # of products p of queries and keys, which become cap tanh(p / cap)

    def __call__(self, stacks: Sequence[Stack]) -> Result:
        """Returns the attention's result for `stacks`."""

        @tf.custom_gradient
        def run(*tiles: tf.Tensor) -> Any:
            given = filled(stacks, tiles)
            result = self._values(given)
            return result, lambda *upstream: self._pull_back(given, result, *upstream)

        return Result(*run(*(stack.tiles for stack in stacks)))

    def _values(self, stacks: Sequence[Stack]) -> Result:
        """Returns the same as a call. Second derivatives are computed through this result."""

        @tf.custom_gradient
        def run(*tiles: tf.Tensor) -> Any:
            given = filled(stacks, tiles)
            result = self._forward(filled(stacks, [tf.stop_gradient(x) for x in tiles]))
            return result, lambda *upstream: self._pull_back(given, self(given), *upstream)

        return Result(*run(*(stack.tiles for stack in stacks)))

    def _forward(self, stacks: Sequence[Stack]) -> Result:
        def body(at: Place, y: tf.Tensor, total: tf.Tensor, largest: tf.Tensor) -> Result:
            q, k, v, *added = (self.grid.read(stack, at) for stack in stacks)
            scores = self._scores(at, self._products(q, k), added)
            if self._whole_rows:
                weights = self._dropped(at, self._softmax(at, scores), v.dtype)
                return Result(widen(_by_query(weights, v)), total, largest)
            softmax = tf.nn.softmax(scores)
            highest = tf.reduce_max(scores, -1, keepdims=True)
            # The softmax of the highest score is 1 / total: two maxima are quicker than another `exp`.
            more = tf.where(highest > HIDDEN, 1.0 / tf.reduce_max(softmax, -1, keepdims=True), 0.0)
            after = tf.maximum(largest, highest)
            total, more = total * tf.exp(largest - after), more * tf.exp(highest - after)
            both = _or_one(total + more)
            y = y * (total / both) + widen(_by_query(self._dropped(at, softmax, v.dtype), v)) * (more / both)
            return Result(y, total + more, after)

        q, _, v, *_ = (stack.tiles for stack in stacks)
        # Unlike `tf.zeros`, made no sooner than `q`, and sharded like it on a mesh.
        total = tf.raw_ops.ZerosLike(x=tf.cast(q[..., :1], widen(v).dtype))
        start = Result(total + tf.zeros([v.shape[-1]], total.dtype), total, total + HIDDEN)
        y, total, largest = self.grid.loop(body, [Stack(x, stacks[0].along) for x in start])
        # Queries that see no key have a total of zero; their weights are zeros below any `largest`.
        return Result(tf.cast(y, v.dtype), _or_one(total), tf.where(total > 0.0, largest, tf.zeros_like(largest)))

    def _pull_back(
        self, stacks: Sequence[Stack], result: Result, dy: tf.Tensor, dtotal: tf.Tensor, _: tf.Tensor
    ) -> list[tf.Tensor]:
        y, total, largest = result
        if self._whole_rows:
            total = tf.ones_like(total)  # a constant: the softmax is computed again
        # Summed over keys, weights times their gradient equal the result times its gradient.
        mean = tf.reduce_sum(widen(dy) * widen(y), -1, keepdims=True) / total - dtotal
        dy = tf.cast(widen(dy) / total, stacks[0].tiles.dtype)
        by_query = [Stack(x, stacks[0].along) for x in (dy, mean, largest)]
        with noticing_draws():  # the forward pass already reported its draws
            return self.grid.sum(self._gradients, [*stacks, *by_query], stacks)

    def _gradients(self, at: Place, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
        """Returns one tile's part of each gradient. `dy` and `mean` are already divided by the softmax's total."""
        *added, dy, mean, largest = others
        products = self._products(q, k)
        scores = self._scores(at, products, added)
        weights = self._softmax(at, scores) if self._whole_rows else tf.exp(scores - tf.stop_gradient(largest))
        dropped = self._dropped(at, weights, dy.dtype)
        dweights = widen(_by_query(dy, tf.cast(v, dy.dtype), transpose=True))
        dscores = weights * (dweights - mean) if self.rng is None else widen(dropped) * dweights - weights * mean
        factors = [-self._distance(at, dscores.dtype) if i == self.biased else 1.0 for i in range(len(added))]
        dadded = [sum_like(dscores * f, x) for f, x in zip(factors, added, strict=True)]
        if self.cap is not None:  # a hidden key has a gradient of zero, and maybe a product that isn't finite
            dscores = tf.math.multiply_no_nan(1.0 - tf.square(products / self.cap), dscores)
        dscores = tf.cast(dscores, q.dtype)
        return [_by_query(dscores, k), _by_key(dscores, q), _by_key(dropped, dy), *dadded]

    @property
    def _whole_rows(self) -> bool:
        """Says whether each tile has all keys. Its softmax then needs no other tile, and no `total` or `largest`."""
        return self.grid.counts[2] == 1

    def _softmax(self, at: Place, scores: tf.Tensor) -> tf.Tensor:
        """Returns the weights of all keys, which are zeros for a query that sees none."""
        weights = tf.nn.softmax(scores)
        hides = at.cut or self.biased or self.mask is not None or self.documents is not None
        return tf.where(scores > HIDDEN, weights, tf.zeros_like(weights)) if hides else weights

    def _products(self, q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
        """Returns the products of a tile's queries and keys, below the cap."""
        products = widen(_by_query(q, k, transpose=True))
        return products if self.cap is None else self.cap * tf.tanh(products / self.cap)

    def _scores(self, at: Place, scores: tf.Tensor, added: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns a tile's scores from its products, with `HIDDEN` where a query doesn't see a key."""
        seen = []
        if self.biased:
            scores += tf.cast(added[0], scores.dtype)
            seen.append(added[0] > -math.inf)
        if self.sloped:
            scores -= tf.cast(added[-1], scores.dtype) * self._distance(at, scores.dtype)
        if at.cut:
            queries, keys = self._positions(at)
            seen.append(tf.broadcast_to(keys < self.keys, [1, *self.grid.tile[1:]]))
            if self.sight.causal:
                seen.append(self.sight.seen(queries, keys))
        if self.mask is not None:
            seen.append(self.grid.read(self.mask, at))
        if self.documents is not None:
            query, key = (self.grid.read(stack, at) for stack in self.documents)
            same = tf.expand_dims(query, 2) == tf.expand_dims(key, 1)
            seen.append(tf.reshape(same, [tf.shape(same)[0], 1, 1, *self.grid.tile[1:]]))
        # Selected, not added: the score of a masked key may be NaN, and must not reach any query.
        return tf.where(functools.reduce(tf.logical_and, seen), scores, HIDDEN) if seen else scores

    def _positions(self, at: Place) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the positions of a tile's queries and of its keys. Both count from the first query."""
        _, queries, keys = self.grid.tile
        return at.i * queries + tf.range(queries), at.j * keys + tf.range(keys)

    def _distance(self, at: Place, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tf.abs(self.sight.distance(*self._positions(at))), dtype)

    def _dropped(self, at: Place, weights: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        weights = tf.cast(weights, dtype)
        if self.rng is None:
            return weights
        return drop(weights, self.rng.fold(self.grid.number(at)), self.dropout_rate, sizes(weights))


def _or_one(total: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.equal(total, 0.0), tf.ones_like(total), total)


def _by_query(x: tf.Tensor, keys: tf.Tensor, transpose: bool = False) -> tf.Tensor:
    """Multiplies `x` [batch, groups, heads, queries, n] by `keys` [batch, groups, n, m], or transposed [..., m, n]."""
    batch, groups, heads, queries, n = sizes(x)
    # The heads of a group are additional queries to the same keys: one matmul, and no copy of the keys per head.
    y = product(tf.reshape(x, [batch, groups, heads * queries, n]), keys, transpose_b=transpose)
    return tf.reshape(y, [batch, groups, heads, queries, y.shape[-1]])


def _by_key(weights: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Sums `x` [batch, groups, heads, queries, n] by `weights` [..., queries, keys]: [batch, groups, keys, n]."""
    batch, groups, heads, queries, _ = sizes(x)
    rows = [tf.reshape(y, [batch, groups, heads * queries, y.shape[-1]]) for y in (weights, x)]
    return product(*rows, transpose_a=True)
