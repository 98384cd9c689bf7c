"""Measurements of a training step: programs without one part of it, timed alternately."""

from core.measure.clock import fractions, side_by_side
from core.measure.memory import peak_memory, reset_peak_memory
from core.measure.programs import Program, Whole, backward_program, collective_programs, forward_program, turns_program
from core.measure.turns import TurnsExchange

__all__ = [
    "Program",
    "TurnsExchange",
    "Whole",
    "backward_program",
    "collective_programs",
    "forward_program",
    "fractions",
    "peak_memory",
    "reset_peak_memory",
    "side_by_side",
    "turns_program",
]
