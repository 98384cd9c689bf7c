"""Estimates a model with many identical blocks from traces with few of them.

One trace has two blocks, and another has three. Each further block adds the difference between the two.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.estimate.figures import Figures
from core.module import named_variables

FEW = 2
FROM = 6  # blocks; fewer are traced individually


class Repeats:
    """The lists of identical blocks in `task`, grouped by length.

    `marks` maps ids of variables and modules to labels, such as layouts. Identical blocks have equal labels.
    """

    def __init__(self, task: tf.Module, marks: Mapping[int, Hashable] = {}):
        self._lists: dict[int, list[tuple[tf.Module, str, Any]]] = defaultdict(list)
        for module in (task, *task.submodules):
            for name, value in vars(module).items():
                if isinstance(value, list) and len(value) >= FROM and _alike(value, marks):
                    self._lists[len(value)].append((module, name, value))

    @property
    def found(self) -> bool:
        return bool(self._lists)

    def counted(self, measure: Callable[[], Figures]) -> Figures:
        """Returns the cost of the whole task. It calls `measure` with shortened lists, and scales the results up."""
        if self._lists:
            # Names of removed blocks raise, for example an optimizer's pattern; a real mistake raises again below.
            with contextlib.suppress(Exception):
                return self._grown(measure)
        return measure()

    def _grown(self, measure: Callable[[], Figures]) -> Figures:
        few = dict.fromkeys(self._lists, FEW)
        base = self._measured(measure, few)
        total = base
        for length in self._lists:
            more = self._measured(measure, {**few, length: FEW + 1})
            total = total.grown(base, more, length - FEW)
        return total

    def _measured(self, measure: Callable[[], Figures], lengths: Mapping[int, int]) -> Figures:
        with self._cut(lengths):
            return measure()

    @contextlib.contextmanager
    def _cut(self, lengths: Mapping[int, int]) -> Iterator[None]:
        """Shortens each list in its `with` block. `lengths` maps a full length to a shortened one."""
        places = [(*place, lengths[length]) for length, found in self._lists.items() for place in found]
        try:
            for module, name, blocks, kept in places:
                setattr(module, name, list(blocks[:kept]))
            yield
        finally:
            for module, name, blocks, _ in places:
                setattr(module, name, blocks)


def _alike(blocks: list[Any], marks: Mapping[int, Hashable]) -> bool:
    """Says whether `blocks` are identical: one type, equal labels, and separate variables of equal shapes."""
    if not all(isinstance(block, tf.Module) and type(block) is type(blocks[0]) for block in blocks):
        return False
    found = [named_variables(block) for block in blocks]
    kinds = [
        (
            {path: (v.shape, v.dtype, v.trainable, marks.get(id(v))) for path, v in variables.items()},
            [marks.get(id(module)) for module in (block, *block.submodules)],
        )
        for block, variables in zip(blocks, found, strict=True)
    ]
    own = {id(v) for variables in found for v in variables.values()}
    return all(kind == kinds[0] for kind in kinds) and len(own) == sum(map(len, found)) > 0
