"""Times a training step, and versions of the step without one part. The difference is the time of that part."""

from core.measure.clock import fractions, medians, rounds
from core.measure.memory import peak_memory, reset_peak_memory
from core.measure.programs import (
    Program,
    TurnsExchange,
    Whole,
    backward_program,
    collective_programs,
    forward_program,
    turns_program,
)

__all__ = [
    "Program",
    "TurnsExchange",
    "Whole",
    "backward_program",
    "collective_programs",
    "forward_program",
    "fractions",
    "medians",
    "peak_memory",
    "reset_peak_memory",
    "rounds",
    "turns_program",
]
