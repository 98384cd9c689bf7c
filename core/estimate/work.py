"""Counts TensorFlow's own overhead in a traced step: graph nodes, control flow, and the longest chain."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.estimate.graphs import CHOICES, called_by, is_loop, needed, writes
from core.estimate.kinds import Kind, kind_started
from core.estimate.operations import performed, run_by

TURNS = "turns of loops and choices"
NODES = "nodes"
_IN_A_ROUND = 4  # of a value


def work_of(graph: Any) -> Counter[str]:
    """Returns how many control-flow operations loops and conditions run, and how many graph nodes run in all."""
    turns = sum(times * _turns(op) for op, times in performed(graph))
    return Counter({TURNS: round(turns), NODES: nodes_of(graph)})


def _turns(op: tf.Operation) -> int:
    """Counts the control-flow operations that TensorFlow runs in place of the loop or condition `op`.

    A loop runs four per variable and iteration: merge, switch, identity and next iteration. A condition runs one for
    each input and output.
    """
    if is_loop(op):
        return called_by(op)[0].times * _IN_A_ROUND * sum(x.dtype != tf.resource for x in op.inputs)
    return len(op.inputs) + len(op.outputs) if op.type in CHOICES else 0


def nodes_of(graph: Any) -> int:
    """Counts all operations in the graphs of a traced function and its callees, even those that don't run."""
    ahead, seen = [graph], {id(graph): 0}
    while ahead:
        one = ahead.pop()
        ops = one.get_operations()
        seen[id(one)] = len(ops)
        for called in (called for op in ops for called in called_by(op)):
            if id(called.graph) not in seen:
                seen[id(called.graph)] = 0
                ahead.append(called.graph)
    return sum(seen.values())


_OPERATIONS, _BYTES, _STARTS = 1e11, 2e10, 1e6  # per second, roughly; the longest chain hardly depends on them


def chain_in(graph: Any) -> Mapping[Kind, float]:
    """Returns the operations in the longest chain of a traced function, `{kind: number}`."""
    return _chain(graph)[1]


def _chain(graph: Any) -> tuple[float, Counter[Kind]]:
    """Returns the rough duration of the longest chain in seconds, and its operations `{kind: number}`."""
    lengths, own, before = {"": 0.0}, dict[str, Counter[Kind]](), dict[str, str]()  # by operation; "" means none
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
    """Returns the rough duration of `op` in seconds, and the operations that it starts one after another."""
    kind = kind_started(op)
    length = max(kind.operations / _OPERATIONS, kind.bytes / _BYTES) + 1 / _STARTS if kind else 0.0
    found = Counter({kind: 1.0} if kind else {})
    for graph, times in run_by(op):
        more, parts = _chain(graph)
        if is_loop(op) and op.get_attr("parallel_iterations") > 1 and not writes(graph):
            times = 1  # its iterations may overlap
        length += times * more
        found.update({each: times * count for each, count in parts.items()})
    return length, found
