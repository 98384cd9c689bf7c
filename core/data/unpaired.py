"""Two domains of different sizes as the examples of one source."""

import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.intp]


def unpaired(num_a: int, num_b: int) -> tuple[Order, Order]:
    """Says which images of A and of B the examples hold: as many examples as the larger domain has images.

    Each image of the larger domain is in one example. Its partner is the next of the other domain in random order, one
    order after the other, so that all of them are used equally often (to within one). The partners are the same in
    every epoch: no loss of CycleGAN compares an example's two images, so it doesn't matter who they are.
    """
    if num_a >= num_b:
        return np.arange(num_a), _partners(num_a, num_b)
    return _partners(num_b, num_a), np.arange(num_b)


def _partners(count: int, size: int) -> Order:
    random = np.random.RandomState(0)  # a generator whose numbers NumPy has promised never to change
    return np.concatenate([random.permutation(size) for _ in range(-(-count // size))])[:count]
