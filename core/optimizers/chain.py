"""Chains of transforms: each transform receives the updates of the previous transform."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.optimizers.slots import assign, below, read, read_all
from core.optimizers.transform import Curvature, FusedFunction, Rates, Slots, State, Tensors, Transform, Variables


def chain(*transforms: Transform) -> Transform:
    """Applies `transforms` in order: each transform receives the updates of the previous transform."""
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
            gradients, new = part.update(gradients, below(name, state), params, step=step, value=value)
            new_state |= {f"{name}/{slot}": values for slot, values in new.items()}
        return gradients, new_state

    def shadow(state: State, params: Tensors, step: tf.Tensor) -> Tensors:
        name, part = [(name, part) for name, part in named_parts if part.shadow][-1]
        assert part.shadow
        return part.shadow(below(name, state), params, step)

    def shares(params: Mapping[str, Any]) -> Mapping[str, Callable[[tf.Tensor], float | tf.Tensor]]:
        last = [part for part in parts if part.shadow][-1]
        return last.shares(params) if last.shares else {}

    def take(estimate: Tensors, state: State, step: tf.Tensor) -> State:
        taken = dict(state)
        for name, part in named_parts:
            if part.curvature:
                own = part.curvature.take(estimate, below(name, state), step)
                taken |= {f"{name}/{slot}": values for slot, values in own.items()}
        return taken

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        for name, part in named_parts:
            if part.rates:
                before = part.rates(before, below(name, state), params, step=step)
        return before

    return Transform(
        "chain",
        init,
        update,
        parts,
        fused=_fused_chain(named_parts),
        shadow=shadow if any(part.shadow for part in parts) else None,
        rates=rates if any(part.rates for part in parts) else None,
        shares=shares if any(part.shares for part in parts) else None,
        curvature=joint_curvature(parts, take),
        linear=all(part.linear for part in parts),
    )


def joint_curvature(rules: Iterable[Transform], take: Callable[[Tensors, State, tf.Tensor], State]) -> Curvature | None:
    """Returns the `Curvature` of several rules together, which `take` hands on; None if no rule reads it."""
    found = [rule.curvature for rule in rules if rule.curvature]
    if not found:
        return None
    if len({each.sampled for each in found}) > 1:
        raise ValueError(
            "two rules of one optimizer read different estimates of the loss's curvature: give each `sophia` the same "
            "`estimator`."
        )
    return Curvature(math.gcd(*(each.every for each in found)), take, found[0].sampled)


def _fused_chain(named_parts: Sequence[tuple[str, Transform]]) -> FusedFunction | None:
    """Returns a `fused` function for the chain: it calls the rule's kernel; `None` if the rule has no kernel."""
    rule = len(named_parts) - 1
    while rule >= 0 and named_parts[rule][1].observe:
        rule -= 1
    if rule < 0 or named_parts[rule][1].fused is None:
        return None

    def fused(
        gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        before = read(params) if rule else {}
        for i, (name, part) in enumerate(named_parts):
            own = below(name, slots)
            if i < rule:
                gradients, new = part.update(gradients, read_all(own), before, step=step, value=value)
                assign(own, new)
            elif part.fused:
                part.fused(gradients, own, params, step=step, value=value)
            else:
                assert part.observe
                assign(own, part.observe(read_all(own), read(params), step))

    return fused


@gin.configurable("chain")
def _chain_of(transforms: Sequence[Transform]) -> Transform:
    """The form of `chain` for gin files: `chain.transforms = [@clip_by_global_norm(), @adamw()]`."""
    return chain(*transforms)


def _distinct(names: Sequence[str]) -> list[str]:
    """Numbers repeated names: `["clip", "adam", "clip"]` becomes `["clip", "adam", "clip_2"]`."""
    earlier = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}_{count + 1}" if count else name for name, count in zip(names, earlier, strict=True)]
