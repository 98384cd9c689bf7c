"""The least time of a step, from given speeds, as sums that a reader can follow."""

import re
from collections import Counter

import pytest
import tensorflow as tf

from core.estimate import TURNS, Figures, Kind, Operand, kinds_in
from tests.toys import Line, point_source
from trainers.dry_run import speeds as measuring
from trainers.dry_run import time as estimating
from trainers.dry_run.build import DryBuild
from trainers.dry_run.speeds import Seconds, Speeds, measured_seconds
from trainers.dry_run.time import how_long, least
from trainers.experiment import Experiment
from trainers.settings import Settings

CPU = ["/job:localhost/replica:0/task:0/device:CPU:0"]
SPEEDS = Speeds(peak=1e9, bytes=1e6, near=1e8, starts=1e4, steps=5e3, turns=1e3)
LARGE = Kind("MatMul", (), None, operations=3 * 10**9, bytes=2 * 2**20)
SMALL = Kind("Exp", (), None, operations=0, bytes=10**6)


def figures(kinds, chain):
    names = ("standing", "held", "checkpoint", "crossing", "bytes", "joined", "unknown", "operations")
    return Figures(**{name: Counter() for name in names}, work=Counter({TURNS: 5}), kinds=kinds, chain=chain)


def test_operations_not_measured_compute_or_read_and_write_and_are_started():
    assert SPEEDS.supposed(LARGE) == pytest.approx((3.0 + 1e-4, 3.0 + 2e-4))
    assert SPEEDS.supposed(SMALL) == pytest.approx((0.01 + 1e-4, 0.01 + 2e-4))


def test_a_step_takes_no_less_than_its_work_nor_than_its_longest_chain():
    kinds = {LARGE: 2.0, SMALL: 100.0}
    measured = {LARGE: Seconds(among=1.0, alone=2.5)}
    found = least(figures(kinds, {LARGE: 1.0}), SPEEDS, measured)
    assert list(found.work.values()) == pytest.approx([2.0, 100 * 0.0101, 0.005])
    assert found.seconds == pytest.approx(2.0 + 1.01 + 0.005)
    found = least(figures(kinds, {LARGE: 2.0, SMALL: 10.0}), SPEEDS, measured)
    assert found.seconds == found.chain == pytest.approx(2 * 2.5 + 10 * 0.0102)


def step(x):
    return tf.linalg.inv(x) + tf.exp(tf.transpose(x))


@pytest.fixture
def kinds():
    return kinds_in(tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([64, 64])).graph)


def test_operations_are_measured_by_themselves_but_for_one_that_ones_are_nothing_for(kinds):
    slow = Speeds(peak=1e9, bytes=1e8, near=1e8, starts=1e6, steps=1e6, turns=1e6)
    found = measured_seconds(kinds, kinds, slow, CPU)
    assert {kind.type for kind in found} == {"Exp", "Transpose", "AddV2"}
    assert {kind.type for kind in kinds} - {kind.type for kind in found} == {"MatrixInverse"}
    assert all(seconds.among > 0 and seconds.alone > 0 for seconds in found.values())


class Sums(Line):
    """Has no matrix product."""

    def error(self, batch):
        return tf.reduce_sum(batch["x"] * self.net.w[:, 0], 1) + self.net.b[0] - batch["y"]


def test_step_without_products_takes_time_too(monkeypatch):
    monkeypatch.setattr(estimating, "measured_speeds", lambda devices: SPEEDS)
    build = DryBuild.of(Experiment(task=Sums, train_source=point_source()), Settings(steps=1, global_batch_size=4))
    said = how_long(build, build.figures())
    assert re.match(r"A step takes [\d.e-]+ ms at least, as fast as this machine is just now: ", said)
    assert re.search(r": [\d.e-]+ ms for \d+ operations, measured by", said)


def test_loop_time_is_no_part_of_an_operation_and_a_short_one_has_a_share_of_a_core(monkeypatch):
    asked = Operand(tf.float32, (), None)
    kinds = {Kind(name, (), (asked,), 0, size): 1.0 for name, size in (("Exp", 10**6), ("Sin", 10**6), ("Cos", 8))}
    exp, sin, cos = kinds
    speeds = Speeds(peak=1e9, bytes=1e8, near=1e8, starts=2e6, steps=4e6, turns=1e6)
    taken = {(exp.of, 4): 5e-3, (exp.of, 1): 8e-3, (sin.of, 4): 6e-3, (cos.of, 1): 9e-6}
    around = {4: 1e-6, 1: 2e-6}
    monkeypatch.setattr(measuring, "_seconds", lambda do, _, __, abreast: taken.get((do, abreast), around[abreast]))
    monkeypatch.setattr(measuring, "usable_cores", lambda: 2)
    monkeypatch.setattr(measuring, "ENOUGH", 1.0)
    found = measured_seconds(kinds, {exp: 1.0}, speeds, CPU)
    assert found[exp] == pytest.approx((5e-3 - 1e-6 + 5e-7, 8e-3 - 2e-6 + 2.5e-7))
    assert found[sin].among == pytest.approx(6e-3 - 1e-6 + 5e-7)
    assert found[cos] == pytest.approx((7e-6 / 2 + 5e-7, 7e-6 + 2.5e-7))


def test_measuring_ends_in_time_and_skips_what_finds_no_room(kinds, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "LARGE", 1)
        assert not measured_seconds(kinds, kinds, SPEEDS, CPU)
    monkeypatch.setattr(measuring, "MOST_SECONDS", 0.0)
    assert not measured_seconds(kinds, kinds, SPEEDS, CPU)
