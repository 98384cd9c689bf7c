"""Narrow slots: a rule computes in float32, and its slots are stored in bfloat16 or in 8-bit codes.

`adamw(1e-3, slots="bfloat16")` makes both slots bfloat16. With "int8" a slot `m` is stored as codes `m` and scales
`m_scale`. Slots of fewer than 4,096 values, and of float64 parameters, keep their dtype.
"""

import math
from collections.abc import Collection, Iterable

import tensorflow as tf

from core.arguments import check_choice
from core.optimizers.optimizer import Optimizer
from core.optimizers.rounding import SIGNED, UNSIGNED, from_codes, noise_for, scales_shape, to_bfloat16, to_codes
from core.optimizers.slots import assign, read, read_all
from core.optimizers.transform import Slots, State, Tensors, Transform, Variables
from core.random import Rng

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"
MIN_SIZE = 4096  # values, as in the paper of the codes: narrowing fewer saves little
SCALE = "_scale"  # the end of the name of a slot that holds the scales of another
_SEED = 0  # no other draws use this seed

Changing = dict[str, dict[str, tf.Tensor]]


def check_slots(slots: str) -> None:
    """Raises a `ValueError` unless `slots` is a dtype that slots may have."""
    check_choice("slots", slots, (FLOAT32, BFLOAT16, INT8))


def is_codes(slot: tf.Tensor | tf.Variable) -> bool:
    """Says whether `slot` holds 8-bit codes."""
    return slot.dtype in (SIGNED, UNSIGNED)


def is_narrow(slot: tf.Tensor | tf.Variable) -> bool:
    """Says whether `slot` is narrower than its rule computes."""
    return slot.dtype == tf.bfloat16 or is_codes(slot)


def narrow_slots(transform: Transform, dtype: str, *, squares: Collection[str] = ()) -> Transform:
    """Returns `transform` with slots of `dtype`; each slot belongs to one parameter and starts at zero.

    Slots named in `squares` are averages of squares. The rule must treat each parameter separately. The rounding
    depends on the step, the slot and the parameter's path, so replicas round alike.
    """
    if dtype == FLOAT32:
        return transform

    def codes(slot: str) -> tf.DType:
        return UNSIGNED if slot in squares else SIGNED

    def init(params: Tensors) -> State:
        state: Changing = {}
        for path, p in params.items():  # one by one: all float32 slots together may not fit into memory
            for slot, own in transform.init({path: p}).items():
                shape = own[path].shape
                if p.dtype != tf.float32 or math.prod(shape) < MIN_SIZE:
                    state.setdefault(slot, {}).update(own)
                elif dtype == BFLOAT16:
                    state.setdefault(slot, {})[path] = tf.zeros(shape, tf.bfloat16)
                else:
                    state.setdefault(slot, {})[path] = tf.zeros(shape, codes(slot))
                    state.setdefault(slot + SCALE, {})[path] = tf.zeros(scales_shape(shape))
        return state

    def narrow(state: State, before: State, step: tf.Tensor) -> State:
        rng, found, done = Rng.from_seed(_SEED).fold(step), Changing(), list[tf.Tensor]()
        for slot, own in state.items():
            for path, x in own.items():
                stored = found.setdefault(slot, {})
                if not is_narrow(before[slot][path]):
                    stored[path] = x
                    continue
                with tf.control_dependencies([x, *done]):  # one by one, for memory
                    noise = noise_for(rng.fold(f"{slot}/{path}"), x.shape)
                    if dtype == BFLOAT16:
                        stored[path] = to_bfloat16(x, noise)
                    else:
                        # Roots have the range of the gradients' average. Small squares would become zero.
                        x = tf.sqrt(x) if slot in squares else x
                        stored[path], found.setdefault(slot + SCALE, {})[path] = to_codes(x, noise, codes(slot))
                done = [stored[path]]
        return found

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        updates, new = transform.update(gradients, _widened(state), params, step=step, value=value)
        return updates, narrow(new, state, step)

    def fused(
        gradients: Tensors, slots: Slots, params: Variables, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> None:
        """Updates one parameter after the other, so that few float32 slots exist at a time."""
        before: list[tf.Tensor] = []
        for path, variable in params.items():
            with tf.control_dependencies(before):
                own = {slot: {path: values[path]} for slot, values in slots.items() if path in values}
                one = {path: variable}
                updates, state = update({path: gradients[path]}, read_all(own), read(one), step=step, value=value)
                variable.assign_add(updates[path])
                assign(own, state)
                before = [x for values in state.values() for x in values.values()]

    return transform._replace(init=init, update=update, fused=fused)


def _widened(state: State) -> State:
    """Returns the float32 state of a rule from its stored state."""
    return {
        slot: {path: _wide(x, state.get(slot + SCALE, {}).get(path)) for path, x in own.items()}
        for slot, own in state.items()
        if not slot.endswith(SCALE)
    }


def _wide(x: tf.Tensor, scales: tf.Tensor | None) -> tf.Tensor:
    if scales is None:
        return tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x
    wide = from_codes(x, scales)
    return tf.square(wide) if x.dtype == UNSIGNED else wide


def bytes_of_slots(optimizers: Iterable[Optimizer]) -> tuple[int, int]:
    """Returns the bytes of all slots as they are stored, and the bytes that they would have in float32."""
    stored = wide = 0
    for optimizer in optimizers:
        for name, own in optimizer.slots.items():
            for path, slot in own.items():
                size = math.prod(slot.shape)
                stored += size * slot.dtype.size
                if is_narrow(slot):
                    wide += size * tf.float32.size
                elif not (name.endswith(SCALE) and path in optimizer.slots.get(name.removesuffix(SCALE), {})):
                    wide += size * slot.dtype.size
    return stored, wide
