"""Estimates the cost of a training step from its trace. The step isn't run, so the model may be too large to run."""

from core.estimate.figures import HELD, Figures, lay_out_variables, of_evaluation, on_mesh, on_replicas
from core.estimate.kinds import Kind, Operand, kinds_in
from core.estimate.memory import ACTIVATIONS, GRADIENTS, PARAMETERS, SLOTS, bytes_of, held_in, on_device, standing
from core.estimate.operations import operations_by_place, operations_of
from core.estimate.places import BACKWARD, FORWARD, UPDATE, Place, noting_places
from core.estimate.repeats import Repeats
from core.estimate.sharding import laid_out
from core.estimate.spread import Spread, Taken
from core.estimate.work import NODES, TURNS, chain_in, work_of

__all__ = [
    "ACTIVATIONS",
    "BACKWARD",
    "FORWARD",
    "GRADIENTS",
    "HELD",
    "NODES",
    "PARAMETERS",
    "SLOTS",
    "TURNS",
    "UPDATE",
    "Figures",
    "Kind",
    "Operand",
    "Place",
    "Repeats",
    "Spread",
    "Taken",
    "bytes_of",
    "chain_in",
    "held_in",
    "kinds_in",
    "laid_out",
    "lay_out_variables",
    "noting_places",
    "of_evaluation",
    "on_device",
    "on_mesh",
    "on_replicas",
    "operations_by_place",
    "operations_of",
    "standing",
    "work_of",
]
