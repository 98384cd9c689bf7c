"""Memory stays flat as a run goes on, but for what TensorFlow keeps of collectives."""

import pytest

from benchmarks.memory import growth, measured


def test_the_growth_is_the_slope_through_the_marks():
    assert growth([(100, 5_000), (200, 7_000), (300, 9_000)]) == 20.0


@pytest.mark.long
def test_a_mesh_takes_little_more_with_each_chunk_of_steps():
    """About 0.5 kB a step, in chunks of 20: whatever a step itself left behind would come to more."""
    assert growth(measured("2x2", 20, 3000)) < 1_500
