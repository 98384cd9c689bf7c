"""Imports what a gin file may name, so that gin knows it; `trainers.hooks.register` imports the hooks."""

import core.data
import core.distribution
import core.optimizers
import core.parallel.mesh
import core.parallel.parameter_server
import core.weights
import models

__all__ = ["core", "models"]
