"""The rows are small; their rules go through TensorFlow's kernels all the same."""

import pytest

from core.optimizers import transform


@pytest.fixture(autouse=True, scope="module")
def kernels():
    before, transform.KERNELS_FROM = transform.KERNELS_FROM, 0
    yield
    transform.KERNELS_FROM = before
