"""What a step of training takes: programs that lack a part of it, timed in turns, so that differences tell."""

from core.measure.clock import medians
from core.measure.memory import peak_memory, reset_peak_memory
from core.measure.programs import Program, Whole, backward_program, collective_programs, forward_program

__all__ = [
    "Program",
    "Whole",
    "backward_program",
    "collective_programs",
    "forward_program",
    "medians",
    "peak_memory",
    "reset_peak_memory",
]
