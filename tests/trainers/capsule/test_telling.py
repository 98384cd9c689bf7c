"""What a replay says of what it has found: rows by example and replica, and of many lines those that help."""

import dataclasses

import pytest
from capsule_lab import SOME

import core.layers.linear
from tests import toys
from tests.trainers.trainer_lab import make
from trainers.capsule.find import Finding
from trainers.capsule.report import report
from trainers.capsule.trail import Line, Operation


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("told")
    return make(folder, task=toys.Line, source=toys.point_source(60), global_batch_size=12, microbatches=2)


def told(trainer, *, rows=None, origin=None, replicas=1):
    found = Finding("net", ["its loss"], origin, [], rows)
    return report(found, trainer, dataclasses.replace(SOME, replicas=replicas), 3)


def test_row_is_told_by_its_example_and_the_replica_that_had_it(trainer):
    examples = trainer.input.examples_of(3)
    assert examples.shape == (2, 6)
    said = told(trainer, rows=[1, 4, 8], replicas=3).splitlines()[-3:]
    assert said[0].endswith(f"1 of 12: example {examples[0, 1]} of source `points`, on replica 0")
    assert said[1].endswith(f"4 of 12: example {examples[0, 4]} of source `points`, on replica 2")
    assert said[2].endswith(f"8 of 12: example {examples[1, 2]} of source `points`, on replica 1")
    assert "replica" not in told(trainer, rows=[1])


def test_rows_that_are_many_are_told_in_a_line(trainer):
    assert told(trainer, rows=list(range(12))).endswith("row        each of the 12 by itself")
    assert told(trainer, rows=list(range(8))).endswith("row        each of the first 8 by itself, and perhaps more")
    assert told(trainer, rows=[0, 2, 3, 4, 5, 6, 7, 8]).endswith("             and perhaps more")
    assert told(trainer, rows=[]).endswith("row        none by itself: it is their sum")
    assert "row" not in told(trainer)


def test_lines_of_layers_are_told_once_and_do_not_crowd_out_the_user_s(trainer):
    layers = [Line(core.layers.linear.__file__, number, "inner") for number in range(1, 6)]
    own = [Line(__file__, number, "outer") for number in (1, 3)]
    operation = Operation(1, "MatMul", [*layers, *own], "", [], [], [])
    lines = [line for line in told(trainer, origin=operation).splitlines() if line.startswith(" " * 13)]
    assert ["linear.py:1 " in lines[0], "test_telling.py:1 " in lines[1], "test_telling.py:3 " in lines[2]] == [
        True
    ] * 3
    assert len(lines) == 3
