"""Imports everything of Tapeloop that a gin file may name, so that gin knows it."""

import core.data
import core.distribution
import core.optimizers
import core.weights
import models
import trainers.hooks.activations
import trainers.hooks.digits
import trainers.hooks.early_stopping
import trainers.hooks.histograms
import trainers.hooks.norms
import trainers.hooks.probe
import trainers.hooks.reconstructions
import trainers.hooks.samples
import trainers.hooks.texts
import trainers.hooks.translations

__all__ = ["core", "models", "trainers"]
