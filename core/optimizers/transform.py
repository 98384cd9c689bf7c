"""Optimizers are chains of pure transforms; `Optimizer` is the one place that owns variables and writes them.

A `Transform` is a pair of pure functions over `{path: tensor}`, as in Optax: `init(params) -> state` and
`update(gradients, state, params, step=, value=) -> (updates, state)`. It holds nothing, so it may be made anywhere and
handed around freely.

    >>> import tensorflow as tf
    >>> from core.optimizers import adam, chain, clip_by_global_norm
    >>> w = tf.Variable([1.0, 2.0])
    >>> optimizer = Optimizer(chain(clip_by_global_norm(1.0), adam(0.1)), {"w": w})
    >>> optimizer.apply({"w": tf.constant([3.0, 4.0])})
    >>> sorted(optimizer.variables)
    ['adam/m/w', 'adam/v/w', 'step']

Two things may be said of a transform besides: its `fused` twin writes variables in place with TensorFlow's own kernels,
and its `shadow` is what evaluation and export read in place of the parameters.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gin
import tensorflow as tf

from core.errors import did_you_mean

Tensors = Mapping[str, tf.Tensor]  # by the path of the parameter
State = Mapping[str, Tensors]  # {slot: {path: tensor}}; a slot that all parameters share has the one path ""
Schedule = Callable[[tf.Tensor], tf.Tensor]  # the number of updates applied so far -> a rate

KERNELS_FROM = 2**16  # values in the largest variable; measured on CPUs, in between the two did not differ

Variables = Mapping[str, tf.Variable]
Slots = Mapping[str, Variables]  # a state, as variables


class UpdateFunction(Protocol):
    """The rule: gradients in; what to add to the parameters, and the next state, out."""

    def __call__(
        self, gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        """`step` counts the updates applied before this one; `value` is the loss, for rules that look at it."""


class FusedFunction(Protocol):
    """The same numbers as the update's, written where they belong."""

    def __call__(
        self, gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        """Called where variables may be assigned: in a replica, under no tape."""


class Transform(NamedTuple):
    """One rule of an optimizer. Its state is kept under its `name`, whatever it is chained with."""

    name: str
    init: Callable[[Tensors], State]
    update: UpdateFunction
    parts: tuple["Transform", ...] = ()  # of a plain chain, so that chains of chains are flat
    fused: FusedFunction | None = None
    shadow: Callable[[State, Tensors, tf.Tensor], Tensors] | None = None  # (state, params, step) as they are now
    observe: Callable[[State, Tensors, tf.Tensor], State] | None = None  # of an `observer`


def stateless(name: str, rule: Callable[[Tensors, Tensors, tf.Tensor], Tensors]) -> Transform:
    """A transform without state, from `rule(gradients, params, step) -> updates`."""

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return rule(gradients, params, step), state

    return Transform(name, lambda params: {}, update)


def stateful(
    name: str,
    init: Callable[[Tensors], State],
    update: Callable[[Tensors, State, Tensors, tf.Tensor], tuple[Tensors, State]],
    fused: Callable[[Tensors, Slots, Variables, tf.Tensor], None] | None = None,
) -> Transform:
    """A transform that doesn't look at the loss, from `update(gradients, state, params, step) -> (updates, state)`."""

    def with_value(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return update(gradients, state, params, step)

    def fused_with_value(
        gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        assert fused
        fused(gradients, slots, params, step)

    return Transform(name, init, with_value, fused=fused_with_value if fused else None)


def observer(
    name: str,
    init: Callable[[Tensors], State],
    observe: Callable[[State, Tensors, tf.Tensor], State],
    shadow: Callable[[State, Tensors, tf.Tensor], Tensors] | None = None,
) -> Transform:
    """A transform that only looks: `observe(state, params, step) -> state` is given the parameters after the update."""

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        return gradients, observe(state, {path: p + gradients[path] for path, p in params.items()}, step)

    return Transform(name, init, update, observe=observe, shadow=shadow)


def chain(*transforms: Transform) -> Transform:
    """Applies `transforms` one after the other, each to what the one before it returned."""
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise TypeError(f"`chain` was given {transform!r}; each argument is a transform, such as `adamw(1e-3)`.")
    parts = tuple(part for transform in transforms for part in transform.parts or (transform,))
    named_parts = list(zip(_distinct([part.name for part in parts]), parts, strict=True))

    def init(params: Tensors) -> State:
        return {f"{name}/{slot}": values for name, part in named_parts for slot, values in part.init(params).items()}

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        new_state: dict[str, Tensors] = {}
        for name, part in named_parts:
            gradients, new = part.update(gradients, _below(name, state), params, step=step, value=value)
            new_state |= {f"{name}/{slot}": values for slot, values in new.items()}
        return gradients, new_state

    def shadow(state: State, params: Tensors, step: tf.Tensor) -> Tensors:
        name, part = [(name, part) for name, part in named_parts if part.shadow][-1]
        assert part.shadow
        return part.shadow(_below(name, state), params, step)

    return Transform(
        "chain",
        init,
        update,
        parts,
        fused=_fused_chain(named_parts),
        shadow=shadow if any(part.shadow for part in parts) else None,
    )


def _fused_chain(named_parts: Sequence[tuple[str, Transform]]) -> FusedFunction | None:
    """A chain is as fused as its last rule: what comes before it is pure, and what comes after it only looks."""
    rule = len(named_parts) - 1
    while rule >= 0 and named_parts[rule][1].observe:
        rule -= 1
    if rule < 0 or named_parts[rule][1].fused is None:
        return None

    def fused(
        gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        before = _read(params) if rule else {}
        for i, (name, part) in enumerate(named_parts):
            own = _below(name, slots)
            if i < rule:
                gradients, new = part.update(gradients, _read_all(own), before, step=step, value=value)
                _assign(own, new)
            elif part.fused:
                part.fused(gradients, own, params, step=step, value=value)
            else:
                assert part.observe
                _assign(own, part.observe(_read_all(own), _read(params), step))

    return fused


@gin.configurable("chain")
def _chain_of(transforms: Sequence[Transform]) -> Transform:
    """`chain` for gin, which binds names: `chain.transforms = [@clip_by_global_norm(), @adamw()]`."""
    return chain(*transforms)


def named(name: str, transform: Transform) -> Transform:
    """`transform` under a name of its own: its state goes by it, and a chain keeps it as one part."""
    return transform._replace(name=name, parts=())


def apply_in_place(
    transform: Transform,
    gradients: Tensors,
    slots: Slots,
    params: Variables,
    *,
    step: tf.Tensor,
    value: tf.Tensor | None = None,
    commit: tf.Tensor | None = None,
    fused: bool = True,
) -> None:
    """Writes one update: by the fused twin where that pays, else by computing it and assigning the results.

    With `fused` the writes may stand under a condition; without, they are one straight line that masks by selecting.
    """
    if fused and commit is not None:
        # A condition costs a tenth of a small update, selecting every value doubles it.
        write = functools.partial(apply_in_place, transform, gradients, slots, params, step=step, value=value)
        tf.cond(commit, write, lambda: None)
        return
    if fused and transform.fused and _suits_kernels(params.values()):
        transform.fused(gradients, slots, params, step=step, value=value)
        return
    state, before = _read_all(slots), _read(params)
    updates, new_state = transform.update(gradients, state, before, step=step, value=value)
    for path, variable in params.items():
        if commit is None:
            variable.assign_add(tf.cast(updates[path], variable.dtype))
        else:
            # Adding a masked update would not do: an addition of zero flushes denormals and turns -0.0 into 0.0.
            new = tf.cast(before[path] + updates[path], variable.dtype)
            variable.assign(tf.where(commit, new, variable.read_value()))
    for slot, values in slots.items():
        for path, variable in values.items():
            new = new_state[slot][path]
            variable.assign(new if commit is None else tf.where(commit, new, state[slot][path]))


def _suits_kernels(variables: Collection[tf.Variable]) -> bool:
    """TensorFlow's kernels spread a variable over all cores: 2.5x faster for large ones, 2x slower for small ones."""
    floats = all(variable.dtype in (tf.float32, tf.float64) for variable in variables)
    return floats and max((math.prod(v.shape) for v in variables), default=0) >= KERNELS_FROM


class Optimizer:
    """A transform's state for one set of parameters, as variables. Make it in the scope that the parameters live in.

    Half-precision parameters are updated in float32: their slots and the rule's arithmetic are that wide.
    """

    def __init__(self, transform: Transform, parameters: Mapping[str, tf.Variable]):
        self.transform = chain(transform)  # so that a slot has the same name alone and in a chain
        self.parameters = dict(parameters)
        initial = self.transform.init(_read(self.parameters))
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.slots = {
            slot: {path: tf.Variable(value, trainable=False, name=f"{slot}/{path}") for path, value in values.items()}
            for slot, values in initial.items()
        }

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The optimizer's own variables by path: `step`, and `rule/slot/path of the parameter`."""
        slots = {
            f"{slot}/{path}".rstrip("/"): variable
            for slot, values in self.slots.items()
            for path, variable in values.items()
        }
        return {"step": self.step, **slots}

    def apply(
        self,
        gradients: Tensors,
        *,
        value: tf.Tensor | None = None,
        commit: tf.Tensor | None = None,
        fused: bool = True,
    ) -> None:
        """Takes one step. Where `commit` (a scalar bool) is false, every variable keeps its bits.

        Code that XLA compiles sets `fused` to false: XLA fuses the pure rule by itself, and masks it for nothing.
        """
        gradients = {path: self._gradient(path, gradients) for path in self.parameters}
        apply_in_place(
            self.transform,
            gradients,
            self.slots,
            self.parameters,
            step=self.step.read_value(),
            value=value,
            commit=commit,
            fused=fused,
        )
        self.step.assign_add(1 if commit is None else tf.cast(commit, tf.int64))

    def shadow(self) -> Tensors | None:
        """What evaluation and export read in place of the parameters; `None` where they are the thing to read.

        An average's average, lookahead's slow weights, the sequence x of schedule-free: a copy, by path.
        """
        if self.transform.shadow is None:
            return None
        return self.transform.shadow(_read_all(self.slots), _read(self.parameters), self.step.read_value())

    def _gradient(self, path: str, gradients: Tensors) -> tf.Tensor:
        if gradients.get(path) is None:
            raise ValueError(
                f"`gradients` has none for the parameter `{path}`.{did_you_mean(path, gradients)} Give one for each "
                "of the optimizer's parameters; does the loss depend on this one?"
            )
        # Duplicate rows of a sparse gradient are summed here, before any norm or rule sees them.
        return tf.cast(tf.convert_to_tensor(gradients[path]), _working_dtype(self.parameters[path]))


def _distinct(names: Sequence[str]) -> list[str]:
    """The second `clip` of a chain is `clip_2`."""
    earlier = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}_{count + 1}" if count else name for name, count in zip(names, earlier, strict=True)]


def _below(name: str, slots: Mapping[str, Any]) -> dict[str, Any]:
    """The slots of one part, under the names it gave them."""
    prefix = f"{name}/"
    return {slot.removeprefix(prefix): values for slot, values in slots.items() if slot.startswith(prefix)}


def _working_dtype(variable: tf.Variable) -> tf.DType:
    return tf.float32 if variable.dtype in (tf.bfloat16, tf.float16) else variable.dtype


def _read(params: Variables) -> dict[str, tf.Tensor]:
    return {path: tf.cast(v.read_value(), _working_dtype(v)) for path, v in params.items()}


def _read_all(slots: Slots) -> State:
    return {slot: {path: v.read_value() for path, v in values.items()} for slot, values in slots.items()}


def _assign(slots: Slots, state: State) -> None:
    for slot, values in slots.items():
        for path, variable in values.items():
            variable.assign(state[slot][path])
