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
    lengths, before = dict[str, float](), dict[str, str | None]()
    own = dict[str, Counter[Kind]]()
    for op in needed(graph):
        earlier = [x.op.name for x in op.inputs] + [x.name for x in op.control_inputs]
        last = max(earlier, key=lambda name: lengths.get(name, 0.0), default=None)
        length, own[op.name] = _own(op)
        lengths[op.name], before[op.name] = length + lengths.get(last or "", 0.0), last
    name = max(lengths, key=lambda name: lengths[name], default=None)
    longest, found = lengths.get(name or "", 0.0), Counter[Kind]()
    while name is not None:
        found.update(own.get(name, {}))
        name = before.get(name)
    return longest, found


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
