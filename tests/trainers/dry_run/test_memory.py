"""Memory of a device and of a process, by the figures of a traced program."""

import collections
from types import SimpleNamespace

import pytest

from core.estimate import ACTIVATIONS, PARAMETERS, SLOTS
from trainers.dry_run.memory import MOMENTS, Process, held_by_a_device, most, together


def test_peak_of_a_process_is_that_of_its_largest_part_and_the_copy():
    assert Process(before=100, step=20, evaluation=5, copy=3).peak == 123
    assert Process(before=100, step=2, evaluation=5, copy=3).peak == 108


@pytest.mark.parametrize(("calls", "batches"), [(1, 3 * 2 * 100 // 4), (5, 8 * 2 * 100 // 4)])
def test_device_holds_its_share_of_the_fetched_chunks(calls, batches):
    build = SimpleNamespace(
        settings=SimpleNamespace(parallel_calls=calls),
        paper=SimpleNamespace(fetched_chunks=3),
        chunk_steps=2,
        batch_bytes=100,
        replicas=4,
    )
    held = collections.defaultdict(int, {("passed", ACTIVATIONS): 7})
    found = held_by_a_device(build, SimpleNamespace(standing={PARAMETERS: 11, SLOTS: 22}, held=held))
    assert found["batches"] == dict.fromkeys(MOMENTS, batches)
    assert together(found) == {"passing": 33 + batches, "passed": 40 + batches, "updating": 33 + batches}
    assert most(found) == 40 + batches
