"""Converts between an optimizer's variables and the tensors that rules compute with."""

import contextlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.optimizers.transform import Slots, State, Variables


def below(name: str, slots: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the slots that begin with `name/`, without that prefix: {"adam/m": ...} becomes {"m": ...}."""
    prefix = f"{name}/"
    return {slot.removeprefix(prefix): values for slot, values in slots.items() if slot.startswith(prefix)}


def working_dtype(variable: tf.Variable) -> tf.DType:
    return tf.float32 if variable.dtype in (tf.bfloat16, tf.float16) else variable.dtype


def read(params: Variables) -> dict[str, tf.Tensor]:
    return {path: tf.cast(v.read_value(), working_dtype(v)) for path, v in params.items()}


def read_all(slots: Slots) -> State:
    return {slot: {path: v.read_value() for path, v in values.items()} for slot, values in slots.items()}


def make_slot(name: str, value: tf.Tensor, parameter: tf.Variable | None) -> tf.Variable:
    """Makes an untrainable variable; if `parameter` is on a parameter server, on the same server."""
    with getattr(parameter, "beside", contextlib.nullcontext)():
        return tf.Variable(value, trainable=False, name=name)


def assign(slots: Slots, state: State) -> None:
    for slot, values in slots.items():
        for path, variable in values.items():
            variable.assign(state[slot][path])
