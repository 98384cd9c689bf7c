"""Verdicts and tables of `--mode=diagnose` on given times, without measuring."""

from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import gin
import pytest

from core.errors import ConfigurationError
from trainers.hooks import Hook
from trainers.performance.diagnose import points, tables
from trainers.performance.diagnose.diagnosis import _changes
from trainers.performance.diagnose.points import Point, Scale, scales, strong, weak
from trainers.performance.diagnose.tables import tried_text
from trainers.performance.diagnose.times import (
    BACKWARD,
    BESIDE,
    COLLECTIVES,
    FORWARD,
    HOST,
    PARTS,
    SKEW,
    UPDATE,
    WAIT,
    Crossing,
    Measured,
    Times,
    split,
)
from trainers.performance.diagnose.verdict import Case, Remedy, Tried, interval, setting
from trainers.settings import Settings

PLAIN = {"steps": 1000, "global_batch_size": 64, "checkpoint_every": None, "evaluate_every": None}


@gin.configurable
class Rests(Hook):
    def __call__(self, run):
        pass


def case(*, parts, hooks=None, fixed=0.0, chunk_steps=10, settings=None, devices=("CPU:0",), alone=(), mirrored=True):
    """Returns the case of a step of one second with these parts, in seconds; the rest of it is forward."""
    parts = dict.fromkeys(PARTS, 0.0) | parts
    parts[FORWARD] += 1.0 - sum(parts.values())
    synthetic = 1.0 - parts[WAIT] - parts[BESIDE] - sum((hooks or {}).values())
    crossings = [Crossing("d", 10, 0.0), Crossing("g", 1000, parts[COLLECTIVES])]
    times = Times(1.0, synthetic, parts, hooks or {}, crossings, alone)
    settings = Settings(**(PLAIN | (settings or {})))
    kind = {"source": "mine", "mirrored": mirrored, "fixed": lambda: fixed}
    return Case(times, settings, chunk_steps=chunk_steps, devices=devices, **kind)


def test_bottleneck_is_the_largest_part_from_a_fifth_of_a_step_on():
    assert case(parts={WAIT: 0.19, HOST: 0.19, SKEW: 0.19, COLLECTIVES: 0.19}).verdict().kind == "none"
    assert case(parts={WAIT: 0.11, BESIDE: 0.1}).verdict().kind == "input"
    assert case(parts={WAIT: 0.3, HOST: 0.4}).verdict().kind == "host"
    assert case(parts={COLLECTIVES: 0.3, HOST: 0.25}).verdict().kind == "collectives"


def test_tables_compare_replicas_with_one_device_and_name_what_crosses():
    parts = dict.fromkeys(PARTS, 0.0) | {FORWARD: 0.5, BACKWARD: 0.25, WAIT: 0.25}
    alone = Times(1.0, 0.75, parts, {}, [], ())
    crossings = [Crossing("d", 1024, 0.25), Crossing("g", 10, 0.0)]
    together = Times(0.5, 0.5, parts | {FORWARD: 0.25, WAIT: 0.0, COLLECTIVES: 0.25}, {}, crossings, ())
    points = [Point(Scale(1, 64), alone, {"GPU:0": 2**20}), Point(Scale(2, 64), together, {"GPU:0": 2**21})]

    def shown(table):
        cells = [[str(cell) for cell in column.cells] for column in table.columns]
        return {row[0]: row[1:] for row in map(list, zip(*cells, strict=True))}

    said = shown(tables.parts_table(points))
    assert said[COLLECTIVES] == ["0 ms   0 %", "250 ms  50 %"]
    assert said["examples/s"] == ["64", "128"]
    assert said["most memory, GPU:0"] == ["1 MiB", "2 MiB"]
    assert SKEW not in said
    assert shown(tables.scaling_table(points, shared=False)) == {"2 x 32": ["100 %", "75 %", "", ""]}
    assert shown(tables.scaling_table(points, shared=True))["2 x 32"][:2] == ["200 %", "150 %"]
    assert shown(tables.crossing_table(points[1])) == {
        "d": ["1 KiB", "250 ms", "4 KiB/s"],
        "g": ["10 bytes", "0 ms", "too fast to see"],
    }
    kept = tables.as_json(points, case(parts={}).verdict(), [], shared=False)
    assert [x["replicas"] for x in kept["points"]] == [1, 2]
    assert kept["points"][1]["efficiency"] == {"same_batch": {"real": 1.0, "synthetic": 0.75}}
    drawn = ElementTree.fromstring(tables.picture(points, "a < b"))
    assert drawn.get("aria-label") == "a < b"
    bars = [float(x.get("width")) for x in drawn.iter() if x.tag.endswith("rect") and len(x)]
    assert bars == [140.0, 280.0, 140.0, 140.0, 140.0, 140.0]  # as long as the longest step


