"""Different rules for different parameters: groups by name pattern, and frozen parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf

from core.optimizers.chain import chain, joint_curvature
from core.optimizers.optimizer import apply_in_place
from core.optimizers.paths import matching
from core.optimizers.transform import Rates, Slots, State, Tensors, Transform, Variables, stateful

Labels = Callable[[Mapping[str, Any]], Mapping[str, str]]  # parameters -> the label of each path


@gin.configurable
def groups(rules: Mapping[str, Transform], *, otherwise: Transform | None = None) -> Transform:
    """Applies the rule of the first pattern that matches a parameter's path, or else `otherwise`.

    For example `groups({"embedding/*": sgd(0.1), "b": adam(1e-3)}, otherwise=adamw(1e-3))`. An earlier transform in the
    chain, such as clipping by the global norm, sees the parameters of all groups.
    """
    if not rules:
        raise ValueError('`rules` of `groups` is empty; give `{pattern: transform}`, such as `{"b": sgd(0.1)}`.')

    def label(params: Mapping[str, Any]) -> dict[str, str]:
        labels: dict[str, str] = {}
        for pattern in rules:
            hits = matching([pattern], params, argument="rules")
            labels |= {path: pattern for path in hits if path not in labels}
        rest = sorted(params.keys() - labels.keys())
        if rest and otherwise is None:
            raise ValueError(
                f"`rules` of `groups` has no pattern for the parameters {', '.join(rest)}; add one, or give "
                "`otherwise=`, which is `frozen()` for parameters that aren't to be trained."
            )
        return labels | dict.fromkeys(rest, "")

    every = {**rules, "": otherwise} if otherwise is not None else rules
    return partition("groups", label, {key: chain(rule) for key, rule in every.items()})


@gin.configurable
def frozen() -> Transform:
    """Keeps a group's parameters unchanged: all updates are zero, and there are no slots."""

    def update(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor) -> tuple[Tensors, State]:
        # Adding -0.0 keeps a weight of -0.0; 0.0 doesn't. As a literal, TensorFlow's cache of constants makes it 0.0.
        return {path: tf.negative(tf.zeros_like(g)) for path, g in gradients.items()}, {}

    def fused(gradients: Tensors, slots: Slots, params: Variables, step: tf.Tensor) -> None:
        """Does nothing, the fastest kernel."""

    return stateful("frozen", lambda params: {}, update, fused)


def partition(name: str, label: Labels, rules: Mapping[str, Transform]) -> Transform:
    """Applies `rules[label]` to the parameters of each label.

    `label(params)` returns `{path: label}`. A slot is named `SLOT/PATH`, so the name stays if the parameter moves to
    another group. A slot that a whole group shares is named `SLOT/.group_N`, where N counts `rules` from 0.
    """
    shared = {key: f".group_{i}" for i, key in enumerate(rules)}  # attributes don't start with a dot, so paths don't

    def members(params: Mapping[str, Any]) -> dict[str, list[str]]:
        labels = label(params)
        found = {key: [path for path in params if labels[path] == key] for key in rules}
        return {key: paths for key, paths in found.items() if paths}

    def slots_of(key: str, paths: list[str], slots: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        names = {shared[key]: "", **{path: path for path in paths}}
        own = {slot: {names[p]: x for p, x in values.items() if p in names} for slot, values in slots.items()}
        return {slot: values for slot, values in own.items() if values}

    def merge(states: Mapping[str, State]) -> dict[str, dict[str, tf.Tensor]]:
        merged: dict[str, dict[str, tf.Tensor]] = {}
        for key, state in states.items():
            for slot, values in state.items():
                merged.setdefault(slot, {}).update({path or shared[key]: x for path, x in values.items()})
        return merged

    def init(params: Tensors) -> State:
        return merge({key: rules[key].init(_of(paths, params)) for key, paths in members(params).items()})

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        updates: dict[str, tf.Tensor] = {}
        states: dict[str, State] = {}
        for key, paths in members(params).items():
            own = slots_of(key, paths, state)
            mine, states[key] = rules[key].update(
                _of(paths, gradients), own, _of(paths, params), step=step, value=value
            )
            updates |= mine
        return updates, merge(states)

    def fused(
        gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        for key, paths in members(params).items():
            own = slots_of(key, paths, slots)
            apply_in_place(rules[key], _of(paths, gradients), own, _of(paths, params), step=step, value=value)

    def shadow(state: State, params: Tensors, step: tf.Tensor) -> Tensors:
        read = dict(params)
        for key, paths in members(params).items():
            if of_group := rules[key].shadow:
                read |= of_group(slots_of(key, paths, state), _of(paths, params), step)
        return read

    def shares(params: Mapping[str, Any]) -> Mapping[str, Callable[[tf.Tensor], float | tf.Tensor]]:
        found: dict[str, Callable[[tf.Tensor], float | tf.Tensor]] = {}
        for key, paths in members(params).items():
            if of_group := rules[key].shares:
                found |= of_group(_of(paths, params))
        return found

    def take(estimate: Tensors, state: State, step: tf.Tensor) -> State:
        states: dict[str, State] = {}
        for key, paths in members(estimate).items():
            states[key] = slots_of(key, paths, state)
            if curvature := rules[key].curvature:
                states[key] = curvature.take(_of(paths, estimate), states[key], step)
        return merge(states)

    def rates(before: Rates, state: State, params: Mapping[str, Any], *, step: tf.Tensor) -> Rates:
        found: dict[str, float | tf.Tensor] = {}
        for key, paths in members(params).items():
            if of_group := rules[key].rates:
                own = of_group({}, slots_of(key, paths, state), _of(paths, params), step=step)
                found |= {f"[{key}]{name}" if key else name: rate for name, rate in own.items()}
        return found

    return Transform(
        name,
        init,
        update,
        fused=fused if any(rule.fused for rule in rules.values()) else None,
        shadow=shadow if any(rule.shadow for rule in rules.values()) else None,
        rates=rates if any(rule.rates for rule in rules.values()) else None,
        shares=shares if any(rule.shares for rule in rules.values()) else None,
        curvature=joint_curvature(rules.values(), take),
    )


def _of(paths: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {path: values[path] for path in paths}
