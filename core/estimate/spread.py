"""Propagates layouts on a mesh through a traced step, and counts the collectives that the step needs.

The step is traced for one device. Variables have their planned layouts, and batches are sharded by rows. The rules of
`core/estimate/rules.py` determine all other layouts. As in DTensor, a partial sum is reduced when an operation other
than an addition reads it. A sum in a loop is reduced after the loop. An operation without a rule is assumed to read
whole inputs, and is reported.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.estimate.graphs import called_by, is_loop, needed, writes
from core.estimate.memory import bytes_of
from core.estimate.rules import NOT_ADDED_UP_LATER, RULES
from core.estimate.sharding import Axes, Sharding, unknown, whole
from core.graphs import captured
from core.parallel.mesh.layouts import WHOLE

ADDED, JOINED = "all-reduce", "all-gather"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
_LISTS = {"TensorListPushBack": 1, "TensorListSetItem": 2}
_MADE = ("Fill", "Range", "Const", "Placeholder", "Shape", "Size", "Stateless", "BroadcastGradientArgs", "TensorList")


@dataclasses.dataclass(frozen=True)
class Taken:
    """A kind of collective: the mesh axis, all-reduce or all-gather, and the pass in which it runs."""

    axis: str
    kind: str
    where: str


class _Cut(NamedTuple):
    """A variable's layout: mesh axes by dimension, whole shape, and whole size in bytes."""

    axes: Axes
    shape: tuple[int, ...]
    size: int  # bytes of the whole


class Spread:
    """A traced step on a mesh. `sizes` is `{axis: number of devices}`; `cut` is `{path of a variable: mesh axes}`."""

    def __init__(self, sizes: Mapping[str, int], variables: Mapping[str, tf.Variable], cut: Mapping[str, Axes]):
        self.sizes = sizes
        self._variable_of = {
            id(variable.handle): _Cut(cut[path], tuple(variable.shape), bytes_of(variable))
            for path, variable in variables.items()
        }
        self.counts: Counter[Taken] = Counter()
        self.bytes: Counter[Taken] = Counter()  # that a device sends
        self.unknown: Counter[str] = Counter()
        self.joined: Counter[str] = Counter()  # the bytes of all-gathers, by the reason for them
        self._shardings: dict[tuple[int, str], Sharding] = {}
        self._added_up: dict[tuple[int, str], frozenset[str]] = {}  # reduced partial sums, and along which axes
        self._variables: dict[tuple[int, str], _Cut] = {}
        self._tables: dict[tuple[int, ...], str] = {}  # the axis that shards the rows of a lookup table, by its shape
        self._times, self._where, self._silent = 1, FORWARD, 0

    def follow(self, chunk: Any, batch_axis: str) -> None:
        """Propagates layouts through the graph of a `chunk`, and counts the collectives of one step."""
        graph = chunk.graph
        for handle, inner in captured(graph).items():
            if handle in self._variable_of:
                self._variables[id(graph), inner.name] = self._variable_of[handle]
        for x in graph.inputs:
            if x.dtype != tf.resource and (x.shape.rank or 0) >= 3:  # [steps, microbatches, rows, ...]
                rest = (WHOLE,) * (x.shape.rank - 3)
                self._shardings[id(graph), x.name] = Sharding((WHOLE, WHOLE, batch_axis, *rest))
        self._walk(graph)

    def size_of(self, x: tf.Tensor) -> int:
        """Returns the bytes that one device holds of `x`."""
        sharding = self._shardings.get((id(x.graph), x.name))
        return bytes_of(x) // self._devices(sharding.axes) if sharding else bytes_of(x)

    def _devices(self, axes: Sequence[str]) -> int:
        return math.prod(self.sizes[axis] for axis in axes if axis != WHOLE)

    def _walk(self, graph: Any) -> str:
        """Propagates layouts through `graph`. Returns the pass of its last operation, "forward" or "backward"."""
        where = self._where
        for op in needed(graph):
            if "gradient" in op.name and self._where == FORWARD:
                self._where = BACKWARD  # everything traced after the first gradient, including recomputation
            _At(self, op).take()
        ends, self._where = self._where, where
        return ends

    def note(self, axis: str, kind: str, size: int, *, because: str = "") -> None:
        """Counts a collective of `size` bytes along `axis`. In a loop, it counts once per iteration."""
        if self.sizes.get(axis, 1) > 1 and not self._silent:
            taken = Taken(axis, kind, self._where)
            self.counts[taken] += self._times
            self.bytes[taken] += self._times * size
            if because:
                self.joined[because] += self._times * size