def test_computing_that_recomputes_says_so():
    made = case(parts={})
    assert "recompute" not in made.verdict().sentence
    assert "includes the forward pass of `Experiment.recompute`" in replace(made, recomputes=True).verdict().sentence


def test_calls_in_parallel_are_for_waiting_and_no_more_than_there_may_be():
    (remedy,) = case(parts={WAIT: 0.5}).verdict().remedies
    assert remedy.line == "Trainer.parallel_calls = 3"  # twice as fast, and a fifth more than that
    verdict = case(parts={WAIT: 0.99}).verdict()
    assert verdict.remedies[0].line == "Trainer.parallel_calls = 32"
    assert "32 parallel calls would hide a part of it, 120 all" in verdict.sentence
    assert case(parts={WAIT: 0.3, BESIDE: 0.2}).verdict().remedies
    verdict = case(parts={WAIT: 0.1, BESIDE: 0.4}).verdict()
    assert (verdict.kind, verdict.remedies) == ("input", ())
    assert "goes to the cores that make examples of `mine`" in verdict.sentence


def test_hooks_that_are_dear_are_called_less_often_and_others_left_alone():
    hooks = {"Trainer.log_every": 0.4, "Rests.every": 0.2, "Trainer.evaluate_every": 0.04}
    settings = {"hooks": [Rests(10)], "evaluate_every": 50}
    verdict = case(parts={HOST: 0.65}, hooks=hooks, settings=settings).verdict()
    assert [remedy.line for remedy in verdict.remedies] == ["Trainer.log_every = 5000", "Rests.every = 200"]
    assert "40 % by `Trainer.log_every`, 20 % by `Rests.every`; each 5,000 steps, each 200 steps would do" in (
        verdict.sentence
    )
    at_the_end = case(parts={HOST: 0.65}, hooks={"Trainer.checkpoint_every": 0.6}).verdict()
    assert "once at the end" in at_the_end.sentence
    assert not at_the_end.remedies


def test_chunks_are_made_longer_where_calls_and_no_hooks_are_what_takes_time():
    hooks = {"Trainer.log_every": 0.1}
    verdict = case(parts={HOST: 0.5}, hooks=hooks, settings={"log_every": 40}, chunk_steps=2).verdict()
    assert [remedy.line for remedy in verdict.remedies] == ["Trainer.chunk_steps = 40"]
    verdict = case(parts={HOST: 0.5}, hooks=hooks, settings={"log_every": 40}, chunk_steps=40).verdict()
    assert "small for their number of calls" in verdict.sentence
    assert not verdict.remedies


def test_collectives_are_named_by_phase_and_narrower_gradients_are_tried_once():
    two = {"devices": ("CPU:0", "CPU:1"), "parts": {COLLECTIVES: 0.5}}
    verdict = case(**two).verdict()
    assert "in `g` each hands in 1000 bytes" in verdict.sentence
    lines = [remedy.line for remedy in verdict.remedies]
    assert lines == ["Trainer.reduce_gradients_in = 'bfloat16'", "Trainer.global_batch_size = 256"]
    narrow = case(**two, settings={"reduce_gradients_in": "bfloat16"}).verdict()
    assert [remedy.line for remedy in narrow.remedies] == lines[1:]


def test_the_slowest_replica_is_left_out_where_the_others_can_share_the_batch():
    late = {"parts": {SKEW: 0.4}, "devices": ("CPU:0", "CPU:1", "CPU:2"), "alone": (0.1, 0.5, 0.2)}
    verdict = case(**late).verdict()
    assert "replica 1 on `CPU:1` takes 500 ms alone where a typical one takes 200" in verdict.sentence
    assert [remedy.line for remedy in verdict.remedies] == ["mirrored.devices = ['CPU:0', 'CPU:2']"]
    assert not case(**late, mirrored=False).verdict().remedies
    assert not case(**late, settings={"global_batch_size": 63}).verdict().remedies


def test_a_larger_batch_is_tried_where_half_of_a_step_is_the_same_for_any():
    assert case(parts={UPDATE: 0.1}, fixed=0.4).verdict().kind == "none"
    verdict = case(parts={UPDATE: 0.1}, fixed=0.8).verdict()
    assert verdict.kind == "batch"
    assert verdict.share == pytest.approx(0.8 * 0.9 + 0.1)
    (remedy,) = verdict.remedies
    assert remedy.line == "Trainer.global_batch_size = 320"
    assert "changes training" in remedy.caution


def test_a_hook_is_bound_by_the_scope_that_it_was_made_in():
    with gin.config_scope("a"):
        scoped = Rests(10)
    names = {name for name, _ in Settings(**PLAIN, hooks=[scoped, Rests(20)]).intervals}
    assert names == {"Trainer.log_every", "a/Rests.every", "Rests.every"}
    assert interval("a/Rests.every", 500).interval == "a/Rests.every"
    with pytest.raises(ConfigurationError, match=r"`a/Rests.every` is 10"):
        Settings(**PLAIN, hooks=[scoped], chunk_steps=20)


