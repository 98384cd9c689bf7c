"""Sums over the tiles of a matrix of queries and keys, per group. Their derivatives, of any order, are such sums again.

A stack `[count, ...]` holds the tiles of one tensor. The tensor is cut along groups, queries and keys, or some of these
axes. A place is one tile of the matrix. A tile function gets one tile of each stack, those of one place. Places are
computed one after another, and backward passes compute them again, so memory doesn't grow with their number.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.layers.shapes import sizes, widen

Along = tuple[bool, bool, bool]  # groups, queries, keys


class Place(NamedTuple):
    """One tile of the matrix: the indices of its groups, of its queries and of its keys."""

    group: tf.Tensor
    i: tf.Tensor
    j: tf.Tensor
    cut: bool  # whether positions hide some of its keys from some of its queries


class Stack(NamedTuple):
    """The tiles `[count, ...]` of a tensor, and the axes of the matrix along which it is cut."""

    tiles: tf.Tensor
    along: Along


def filled(stacks: Sequence[Stack], tiles: Sequence[tf.Tensor]) -> list[Stack]:
    """Returns `stacks` with their tiles replaced by `tiles`."""
    return [stack._replace(tiles=x) for stack, x in zip(stacks, tiles, strict=True)]


class Grid(NamedTuple):
    """A matrix in tiles: how many along groups, queries and keys, their sizes, and the places that are computed."""

    counts: tuple[int, int, int]
    tile: tuple[int, int, int]
    whole: npt.NDArray[np.int32]
    cut: npt.NDArray[np.int32]

    def stack(
        self, x: tf.Tensor, groups: int | None = None, queries: int | None = None, keys: int | None = None
    ) -> Stack:
        """Cuts `x` along its axes `groups`, `queries` and `keys`. An axis of size 1 isn't cut: all tiles share it."""
        axes = groups, queries, keys
        # Nor is an axis cut into one tile: reading a tile copies it, unless all places share it.
        cut = [n for n, axis in enumerate(axes) if axis is not None and self.counts[n] > 1 and x.shape[axis] != 1]
        for before, n in enumerate(reversed(cut)):
            x = _cut(x, (axes[n] or 0) + before, self.counts[n], self.tile[n])
        count = math.prod(self.counts[n] for n in cut)
        return Stack(tf.reshape(x, [count, *sizes(x)[len(cut) :]]), (0 in cut, 1 in cut, 2 in cut))

    def read(self, stack: Stack, at: Place) -> tf.Tensor:
        """Returns the tile of `stack` at the place `at`."""
        return tf.gather(stack.tiles, self.number(at, stack.along)) if any(stack.along) else stack.tiles[0]

    def loop(self, body: Callable[..., Sequence[tf.Tensor]], stacks: Sequence[Stack]) -> list[tf.Tensor]:
        """Replaces the tiles of `stacks` by `body(place, *tiles)`, one place at a time."""
        arrays = [
            tf.TensorArray(x.dtype, x.shape[0], element_shape=x.shape[1:], clear_after_read=False).unstack(x)
            for x in (stack.tiles for stack in stacks)
        ]
        for places, cut in ((self.whole, False), (self.cut, True)):
            if len(places):
                arrays = self._visit(places, cut, body, [stack.along for stack in stacks], arrays)
        return [tf.ensure_shape(array.stack(), stack.tiles.shape) for array, stack in zip(arrays, stacks, strict=True)]

    def _visit(
        self,
        places: npt.NDArray[np.int32],
        cut: bool,
        body: Callable[..., Sequence[tf.Tensor]],
        along: Sequence[Along],
        arrays: Sequence[tf.TensorArray],
    ) -> list[tf.TensorArray]:
        columns = [tf.constant(column) for column in places.T]

        def step(n: tf.Tensor, *arrays: tf.TensorArray) -> Any:
            group, i, j = (tf.gather(column, n) for column in columns)
            at = Place(group, i, j, cut)
            indices = [self.number(at, way) for way in along]
            tiles = body(at, *(array.read(index) for array, index in zip(arrays, indices, strict=True)))
            written = zip(arrays, indices, tiles, strict=True)
            return n + 1, *(array.write(index, tile) for array, index, tile in written)

        # Places computed in parallel would need the memory that tiles save.
        count = len(places)
        options = {"parallel_iterations": 1, "maximum_iterations": count}
        return list(tf.while_loop(lambda n, *_: n < count, step, (0, *arrays), **options)[1:])

    def sum(
        self, function: Callable[..., Sequence[tf.Tensor]], stacks: Sequence[Stack], like: Sequence[Stack]
    ) -> list[tf.Tensor]:
        """Sums the tiles that `function(place, *tiles)` returns for all places, into stacks like `like`.

        The sums can be differentiated as often as `function` can.
        """

        @tf.custom_gradient
        def run(*tiles: tf.Tensor) -> Any:
            # Without `stop_gradient`, eager code would keep the results of each place for the gradient.
            given = filled(stacks, [tf.stop_gradient(x) for x in tiles])

            def body(at: Place, *sums: tf.Tensor) -> list[tf.Tensor]:
                summands = function(at, *(self.read(stack, at) for stack in given))
                return [total + tf.cast(x, total.dtype) for total, x in zip(sums, summands, strict=True)]

            # Unlike `tf.zeros`, these start no sooner than the tiles are there, and are sharded like them on a mesh.
            zeros = [tf.raw_ops.ZerosLike(x=widen(stack.tiles)) for stack in like]
            sums = self.loop(body, filled(like, zeros))
            results = [tf.cast(total, stack.tiles.dtype) for total, stack in zip(sums, like, strict=True)]

            def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
                def pulled(at: Place, *tiles: tf.Tensor) -> Sequence[tf.Tensor]:
                    given, above = tiles[: len(stacks)], tiles[len(stacks) :]
                    with tf.GradientTape() as tape:
                        tape.watch(given)
                        summands = function(at, *given)
                    upstream = [tf.cast(x, y.dtype) for x, y in zip(above, summands, strict=True)]
                    gradients: Sequence[tf.Tensor] = tape.gradient(
                        summands, given, upstream, tf.UnconnectedGradients.ZERO
                    )
                    return gradients

                own = filled(stacks, tiles)
                return self.sum(pulled, [*own, *filled(like, upstream)], own)

            return results, gradient

        return list(run(*(stack.tiles for stack in stacks)))

    def number(self, at: Place, along: Along = (True, True, True)) -> tf.Tensor:
        """Numbers the tiles of a stack that is cut `along` some axes."""
        number = tf.zeros_like(at.i)
        for position, count, cut in zip(at[:3], self.counts, along, strict=True):
            number = number * count + position if cut else number
        return number


def _cut(x: tf.Tensor, axis: int, count: int, size: int) -> tf.Tensor:
    """Pads `axis` of `x` at its end, and cuts it into tiles of length `size`: [count, ...]."""
    shape = sizes(x)
    around = [(0, count * size - shape[axis] if i == axis else 0) for i in range(len(shape))]
    x = tf.reshape(tf.pad(x, around), [*shape[:axis], count, size, *shape[axis + 1 :]])
    return tf.transpose(x, [axis, *range(axis), *range(axis + 1, len(shape) + 1)])
