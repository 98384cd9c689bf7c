"""Blocks that are alike: instead of all of them a few are traced, one more than that, and the difference counts.

Whatever a step takes grows with a block by the same each time, so a model of eighty is looked at as fast as one of
three.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.module import named_variables

FEW = 2
FROM = 6  # blocks; fewer are traced as they are

Figures = Mapping[Hashable, int]


class Repeats:
    """The lists of `task` that hold blocks alike, by how many they hold."""

    def __init__(self, task: tf.Module):
        self._lists: dict[int, list[tuple[tf.Module, str, Any]]] = defaultdict(list)
        for module in (task, *task.submodules):
            for name, value in vars(module).items():
                if isinstance(value, list) and len(value) >= FROM and _alike(value):
                    self._lists[len(value)].append((module, name, value))

    @property
    def found(self) -> bool:
        """Says whether there are any."""
        return bool(self._lists)

    def counted(self, measure: Callable[[], Figures]) -> Figures:
        """Returns the figures of the whole task, of what `measure` finds while its lists are short."""
        if not self._lists:
            return measure()
        few = dict.fromkeys(self._lists, FEW)
        base = self._measured(measure, few)
        total: dict[Hashable, int] = dict(base)
        for length in self._lists:
            more = self._measured(measure, {**few, length: FEW + 1})
            for key in {*base, *more}:
                growth = more.get(key, 0) - base.get(key, 0)
                total[key] = total.get(key, 0) + (length - FEW) * growth
        return total

    def _measured(self, measure: Callable[[], Figures], lengths: Mapping[int, int]) -> Figures:
        with self._cut(lengths):
            return measure()

    @contextlib.contextmanager
    def _cut(self, lengths: Mapping[int, int]) -> Iterator[None]:
        """Leaves so many in the lists that hold so many, within it."""
        places = [(*place, lengths[length]) for length, found in self._lists.items() for place in found]
        try:
            for module, name, blocks, kept in places:
                setattr(module, name, list(blocks[:kept]))
            yield
        finally:
            for module, name, blocks, _ in places:
                setattr(module, name, blocks)


def _alike(blocks: list[Any]) -> bool:
    """Says whether these are modules of one kind, each with variables of its own, of the same shapes."""
    if not all(isinstance(block, tf.Module) and type(block) is type(blocks[0]) for block in blocks):
        return False
    found = [named_variables(block) for block in blocks]
    kinds = [{path: (v.shape, v.dtype, v.trainable) for path, v in variables.items()} for variables in found]
    own = {id(v) for variables in found for v in variables.values()}
    return all(kind == kinds[0] for kind in kinds) and len(own) == sum(map(len, found)) > 0
