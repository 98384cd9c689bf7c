"""Imports the configurables of core and models, which registers them with gin; hooks are imported on demand."""

import core.data
import core.distribution
import core.optimizers
import core.parallel.mesh
import core.parallel.parameter_server
import core.weights
import models

__all__ = ["core", "models"]
