"""The table of optimizers with narrow slots: one row per optimizer and dtype, with the peer of its float32 form."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import optax

from core import optimizers as ours
from core.optimizers import Transform, narrow_slots

from .optimizer_battery import Row
from .optimizer_peers import in_float64, mask, optax_muon

CODES = "Dettmers et al. (2022)"


def of_any_size(transform: Transform) -> Transform:
    """Narrows the slots of small parameters too, as the battery's are."""

    def init(params: Any) -> Any:
        with mock.patch.object(narrow_slots, "MIN_SIZE", 1):
            return transform.init(params)

    return transform._replace(init=init)


def rows(make: Callable[[str], Transform], row: Row, *, bfloat16: float, int8: float) -> list[Row]:
    """Returns a row for each dtype, with its tolerance."""
    return [
        dataclasses.replace(
            row,
            make=lambda slots=slots: of_any_size(make(slots)),  # type: ignore[misc]
            case=f"{slots} slots",
            paper=paper,
            tolerance=tolerance,
            xla_tolerance=tolerance,
            reason="Stochastic rounding.",
        )
        for slots, paper, tolerance in (("bfloat16", "", bfloat16), ("int8", CODES, int8))
    ]


NARROW = (
    *rows(lambda slots: ours.sgd(0.05, momentum=0.9, slots=slots),
        Row("sgd", ours.sgd, lambda: optax.sgd(0.05, 0.9), "Optax", ""), bfloat16=0.01, int8=0.05),
    *rows(lambda slots: ours.adam(0.01, slots=slots),
        Row("adam", ours.adam, lambda: in_float64(lambda: optax.adam(0.01)), "Optax, float64", "", "gradients, step"),
        bfloat16=5e-4, int8=3e-3),
    *rows(lambda slots: ours.adamw(0.01, weight_decay=0.1, no_decay=["b", "scale"], slots=slots),
        Row("adamw", ours.adamw,
            lambda: in_float64(lambda: optax.adamw(0.01, weight_decay=0.1, mask=mask("net/0/b", "scale"))),
            "Optax, float64", "", "gradients, step, parameters"), bfloat16=5e-4, int8=3e-3),
    *rows(lambda slots: ours.lion(0.003, weight_decay=0.1, no_decay=["b"], slots=slots),
        Row("lion", ours.lion, lambda: optax.lion(0.003, weight_decay=0.1, mask=mask("net/0/b")), "Optax", "",
            "gradients, parameters"), bfloat16=0.01, int8=0.01),
    *rows(lambda slots: ours.muon(0.01, weight_decay=0.1, other=ours.adamw(0.003, slots=slots), slots=slots),
        Row("muon", ours.muon, optax_muon, "Optax", "", "gradients, step, parameters"), bfloat16=5e-4, int8=3e-3),
)  # fmt: skip
