"""Asynchronous training and local steps refuse unsuitable tasks and optimizers before the first step."""

import dataclasses
from types import SimpleNamespace

import pytest
import tensorflow as tf

from core import layers
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import (
    adam,
    adamw,
    cautious,
    chain,
    clip_by_global_norm,
    ema,
    lookahead,
    reduce_on_plateau,
    sam,
    schedule_free_adamw,
    sgd,
    soap,
)
from core.parallel.local_steps.backend import check_local_steps
from core.parallel.parameter_server import ServedStrategy
from core.parallel.parameter_server.backend import check_served
from core.task import ONE_DEVICE, Compute, Task, Update, when_batch_at_least
from core.testing import assemble, on_virtual_cpus, on_virtual_mesh
from tests.toys import Line


class Net(Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(1.0)


class Mine(Task):
    def __init__(self, *phases, one_device=()):
        super().__init__()
        self.one_device, self._phases = one_device, phases

    def phases(self):
        return list(self._phases)


def update(optimizer):
    return Update("net", loss=lambda batch, rng: None, trains=Net(), optimizer=optimizer)


def check(*phases, divide=False, placements={}, one_device=(), own=()):  # noqa: B006
    strategy = SimpleNamespace(divide_by_staleness=divide)
    check_served(strategy, Mine(*phases, one_device=own), phases, placements=placements, one_device=one_device)


def test_served_task_that_fits_is_not_refused():
    check(update(adamw(1e-3)))
    check(update(chain(sgd(0.1, momentum=0.9), ema(0.9))), divide=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"placements": {"net": ONE_DEVICE}}, "`Experiment.placements` places `net`"),
        ({"one_device": ["net"]}, "`Experiment.one_device` names `net`"),
        ({"own": ("net",)}, "`Mine.one_device` names `net`"),
    ],
)
def test_places_are_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        check(update(sgd(0.1)), **arguments)


def test_phase_of_one_device_is_refused():
    apart = dataclasses.replace(update(sgd(0.1)), placement=ONE_DEVICE)
    with pytest.raises(ConfigurationError, match=r"`net` of `Mine` has `placement=ONE_DEVICE`\. By parameter servers"):
        check(apart)


def test_history_is_refused():
    pool = Compute("pool", fn=lambda batch, rng: ({}, {}), state=Net())
    with pytest.raises(ConfigurationError, match=r"phase `pool` of `Mine` keeps history \(`Compute\(state=...\)`\)"):
        check(pool, update(sgd(0.1)))


@pytest.mark.parametrize("optimizer", [adamw(1e-3), chain(clip_by_global_norm(1.0), sgd(0.1))])
def test_a_rule_that_is_not_linear_is_not_divided(optimizer):
    with pytest.raises(ConfigurationError, match=r"the optimizer of phase `net` .* isn't linear"):
        check(update(optimizer), divide=True)


class Gathering(Line):
    def phases(self):
        return [dataclasses.replace(phase, mixes_rows=True) for phase in super().phases()]


class Remembering(Line):
    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.seen = Seen()

    def phases(self):
        count = lambda batch, rng: ({}, {self.seen.count.ref(): self.seen.count + 1.0})  # noqa: E731
        return [Compute("history", count, state=self.seen), *super().phases()]


class Seen(Module):
    def __init__(self):
        super().__init__()
        self.count = tf.Variable(0.0, trainable=False, name="count")


class OnOneDevice(Line):
    one_device = ("net",)

    def phases(self):
        return [dataclasses.replace(phase, placement=ONE_DEVICE) for phase in super().phases()]


@pytest.mark.parametrize(
    ("task", "placements", "says"),
    [
        (Gathering, {}, "phase `net` says `mixes_rows=True`.*`sync=True`.*`all_rows`"),
        (Remembering, {}, r"phase `history` keeps history \(`Compute\(state=...\)`\)"),
        (OnOneDevice, {}, "`task/net/b`, `task/net/w`.* live on one device"),
        (
            Line,
            {"net": ONE_DEVICE},
            "phase `net` runs on one device.*`Experiment.placements = {'net': @on_every_replica",
        ),
        (Line, {"net": when_batch_at_least(32)}, "phase `net` runs on one device.*`when_batch_at_least`"),
    ],
)
def test_phases_that_need_all_replicas_are_refused(task, placements, says):
    assembly = assemble(task, on_virtual_cpus(2), placements=placements)
    with pytest.raises(ConfigurationError, match=says):
        check_local_steps(assembly, global_batch_size=16)
    if task is not OnOneDevice:  # whose one replica has no other place
        check_local_steps(assemble(task, on_virtual_cpus(1), placements=placements), global_batch_size=16)


