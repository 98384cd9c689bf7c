"""What a traced step is to TensorFlow besides its operations: nodes, and turns of loops and choices."""

from collections import Counter
from typing import Any

import tensorflow as tf

from core.estimate.graphs import CHOICES, called_by, is_loop
from core.estimate.operations import performed

TURNS = "turns of loops and choices"
NODES = "nodes"
_IN_A_ROUND = 4  # of a value


def work_of(graph: Any) -> Counter[str]:
    """Counts what TensorFlow puts in the place of loops and choices, as often as it runs, and all nodes."""
    turns = sum(times * _turns(op) for op, times in performed(graph))
    return Counter({TURNS: round(turns), NODES: nodes_of(graph)})


def _turns(op: tf.Operation) -> int:
    """Counts what TensorFlow puts in a loop's or a choice's place, which it runs too.

    Each value that a loop hands on is merged, switched, named and handed to the next round; one that a choice reads is
    switched, and what it makes is merged.
    """
    if is_loop(op):
        return called_by(op)[0].times * _IN_A_ROUND * sum(x.dtype != tf.resource for x in op.inputs)
    return len(op.inputs) + len(op.outputs) if op.type in CHOICES else 0


def nodes_of(graph: Any) -> int:
    """Counts the operations of a traced function and of what it calls, whether they ever run or not."""
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
