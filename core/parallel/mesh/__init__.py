"""Meshes: one logical replica, whose variables and rows DTensor shards over several devices."""

from core.parallel.mesh.backend import MeshBackend
from core.parallel.mesh.plan import MeshPlan, mesh
from core.parallel.mesh.strategy import MeshStrategy

__all__ = ["MeshBackend", "MeshPlan", "MeshStrategy", "mesh"]