def test_a_mesh_is_refused():
    with pytest.raises(ConfigurationError, match=r"`Experiment\.strategy` is a mesh, which is one"):
        check_local_steps(assemble(Line, on_virtual_mesh(2, 1)), global_batch_size=16)


def test_servers_are_refused():
    assembly = dataclasses.replace(assemble(Line, on_virtual_cpus(1)), strategy=object.__new__(ServedStrategy))
    with pytest.raises(ConfigurationError, match=r"`Trainer\.local_steps` is for replicas .* `@parameter_server\(\)`"):
        check_local_steps(assembly, global_batch_size=16)


def test_outer_optimizer_that_reads_the_loss_is_refused():
    rule = chain(sgd(0.9), reduce_on_plateau())
    with pytest.raises(ConfigurationError, match=r"`Trainer\.outer` has `reduce_on_plateau`, which reads the loss"):
        check_local_steps(assemble(Line, on_virtual_cpus(1)), global_batch_size=16, outer=rule)


class Wide(Line):
    """A task whose slots are large enough to be narrowed."""

    rule = adamw(0.01, slots="int8")

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net = layers.Linear(3, 2000, rng=rng)

    def phases(self):
        return [dataclasses.replace(phase, trains=self.net, optimizer=self.rule) for phase in super().phases()]


class WideInHalves(Wide):
    rule = adamw(0.01, slots="bfloat16")


@pytest.mark.parametrize("replicas", [1, 2])
def test_codes_are_refused_by_local_steps_but_not_bfloat16(replicas):
    strategy = on_virtual_cpus(replicas)
    with pytest.raises(ConfigurationError, match=r"phase `net` stores `adamw/m/w` in 8-bit codes .*`slots=.bfloat16.`"):
        check_local_steps(assemble(Wide, strategy), global_batch_size=16)
    check_local_steps(assemble(WideInHalves, strategy), global_batch_size=16)


class InEigenvectors(Wide):
    rule = cautious(soap(0.01))


def test_bases_are_refused_by_local_steps():
    with pytest.raises(ConfigurationError, match=r"phase `net` \(`soap`\) stores a basis .* `cautious/soap/basis_0/w`"):
        check_local_steps(assemble(InEigenvectors, on_virtual_cpus(1)), global_batch_size=16)


@pytest.mark.parametrize("task", [Wide, WideInHalves])
def test_narrow_slots_are_refused_on_a_mesh(task):
    with pytest.raises(ConfigurationError, match=r"stores `adamw/m/w` in \w+ \(`slots`\), whose rounding a mesh can't"):
        assemble(task, on_virtual_mesh(2, 1))


@pytest.mark.parametrize("rule", [chain(sgd(0.9), ema(0.9)), lookahead(sgd(0.9)), sam(sgd(0.9))])
def test_outer_optimizer_with_an_unread_copy_of_the_weights_is_refused(rule):
    with pytest.raises(ConfigurationError, match=r"`Trainer\.outer` has `(ema|lookahead|sam)`, which keeps a copy"):
        check_local_steps(assemble(Line, on_virtual_cpus(1)), global_batch_size=16, outer=rule)


@pytest.mark.parametrize("rule", [lookahead(adam(0.01)), schedule_free_adamw(0.01), sam(sgd(0.1))])
def test_a_rule_that_would_undo_what_an_outer_one_does_is_refused_beside_it(rule):
    class Ruled(Line):
        def phases(self):
            return [dataclasses.replace(phase, optimizer=rule) for phase in super().phases()]

    assembly = assemble(Ruled, on_virtual_cpus(1))
    with pytest.raises(ConfigurationError, match=r"phase `net` trains by `[a-z_]+`, which sets the weights by a copy"):
        check_local_steps(assembly, global_batch_size=16, outer=sgd(0.9))
    check_local_steps(assembly, global_batch_size=16)


def test_averages_of_the_weights_work_with_an_outer_optimizer():
    class Averaging(Line):
        def phases(self):
            return [dataclasses.replace(phase, optimizer=chain(adamw(0.01), ema(0.9))) for phase in super().phases()]

    check_local_steps(assemble(Averaging, on_virtual_cpus(1)), global_batch_size=16, outer=sgd(0.9))
