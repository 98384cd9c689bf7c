"""The scaling model in limits that a reader can check by hand; its pages hold the measurements."""

import doctest
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from benchmarks import pages, running
from benchmarks.chart import Panel, svg
from benchmarks.simulate import fit, here, model, published, report
from benchmarks.simulate import measure as measuring
from benchmarks.simulate.__main__ import MEASURED
from benchmarks.simulate.fit import line, pair
from benchmarks.simulate.model import (
    Job,
    Link,
    Network,
    Servers,
    asynchronous_rate,
    local_step_seconds,
    reduction,
    ring,
    slowest,
    step_seconds,
)
from tests.benchmarks import forks
from tests.commands import CHECKOUT, environment

LINK = Link(latency=0.25, bandwidth=8.0)
FLAT = Network(within=LINK, between=LINK)
JOB = Job(compute=10.0, gradients=16.0)


def test_ring_sends_two_messages_less_one_each_of_an_nth():
    assert ring(1, 16.0, LINK) == 0.0
    assert ring(2, 16.0, LINK) == 2 * (0.25 + 1.0)
    assert ring(4, 16.0, LINK) == 6 * (0.25 + 0.5)
    assert ring(10**6, 16.0, Link(0.0, 8.0)) == pytest.approx(2 * 16 / 8, rel=1e-5)


def test_slowest_of_two_is_one_root_of_pi_above_the_mean():
    assert slowest(1, 0.3) == 1.0
    assert slowest(2, 1.0) == pytest.approx(1 + 1 / math.sqrt(math.pi), abs=0.03)
    assert slowest(1024, 0.1) > slowest(1000, 0.1)


def test_step_is_computing_and_then_the_reduction():
    assert step_seconds(JOB, FLAT, 1) == 10.0
    assert step_seconds(JOB, FLAT, 2) == 12.5
    assert step_seconds(replace(JOB, overlap=0.2), FLAT, 2) == 10.5  # 2 of the 2.5 seconds are hidden
    assert step_seconds(replace(JOB, overlap=1.0), FLAT, 2) == 10.0
    assert step_seconds(replace(JOB, input=20.0), FLAT, 2) == 20.0


def test_machines_reduce_within_before_they_reduce_between():
    network = Network(within=LINK, between=Link(1.0, 1.0), per_machine=4)
    assert reduction(JOB, network, 2) == ring(2, 16.0, LINK)
    assert reduction(JOB, network, 4) == ring(4, 16.0, LINK)
    assert reduction(JOB, network, 8) == ring(4, 16.0, LINK) + ring(2, 16.0, network.between)


def test_a_mesh_sums_activations_and_sends_its_part_of_the_gradients():
    network = Network(within=LINK, between=LINK, per_machine=8)
    cut = replace(JOB, cut=4, sums=3, activations=8.0)
    assert step_seconds(cut, network, 4) == 10.0 + 3 * ring(4, 8.0, LINK)  # one shard each: nothing else to sum
    assert step_seconds(cut, network, 8) == 10.0 + 3 * ring(4, 8.0, LINK) + ring(2, 4.0, LINK)


def test_slow_device_slows_down_all_that_wait():
    free = Network(Link(0.0, math.inf), Link(0.0, math.inf))
    assert step_seconds(JOB, free, 2, slow=5.0) == 5 * step_seconds(JOB, free, 2)
    assert local_step_seconds(JOB, free, 2, local_steps=9, state=16.0, slow=5.0) == 50.0
    servers = Servers(exchange=0.0, locked=0.0)
    assert asynchronous_rate(JOB, servers, 2, slow=5.0) / asynchronous_rate(JOB, servers, 2) == pytest.approx(0.6)


def test_local_steps_are_between_synchronous_ones_and_none_at_all():
    every_step = local_step_seconds(JOB, FLAT, 2, local_steps=1, state=16.0)
    assert every_step == step_seconds(JOB, FLAT, 2)
    assert local_step_seconds(JOB, FLAT, 2, local_steps=10, state=16.0) == 10.0 + 2.5 / 10
    uneven = replace(JOB, spread=0.4)
    gained = local_step_seconds(uneven, FLAT, 2, local_steps=4, state=0.0)
    assert gained - 10.0 - 2 * 0.25 / 4 == pytest.approx((slowest(2, 0.4) - 1) / 2 * 10.0)  # √4 less


def test_servers_take_one_push_at_a_time():
    servers = Servers(exchange=2.0, locked=1.0)
    assert asynchronous_rate(JOB, servers, 1) == 1 / 12
    assert asynchronous_rate(JOB, servers, 6) == 6 / 12
    assert asynchronous_rate(JOB, servers, 1000) == 1.0


def test_fits_find_what_times_were_made_of_and_nothing_below_zero():
    assert line([1, 10, 1000], [2.5, 7.0, 502.0]) == pytest.approx((2.0, 0.5))
    assert line([1, 2, 3], [1.0, 3.0, 5.0])[0] == 0.0
    assert pair([1.0, 0.0], [0.0, 1.0], [3.0, -1.0]) == (3.0, 0.0)