def test_a_line_of_an_interval_is_tried_on_the_hook_that_it_is_of():
    with gin.config_scope("a"):
        scoped = Rests(10)
    settings = Settings(**PLAIN, hooks=[scoped, Rests(20)])
    changed = _changes(interval("a/Rests.every", 500), settings)
    assert [hook.every for hook in changed["hooks"]] == [500, 20]
    assert (scoped.every, settings.hooks[0]) == (10, scoped)  # the diagnosed run stays unchanged
    assert _changes(setting("log_every", 50), settings)["log_every"] == 50


def test_a_line_says_what_it_did():
    dear = Remedy("x = 1", caution="but dear")
    assert tried_text(Tried(dear, 100.0, 104.0)).strip() == (
        "x = 1    # tried, and it doesn't help: 1.04 times as many examples a second (but dear)"
    )
    assert tried_text(Tried(setting("log_every", 7), 100.0, 210.0)).strip() == (
        "Trainer.log_every = 7    # tried, 2.10 times as many examples a second"
    )
    assert setting("log_every", 7).interval == "Trainer.log_every"
    assert setting("chunk_steps", 7).interval == ""


def test_parts_are_what_is_slower_with_them():
    found = Measured(
        real=10.0, waited=2.0, launch=0.5, forward=1.0, both=3.0, sent={"d": 4.0, "g": 4.5}, whole=5.5,
        alone=[1.0, 1.5, 1.0],
    )  # fmt: skip
    times = split(found, {"d": 100, "g": 10}, {"Trainer.log_every": 2.0})
    assert times.step == 12.0
    assert times.explained == 1.0
    assert (times.parts[WAIT], times.parts[BESIDE], times.parts[HOST]) == (2.0, 2.0, 2.5)
    assert (times.parts[SKEW], times.parts[UPDATE]) == (0.5, 1.0)
    assert times.parts[FORWARD] + times.parts[BACKWARD] + times.parts[SKEW] == 3.0
    assert [(each.phase, each.seconds, each.bandwidth) for each in times.crossings] == [
        ("d", 1.0, 100.0),
        ("g", 0.5, 20.0),
    ]
    assert times.with_numbers([2 * x for x in times.numbers()]).numbers() == [2 * x for x in times.numbers()]


def test_no_part_is_less_than_nothing_where_programs_seem_slower_that_do_less():
    found = Measured(real=1.0, waited=0.5, launch=0.1, forward=3.0, both=2.0, sent={"d": 1.0}, whole=1.5)
    times = split(found, {"d": 100})
    assert min(times.parts.values()) >= 0.0
    assert times.parts[WAIT] == 0.0  # steps on one batch were no faster
    assert times.crossings == [Crossing("d", 100, 0.0)]
    assert times.crossings[0].bandwidth is None


def test_efficiency_is_of_one_device_with_the_whole_batch_or_its_share():
    def point(replicas, size, seconds):
        return Point(Scale(replicas, size), Times(seconds, seconds / 2, {}, {}), {})

    measured = [point(1, 64, 4.0), point(1, 32, 2.0), point(2, 64, 4.0)]
    assert strong(measured[2], measured, shared=True) == (
        1.0,
        1.0,
    )  # as fast as one device with all: the possible maximum
    assert strong(measured[2], measured, shared=False) == (0.5, 0.5)
    assert weak(measured[2], measured, shared=False) == (0.5, 0.5)
    assert weak(measured[2], measured, shared=True) == (1.0, 1.0)
    assert strong(measured[0], measured, shared=True) is None
    assert strong(measured[2], measured[1:], shared=True) is None


def test_the_most_memory_is_that_of_the_step_alone(monkeypatch):
    called = []
    monkeypatch.setattr(points, "reset_peak_memory", lambda: called.append("reset"))
    monkeypatch.setattr(points, "peak_memory", lambda: called.append("peak") or {"process": 7})
    trainer = SimpleNamespace(
        settings=Settings(**PLAIN), train_step=SimpleNamespace(exchange=SimpleNamespace(replicas=2))
    )
    bench = SimpleNamespace(
        trainer=trainer, synthetic=lambda: called.append("step"), times=lambda hooks: called.append("parts")
    )
    point = points.measured(bench)
    assert called == ["reset", "step", "peak", "parts"]
    assert (point.scale, point.memory) == ((2, 64), {"process": 7})


def test_batches_that_replicas_and_microbatches_can_not_share_are_left_out():
    assert scales(Scale(3, 12), 2) == [(1, 12), (2, 12), (1, 4), (2, 8), (3, 12)]
    assert scales(Scale(3, 12), 4) == [(1, 12), (1, 4), (2, 8), (3, 12)]
