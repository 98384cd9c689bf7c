"""The memory that a traced step holds while each of its operations runs.

As in TensorFlow's executor, an operation runs when its inputs are complete and the operations of its
`tf.control_dependencies` are done. Here, only one runs at a time. A tensor uses memory from the operation that makes it
to the last one that reads it. Views of other memory, such as a reshape, use none. Arithmetic reuses the memory of an
input that is no longer needed. In a condition, the branch with more memory counts. Excluded are kernel workspace (a
convolution's patches, a library's buffers), parallel operations, and the allocator's overhead.

The gradients of parameters are the inputs of operations that write parameters, and the terms of sums among these
inputs.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from core.estimate.graphs import (
    CHOICES,
    Called,
    called_by,
    handed_through,
    is_loop,
    merged,
    needed,
    read_by,
    same_buffer,
    writes,
)
from core.tensorflow_private import is_stateful

SizeOf = Callable[[tf.Tensor], int]

_IN_PLACE = {
    "Add", "AddN", "AddV2", "BiasAdd", "Cast", "Cos", "DivNoNan", "Erf", "Exp", "Expm1", "Log", "LogicalAnd",
    "LogicalOr", "Maximum", "Minimum", "Mul", "Neg", "RealDiv", "Relu", "ReluGrad", "Rsqrt", "RsqrtGrad", "SelectV2",
    "Sigmoid", "SigmoidGrad", "Sin", "Softmax", "Sqrt", "SqrtGrad", "Square", "Sub", "Tanh", "TanhGrad",
}  # fmt: skip
_PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}  # with the index of the input that becomes an element
_LAID_OUT = ("Relayout", "RelayoutLike")  # a result of the same size has the same layout, or is summed in place


class Held(NamedTuple):
    """Bytes of tensors: `gradients`, and `others`."""

    gradients: int  # and tensors made from them: clipped, averaged
    others: int  # activations and their gradients

    def plus(self, other: "Held", times: int = 1) -> "Held":
        return Held(self.gradients + times * other.gradients, self.others + times * other.others)

    @property
    def all(self) -> int:
        return self.gradients + self.others


NOTHING = Held(0, 0)


class Moment(NamedTuple):
    """The memory held while the operation `op` runs."""

    op: tf.Operation
    held: Held  # without what the functions that it calls hold
    called: Sequence["Timeline"] = ()
    updating: bool = False  # whether variables are written here


Timeline = list[Moment]


class _All(frozenset[str]):
    """A set that contains every name, for a function that writes variables: all its tensors count as gradients."""

    def __contains__(self, _: object) -> bool:
        return True


class _Buffer:
    """Memory that one or more tensors share."""

    def __init__(self, size: int, readers: int, is_gradient: bool):
        self.size, self.readers, self.is_gradient = size, readers, is_gradient

    @property
    def held(self) -> Held:
        return Held(self.size, 0) if self.is_gradient else Held(0, self.size)


def timeline(graph: Any, size_of: SizeOf, *, gradients: Collection[str] = ()) -> Timeline:
    """Returns the memory held while each operation of a traced function runs, in order.

    Tensors named in `gradients` count as gradients.
    """
    return _Simulation(graph, size_of, (), gradients).run()


class Fullest(NamedTuple):
    """The memory held at three times: most activations, most gradients, and while variables are written."""

    passing: Held  # at the peak of activations
    passed: Held  # at the peak of gradients
    updating: Held  # at the peak while variables are written


def fullest(moments: Timeline) -> Fullest:
    leaves = _leaves(moments, NOTHING)
    before = [leaf.held for leaf in leaves if not leaf.updating] or [NOTHING]
    updating = [leaf.held for leaf in leaves if leaf.updating] or [NOTHING]
    return Fullest(
        max(before, key=lambda held: (held.others, held.gradients)),
        max(before),
        max(updating, key=lambda held: held.all),
    )


def _leaves(moments: Timeline, base: Held, *, updating: bool = False) -> list[Moment]:
    found = []
    for moment in moments:
        held, now = base.plus(moment.held), updating or moment.updating
        inner = [leaf for one in moment.called for leaf in _leaves(one, held, updating=now)]
        found += inner or [Moment(moment.op, held, (), now)]
    return found


class _Simulation:
    """Simulates one run of a traced function to find the memory held at each operation."""

    def __init__(self, graph: Any, size_of: SizeOf, owned: Collection[int], gradients: Collection[str]):
        self.graph, self.size_of = graph, size_of
        ops = needed(graph)
        self.same = merged(ops)
        self.ops = [op for op in ops if not any(x.name in self.same for x in op.outputs)]
        self.gradients = gradients if isinstance(gradients, _All) else gradients_in(ops, gradients)
        self.readers: dict[str, int] = {}
        self.reading: dict[str, list[tf.Operation]] = {}
        for op in self.ops:
            for x in read_by(op):
                self.readers[self.name(x)] = self.readers.get(self.name(x), 0) + 1
                self.reading.setdefault(self.name(x), []).append(op)
        for x in graph.outputs:
            self.readers[self.name(x)] = self.readers.get(self.name(x), 0) + 1
        self.after = _explicit_order(self.ops)
        self.waiting = {id(op): len({self.name(x) for x in read_by(op)}) for op in self.ops}
        for op in (later for group in self.after.values() for later in group):
            self.waiting[id(op)] += 1
        self.buffers: dict[str, _Buffer] = {}
        self.now, self.moments = NOTHING, Timeline()
        self.own = {self.name(x) for i, x in enumerate(graph.inputs) if i in owned}

    def name(self, x: tf.Tensor) -> str:
        return self.same.get(x.name, x.name)

    def run(self) -> Timeline:
        ready = collections.deque(op for op in self.ops if not op.inputs and not self.waiting[id(op)])
        while ready:
            op = ready.popleft()
            self._take(op)
            ready.extend(self._woken(op))
        return self.moments

    def lists_after(self, times: int) -> dict[int, int]:
        """Returns `{output index: bytes}` of the tensor lists that a loop's body returns after `times` iterations."""
        found = {}
        for i, (before, after) in enumerate(zip(self.graph.inputs, self.graph.outputs, strict=False)):
            if after.dtype == tf.variant:
                growth = self.buffers[self.name(after)].size - (self.size_of(before) if before.name in self.own else 0)
                found[i] = self.size_of(before) + times * growth
        return found

    def _woken(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the operations that can run now that `op` has run."""
        found = []
        for x in op.outputs:
            found += self._ready(dict.fromkeys(self.reading.get(self.name(x), ())))
        return found + self._ready(self.after.get(op.name, ()))

    def _ready(self, ops: Iterable[tf.Operation]) -> list[tf.Operation]:
        """Returns those of `ops` that no longer wait for any operation."""
        for op in ops:
            self.waiting[id(op)] -= 1
        return [op for op in ops if self.waiting[id(op)] == 0]

    def _dying(self, op: tf.Operation) -> list[_Buffer]:
        """Returns the buffers whose last reader is `op`."""
        found: dict[int, tuple[_Buffer, int]] = {}
        for x in read_by(op):
            buffer = self.buffers[self.name(x)]
            found[id(buffer)] = (buffer, found.get(id(buffer), (buffer, 0))[1] + 1)
        return [buffer for buffer, count in found.values() if buffer.readers == count]

    def _size(self, x: tf.Tensor) -> int:
        return 0 if x.op.type in ("ReadVariableOp", "VarHandleOp") else self.size_of(x)

    def _new(self, x: tf.Tensor, size: int) -> None:
        buffer = _Buffer(size, self.readers.get(self.name(x), 0), self.name(x) in self.gradients)
        self.buffers[self.name(x)] = buffer
        self.now = self.now.plus(buffer.held)

    def _join(self, x: tf.Tensor, to: tf.Tensor) -> None:
        """Makes the tensor `x` share the buffer of the tensor `to`."""
        buffer = self.buffers[self.name(x)] = self.buffers[self.name(to)]
        buffer.readers += self.readers.get(self.name(x), 0)

    def _take(self, op: tf.Operation) -> None:
        functions = called_by(op)
        dying = self._dying(op)
        if op.type == "Placeholder":
            for x in op.outputs:
                self._new(x, self.size_of(x) if self.name(x) in self.own else 0)
        elif same_buffer(op) or (op.type in _LAID_OUT and self._size(op.inputs[0]) == self._size(op.outputs[0])):
            for x, to in zip(op.outputs, op.inputs, strict=False):
                self._join(x, to)
        elif op.type in _PUSHES:
            self._push(op)
        elif op.type == "TensorListGetItem":
            self._join(op.outputs[0], op.inputs[0])
        elif functions:
            self._call(op, functions, dying)
        else:
            reused = next(
                (b for b in dying if op.type in _IN_PLACE and op.outputs and b.size == self._size(op.outputs[0])), None
            )
            if reused is not None:
                self._resize(reused, 0)
            for x in op.outputs:
                self._new(x, self._size(x))
        if not functions:
            self.moments.append(Moment(op, self.now))
        self._give_back(op)

    def _push(self, op: tf.Operation) -> None:
        """Adds an element to a tensor list. The buffer of the list grows by the size of the element."""
        handle, element = op.inputs[0], op.inputs[_PUSHES[op.type]]
        self._join(op.outputs[0], handle)
        buffer = self.buffers[self.name(handle)]
        self._resize(buffer, buffer.size + self.size_of(element))

    def _resize(self, buffer: _Buffer, size: int) -> None:
        self.now = self.now.plus(buffer.held, -1)
        buffer.size = size
        self.now = self.now.plus(buffer.held)

    def _give_back(self, op: tf.Operation) -> None:
        for x in read_by(op):
            buffer = self.buffers[self.name(x)]
            buffer.readers -= 1
            if buffer.readers == 0:
                self._resize(buffer, 0)
        for x in op.outputs:
            buffer = self.buffers[self.name(x)]
            if buffer.readers == 0:
                self._resize(buffer, 0)

    def _call(self, op: tf.Operation, functions: list[Called], dying: list[_Buffer]) -> None:
        """Simulates the functions that `op` calls. They may free inputs whose last reader is `op`."""
        held, inner, grown = self.now, [], dict[int, int]()
        through = handed_through(functions[0].graph)
        buffers = [self.buffers[self.name(x)] for x in op.inputs]
        given = {i: buffer for i, buffer in enumerate(buffers) if buffer in dying and buffer.size}
        for buffer in dict.fromkeys(given.values()):
            held = held.plus(buffer.held, -1)
        updating = any(writes(called.graph) for called in functions) and not is_loop(op)
        for called in functions:
            arguments = dict(enumerate(called.graph.inputs, called.first))
            owned = {i - called.first for i in given if i in arguments}
            sizes = {x.name: buffers[i].size for i, x in arguments.items()}
            marks: Collection[str] = [x.name for i, x in arguments.items() if buffers[i].is_gradient]
            if is_loop(op):
                results = zip(op.outputs, called.graph.outputs, strict=True)
                marks = [*marks, *(inside.name for x, inside in results if self.name(x) in self.gradients)]
            if updating or isinstance(self.gradients, _All):
                marks = _All()
            simulation = _Simulation(called.graph, _with(self.size_of, sizes), owned, marks)
            inner.append(simulation.run())
            if is_loop(op):
                grown = simulation.lists_after(called.times)
                more = sum(max(0, size - buffers[i].size) for i, size in grown.items())
                held = held.plus(Held(0, more * (called.times - 1) // called.times))
        self.moments.append(Moment(op, held, inner, updating))
        for i, x in enumerate(op.outputs):
            if i in through and (is_loop(op) or len(functions) == 1) and i not in grown:
                self._join(x, op.inputs[through[i] + functions[0].first])
            else:
                self._new(x, max(0, grown.get(i, self._size(x))))


def _explicit_order(ops: Sequence[tf.Operation]) -> dict[str, list[tf.Operation]]:
    """Returns `{name: operations that wait for it without reading its values}`.

    Waits for operations with side effects are excluded: TensorFlow adds most of them, and they hold no memory.
    """
    pure = {op.name for op in ops if not is_stateful(op) and op.outputs}
    found: dict[str, list[tf.Operation]] = {}
    for op in ops:
        for earlier in op.control_inputs:
            if earlier.name in pure:
                found.setdefault(earlier.name, []).append(op)
    return found


def gradients_in(ops: Sequence[tf.Operation], known: Collection[str]) -> set[str]:
    """Returns the names of gradients: the `known` ones, inputs of updates, and the terms of sums among these."""
    found = set(known)
    for op in reversed(ops):
        if op.type in CHOICES and any(writes(called.graph) for called in called_by(op)):
            found |= {x.name for x in op.inputs if x.dtype.is_floating}
        if is_loop(op):
            found |= {op.inputs[i].name for i, x in enumerate(op.outputs) if x.name in found}
        elif op.type in ("Mul", "AddV2", "AddN", "Identity", "Reshape", "Cast") and any(
            x.name in found for x in op.outputs
        ):
            found |= {x.name for x in op.inputs if x.shape == op.outputs[0].shape}
    return found


def _with(size_of: SizeOf, lists: dict[str, int]) -> SizeOf:
    """Returns a `size_of` that gives each tensor list named in `lists` the size given there."""
    return lambda x: lists[x.name] if x.dtype == tf.variant and x.name in lists else size_of(x)
