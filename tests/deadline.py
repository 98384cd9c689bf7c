"""Long tests begin only before the gate's time limit; the order of their files differs from one run to the next.

A gate on a slow machine then ends with a list of tests that it didn't reach, and each test is reached by most runs.
"""

import random
import time
from itertools import groupby

import pytest

NO_TIME = "the gate's time for long tests is over"


class Deadline:
    """Leaves out long tests from `deadline` on, in seconds since the epoch; 1 s more gives another order of files."""

    def __init__(self, deadline: int) -> None:
        self.deadline = deadline

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = [list(some) for _, some in groupby(items, key=lambda item: item.path)]
        random.Random(self.deadline).shuffle(files)
        items[:] = [item for some in files for item in some]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("long") is not None and time.time() >= self.deadline:
            item.user_properties.append(("reached", False))
            pytest.skip(NO_TIME)
