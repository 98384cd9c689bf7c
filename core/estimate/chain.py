"""The longest chain of a step's operations that wait for each other: more devices or cores don't make it shorter."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from core.estimate.graphs import is_loop, needed, writes
from core.estimate.kinds import Kind, kind_started
from core.estimate.operations import run_by

_OPERATIONS, _BYTES, _STARTS = 1e11, 2e10, 1e6  # a second, roughly: which chain is the longest hardly depends on them


def chain_in(graph: Any) -> Mapping[Kind, float]:
    """Counts how often the longest chain of a traced function starts an operation of each kind."""
    return _chain(graph)[1]


def _chain(graph: Any) -> tuple[float, Counter[Kind]]:
    """Returns how long it takes, roughly, and what it starts."""
    lengths, own, before = {"": 0.0}, dict[str, Counter[Kind]](), dict[str, str]()  # by operation; "" is none
    for op in needed(graph):
        earlier = [x.op.name for x in op.inputs] + [x.name for x in op.control_inputs]
        before[op.name] = max((name for name in earlier if name in lengths), key=lengths.__getitem__, default="")
        length, own[op.name] = _own(op)
        lengths[op.name] = length + lengths[before[op.name]]
    name = last = max(lengths, key=lengths.__getitem__)
    found = Counter[Kind]()
    while name:
        found.update(own[name])
        name = before[name]
    return lengths[last], found


def _own(op: Any) -> tuple[float, Counter[Kind]]:
    """Returns how long one operation takes, roughly, and what it starts, one after the other."""
    kind = kind_started(op)
    length = max(kind.operations / _OPERATIONS, kind.bytes / _BYTES) + 1 / _STARTS if kind else 0.0
    found = Counter({kind: 1.0} if kind else {})
    for graph, times in run_by(op):
        more, parts = _chain(graph)
        if is_loop(op) and op.get_attr("parallel_iterations") > 1 and not writes(graph):
            times = 1  # its rounds may overlap
        length += times * more
        found.update({each: times * count for each, count in parts.items()})
    return length, found
