"""The gradient noise scale, measured in each step of training.

In a gin file:

    Trainer.hooks = [@NoiseScale()]
"""

import gin

from trainers.hooks import Hook, Run


@gin.configurable
class NoiseScale(Hook):
    """Adds `noise_scale` to the metrics of training: about the batch size beyond which larger batches save few steps.

    Follows McCandlish et al. (2018), "An empirical model of large-batch training": B = tr(Σ) / |G|², the variance of an
    example's gradient over the square of the mean gradient, in examples, or tokens if the loss has a weight per token.
    Each step compares the gradients of its microbatches on all replicas with their mean, so it needs two or more. The
    value of a metric line is over all steps since the last one. It is negative or `nan` if these are too few.
    """

    noise_scale = True

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, run: Run) -> None:
        """Does nothing: each step measures."""