def test_fit_finds_a_machine_in_what_it_would_have_published():
    """Fits rows that the model itself made: no error remains."""
    true = published.Machine(Link(0.0, 2e10), spread=0.03)
    rows = {}
    for name in ("ResNet-50", "VGG-16"):
        job = true.job(name, 64, 100.0)
        rows[name, 64] = (100.0, *(n * 64 / step_seconds(job, true.network(gigabits=10), n) for n in (2, 4, 8)))
    found = published.machine(rows)
    assert found.spread == pytest.approx(0.03)
    assert found.link.bandwidth == pytest.approx(2e10)


def test_published_rates_are_within_a_tenth_of_the_model():
    beyond = {x.what.partition(",")[0] for x in published.checks() if abs(x.error) > 0.105}
    assert beyond == {"AlexNet", "VGG-16"}


def test_fit_finds_processes_in_what_would_have_been_measured():
    true = here.Here(Link(1e-3, 1e9), spread=0.05, product=1e-3)
    points = {measuring.name("unequal", measuring.UNEQUAL): [0.05]}
    for size in (*measuring.FITTED, *measuring.CHECKED, *measuring.CUT):
        points[measuring.name("apart", size)] = [1e-3 * size.products]
        job = Job(1e-3 * size.products, size.gradients, spread=0.0 if size in measuring.FITTED else 0.05)
        points[measuring.name("replicas", size)] = [step_seconds(job, true.network, 2)]
    slower = Link(3e-3, 1e9)  # DTensor's sums are half of the computation, with two messages per sum
    for size in measuring.CUT:  # half of the computation, and two messages per sum
        sums = size.products * (2 * slower.seconds(512 * 1024 / 2) + 2 * slower.seconds(256 * 1024 / 2))
        points[measuring.name("mesh", size)] = [1e-3 * size.products / 2 * slowest(2, 0.05) + sums]
    for how, waited in (("one", 0.009), ("two", 0.002)):
        points[measuring.name(f"{how} asynchronous", measuring.PUSHED)] = [waited]
    assert here.servers({"points": points}) == Servers(exchange=pytest.approx(0.008), locked=0.002)
    found = here.fitted({"points": points})
    assert (found.link.latency, found.link.bandwidth, found.product) == pytest.approx((1e-3, 1e9, 1e-3))
    assert here.mesh_network({"points": points}).within.latency == pytest.approx(3e-3)
    assert [check.error for check in here.checks({"points": points})] == pytest.approx([0.0] * 5)


def test_pages_and_pictures_hold_what_was_measured():
    measured = json.loads(MEASURED.read_text())
    tables, pictures = report.tables(measured), report.pictures(measured)
    texts = [page.read_text() for page in pages.listed()]
    for name in tables:
        assert sum(f"<!-- table: {name} -->" in text for text in texts) == 1, name
    advice = "run `python -m benchmarks.simulate --write`"
    assert all(pages.written(text, tables) == text for text in texts), advice
    for name, picture in pictures.items():
        assert (CHECKOUT / "docs" / "pictures" / name).read_text() == picture, advice


def test_table_takes_its_place_and_no_other():
    page = "a\n<!-- table: x -->\n<!-- end of x -->\nb\n<!-- table: y -->\nold\n<!-- end of y -->\n"
    new = pages.written(page, {"x": pages.table(["h"], [["1"]])})
    assert pages.written(new, {"x": "other\n"}).count("\n") == new.count("\n") - 2
    assert pages.rows_in(new, "x") == [["1"]]
    assert new == "a\n<!-- table: x -->\n\n| h |\n| --- |\n| 1 |\n\n<!-- end of x -->\nb\n" + page.partition("b\n")[2]


def test_picture_has_each_point_where_it_belongs():
    drawn = ElementTree.fromstring(
        svg([Panel("a & b", {"x": [(1, 0.0), (10, 0.5), (100, 1.0)]}, (1, 10, 100), "n")], upright="y")
    )
    circles = drawn.findall(".//{*}circle")
    xs, ys = ([float(circle.attrib[key]) for circle in circles] for key in ("cx", "cy"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2])
    assert ys[0] > ys[2]  # upwards is more


def test_examples_in_docstrings_hold():
    for module in (fit, model):
        failed, tried = doctest.testmod(module)
        assert failed == 0 < tried


def test_help_needs_no_tensorflow():
    run = "runpy.run_module('benchmarks.simulate', run_name='__main__')"
    guarded = f"import runpy, sys; sys.modules['tensorflow'] = None; sys.argv = ['simulate', '--help']; {run}"
    done = subprocess.run(
        [sys.executable, "-c", guarded],
        cwd=CHECKOUT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--measure" in done.stdout


@pytest.mark.long
def test_measuring_resumes_where_it_was_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "subprocess", forks)
    monkeypatch.setattr(measuring, "SECONDS", 0.2)
    monkeypatch.setitem(measuring.HOW, "apart", lambda size: 1.0)
    points = [(how, measuring.Size(1, 0)) for how in ("replicas", "apart")]
    monkeypatch.setattr(measuring, "POINTS", points[:1])
    first = measuring.measure(tmp_path / "m.json", rounds=1)
    monkeypatch.setattr(measuring, "POINTS", points)
    both = measuring.measure(tmp_path / "m.json", rounds=1)
    assert both["machine"]["load_before"] == first["machine"]["load_before"]
    assert list(both["points"]) == [measuring.name(*point) for point in points]
    assert all(0 < value < 60 for [value] in both["points"].values())
    assert both["points"][measuring.name(*points[0])] == first["points"][measuring.name(*points[0])]
