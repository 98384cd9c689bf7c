"""Estimates of a device's and a process's memory, from given counts of a traced program."""

import collections
from types import SimpleNamespace

import pytest

from core.estimate import ACTIVATIONS, HELD, NODES, PARAMETERS, SLOTS
from trainers.dry_run.memory import (
    MOMENTS,
    NODE_BYTES,
    RUNNING_BYTES,
    Process,
    held_by_a_device,
    most,
    process,
    together,
)


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


def test_process_holds_all_replicas_and_adds_a_step():
    """Standing variables and prefetched batches are there before the first step, which adds the rest."""
    build = SimpleNamespace(resident=1000.0, replicas=2)
    figures = SimpleNamespace(standing={PARAMETERS: 11, SLOTS: 22}, work={NODES: 3}, evaluation={NODES: 4, HELD: 50})
    held = {
        PARAMETERS: dict.fromkeys(MOMENTS, 11),
        SLOTS: dict.fromkeys(MOMENTS, 22),
        "batches": dict.fromkeys(MOMENTS, 5),
        ACTIVATIONS: {"passing": 70, "passed": 7, "updating": 0},
    }
    before = 1000 + RUNNING_BYTES + 7 * NODE_BYTES + 2 * 33 + 2 * 5
    assert process(build, figures, held) == Process(before, step=2 * 70, evaluation=2 * 50, copy=33)
