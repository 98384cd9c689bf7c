"""Uses TensorFlow's fused kernels despite small rows."""

import pytest

from core.optimizers import optimizer


@pytest.fixture(autouse=True, scope="module")
def kernels():
    before, optimizer.KERNELS_FROM = optimizer.KERNELS_FROM, 0
    yield
    optimizer.KERNELS_FROM = before