class _At:
    """An operation with the layouts of its inputs. It implements `Reads` for its rule."""

    def __init__(self, spread: Spread, op: tf.Operation):
        self.spread, self.op, self.graph = spread, op, id(op.graph)

    def take(self) -> None:
        """Sets the layouts of the operation's results, and counts its collectives."""
        op = self.op
        functions = called_by(op)
        if functions:
            self._call(functions)
        elif op.type == "ReadVariableOp":
            self._set(op.outputs[0], Sharding(self._variable(op.inputs[0]).axes))
        elif op.type.startswith("ResourceApply") or (op.type.startswith("Assign") and op.inputs):
            self._write()
        elif op.type in _LISTS:
            self._set(op.outputs[0], Sharding(self.added_up(_LISTS[op.type])))
        elif op.type in ("TensorListGetItem", "TensorListPopBack"):
            self._set(op.outputs[0], self.sharding(0))
            if op.type == "TensorListPopBack":
                self._set(op.outputs[1], self._fitted(self.sharding(0), op.outputs[1]))
        elif op.type == "TensorListFromTensor":
            self._set(op.outputs[0], Sharding(self.added_up(0)[1:]))
        elif op.type == "TensorListStack":
            self._set(op.outputs[0], self._fitted(Sharding((WHOLE, *self.sharding(0).axes)), op.outputs[0]))
        elif op.type == "Pack":
            place, axes = op.get_attr("axis"), [self.added_up(i) for i in range(len(op.inputs))]
            joined = tuple(found.pop() if len(found := set(x)) == 1 else WHOLE for x in zip(*axes, strict=True))
            place %= len(joined) + 1
            self._set(op.outputs[0], Sharding((*joined[:place], WHOLE, *joined[place:])))
        elif op.type in RULES or not op.type.startswith(_MADE):
            self._by_rule()

    def _by_rule(self) -> None:
        op = self.op
        shardings = [self.sharding(i) for i in range(len(op.inputs))]
        if any(x.dtype == tf.variant for x in op.outputs):  # a list, passed on or added to another
            for x in op.outputs:
                self._set(x, shardings[0])
            return
        if op.type in ("GatherV2", "ResourceGather") and shardings[0].axes:
            table = op.inputs[0]
            shape = self._variable(table).shape if table.dtype == tf.resource else tuple(table.shape)
            self.spread._tables[shape] = shardings[0].axes[0]
        rule = RULES.get(op.type)
        if rule is None:
            if any(axis != WHOLE for one in shardings for axis in one.axes):
                self.spread.unknown[op.type] += 1
            rule = unknown
        for x, found in zip(op.outputs, rule(op, self, shardings), strict=False):
            self._set(x, found)
        if op.type in ("Softmax", "LogSoftmax", "SparseSoftmaxCrossEntropyWithLogits"):
            axis = shardings[0].axes[-1]
            rows = self.spread.size_of(op.inputs[0]) * self.size_of(axis) // (op.inputs[0].shape[-1] or 1)
            for _ in range(3 if op.type[0] == "S" and op.type[1] == "p" else 2):
                self.spread.note(axis, ADDED, rows)
        if op.type in NOT_ADDED_UP_LATER:
            for x in op.outputs:
                self._add_up(x)

    # --- methods for rules -------------------------------------------------------------------------------------------

    def sharding(self, number: int) -> Sharding:
        x = self.op.inputs[number]
        if x.dtype == tf.resource:
            return Sharding(self._variable(x).axes)
        found = self.spread._shardings.get((self.graph, x.name), whole(x))
        return found if x.dtype == tf.variant else self._fitted(found, x)

    def added_up(self, number: int) -> Axes:
        if self.op.inputs[number].dtype != tf.resource:
            self._add_up(self.op.inputs[number])
        return self.sharding(number).axes

    def added_up_together(self, numbers: Sequence[int]) -> None:
        seen = set[Sharding]()
        for number in numbers:
            sharding, x = self.sharding(number), self.op.inputs[number]
            if sharding in seen:
                self._set(x, Sharding(sharding.axes))
            self._add_up(x)
            seen.add(sharding)

    def whole_along(self, number: int, dimension: int) -> None:
        axis, x = self.sharding(number).axes[dimension], self.op.inputs[number]
        to = "".join(f" to {list(y.shape)}" for y in self.op.outputs[:1] if y.shape.rank is not None)
        because = f"{self.op.type} of {list(x.shape)}{to}, cut along `{axis}` in dimension {dimension}"
        self.spread.note(axis, JOINED, self.spread.size_of(x), because=because)

    def rows_of_table(self, shape: Sequence[int]) -> str:
        return self.spread._tables.get(tuple(shape), WHOLE)

    def size_of(self, axis: str) -> int:
        return self.spread.sizes.get(axis, 1)

    # -----------------------------------------------------------------------------------------------------------------

    def _fitted(self, sharding: Sharding, x: tf.Tensor) -> Sharding:
        """Returns `sharding`. If `x` has another number of dimensions, returns a whole layout."""
        return sharding if len(sharding.axes) == (x.shape.rank or 0) else whole(x)

    def _set(self, x: tf.Tensor, sharding: Sharding) -> None:
        self.spread._shardings[self.graph, x.name] = sharding

    def _variable(self, handle: tf.Tensor) -> _Cut:
        return self.spread._variables.get((self.graph, handle.name), _Cut((), (), 0))

    def _add_up(self, x: tf.Tensor) -> None:
        sharding = self.spread._shardings.get((self.graph, x.name))
        if sharding is not None and sharding.parts_of:
            for axis in sorted(sharding.parts_of):
                self.spread.note(axis, ADDED, self.spread.size_of(x))
            self.spread._added_up[self.graph, x.name] = sharding.parts_of
            self._set(x, Sharding(sharding.axes))

    def _write(self) -> None:
        """Counts the collectives of a variable's update. Sharding a whole value costs nothing."""
        op = self.op
        written, _, size = self._variable(op.inputs[0])
        gathered = set[str]()
        for i, x in enumerate(op.inputs):
            if x.dtype == tf.resource:
                gathered |= set(self._variable(x).axes) - set(written)  # slots of which each device has a part
            elif (x.shape.rank or 0) == len(written):
                for d, axis in enumerate(self.added_up(i)):
                    if axis not in (WHOLE, written[d]):
                        self.whole_along(i, d)
        for axis in gathered - {WHOLE}:  # the parameter's new values, of which each device has computed a part
            self.spread.note(axis, JOINED, size // self.spread._devices([*written, axis]))

    def _call(self, functions: Sequence[Any]) -> None:
        op, spread = self.op, self.spread
        loop = is_loop(op)
        updating = not loop and any(writes(called.graph) for called in functions)
        given = {
            i: Sharding(self.added_up(i)) for i, x in enumerate(op.inputs) if x.dtype not in (tf.resource, tf.variant)
        }
        given |= {i: self.sharding(i) for i, x in enumerate(op.inputs) if x.dtype == tf.variant}
        before = spread._times, spread._where
        for called in functions:
            graph = called.graph
            for i, inner in enumerate(graph.inputs, called.first):
                if inner.dtype == tf.resource:
                    spread._variables[id(graph), inner.name] = self._variable(op.inputs[i])
            if loop:  # the layouts of loop variables are found by iterating
                spread._silent += 1
                for _ in range(2):
                    self._hand(graph, called.first, given)
                    spread._walk(graph)
                    given |= self._going_round(graph, given)
                spread._silent -= 1
            self._hand(graph, called.first, given)
            spread._times = before[0] * called.times
            spread._where = UPDATE if updating else before[1]
            spread._where = spread._walk(graph)
            for i, (x, inner) in enumerate(zip(op.outputs, graph.outputs, strict=False)):
                found = spread._shardings.get((id(graph), inner.name))
                if found is not None:
                    once = loop and given.get(i) == found  # a sum over the iterations, reduced after the loop
                    spread._times = before[0] * (1 if once else called.times)
                    for axis in sorted(found.parts_of):
                        spread.note(axis, ADDED, spread.size_of(inner))
                    self._set(x, Sharding(found.axes))
            spread._times, spread._where = before

    def _going_round(self, graph: Any, given: Mapping[int, Sharding]) -> dict[int, Sharding]:
        """Returns the layouts of a loop's variables. A sum over iterations may stay a partial sum."""
        found = {}
        for i, inner in enumerate(graph.outputs):
            sharding = self.spread._shardings.get((id(graph), inner.name))
            if sharding is not None and i in given and inner.dtype != tf.resource:
                added = _added(inner, graph.inputs[i])
                parts = self.spread._added_up.get((id(graph), added.name)) if added is not None else None
                found[i] = sharding._replace(parts_of=parts or frozenset())
        return found

    def _hand(self, graph: Any, first: int, given: Mapping[int, Sharding]) -> None:
        for i, inner in enumerate(graph.inputs, first):
            if i in given:
                self.spread._shardings[id(graph), inner.name] = given[i]


def _added(total: tf.Tensor, so_far: tf.Tensor) -> tf.Tensor | None:
    """Returns `term` if `total` is `so_far + term`, else `None`."""
    while total.op.type == "Identity":
        total = total.op.inputs[0]
    if total.op.type not in ("Add", "AddV2"):
        return None
    first, second = total.op.inputs
    return second if first.name == so_far.name else first if second.name == so_far.name else None
