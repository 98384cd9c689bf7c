"""The search picks what is faster by more than the noise and computes the same, and explains the rest."""

import dataclasses
import itertools

import pytest

from core.errors import ConfigurationError, NotFiniteError, PeerLostError, PreemptedError
from core.task import EVERY_REPLICA, ONE_DEVICE, when_batch_at_least
from trainers.performance.tune import contest as contests
from trainers.performance.tune.contest import FEWEST, PAIRS, Outcome, contest
from trainers.performance.tune.proposals import Case, Choice, calls, calls_first, chunks, compiles, microbatches, places
from trainers.performance.tune.search import CHOSEN, FAILED, NOT_TRIED, SEARCH_SECONDS, SLOWER, VOID, Search
from trainers.performance.tune.tables import as_json, table, winners
from trainers.settings import Settings

AS_CONFIGURED = Choice()
SETTINGS = Settings(steps=1000, global_batch_size=32, log_every=100, evaluate_every=500, checkpoint_every=500)
CASE = Case(
    SETTINGS,
    50,
    4096,
    1,
    "on replicas",
    True,
    ["net"],
    [],
    {"net": EVERY_REPLICA},
    {},
    cut=False,
    seconds=1e-4,
    waits=0.0,
)


MADE = {}  # settings by what they say: each is checked once


@pytest.fixture(autouse=True)
def _remembering(monkeypatch):
    """These trials hold nothing, and a full collection of a test runner's objects is slow."""
    monkeypatch.setattr("trainers.performance.tune.search.forget", lambda: None)


class Machine:
    """A machine with its clock; a step takes its settings' time, multiplied by the moment's factor."""

    def __init__(self, seconds, noise=(1.0,), figures=lambda settings: {"loss": 1.0}, waits=0.0, unit=1e-3):
        self.unit, self.seconds, self.noise, self.figures_of = unit, seconds, itertools.cycle(noise), figures
        self.waits, self.now, self.made = waits, 0.0, []

    def trial(self, choice=AS_CONFIGURED):
        self.made.append(dict(choice.settings))
        return Trial(self, {**dataclasses.asdict(SETTINGS), **choice.settings})

    def clock(self):
        return self.now


class Trial:
    traced = 1.0

    def __init__(self, machine, settings):
        self.machine, self.settings = machine, settings
        self.seconds_a_step, self.waits = machine.unit * machine.seconds(settings), machine.waits

    def figures(self, steps):
        return self.machine.figures_of(self.settings)

    def step(self):
        self.machine.now += 0.25
        return self.seconds_a_step * next(self.machine.noise)

    def case(self, *, seconds, waits, cut):
        settings = {field.name: self.settings[field.name] for field in dataclasses.fields(Settings)}
        if (key := repr(settings)) not in MADE:
            MADE[key] = Settings(**settings)
        return dataclasses.replace(CASE, settings=MADE[key], seconds=seconds, waits=waits, cut=cut)


def search(machine, **settings):
    found = Search(machine.trial(), machine.trial, compared_steps=20, clock=machine.clock, **settings)
    found.run()
    return found


def verdicts(found):
    return {(row.setting, row.shown): row.verdict for row in found.rows}


def test_faster_setting_is_chosen_and_the_next_one_is_tried_on_top_of_it():
    def seconds(settings):
        return (1.0 if settings["compile"] == "xla" else 2.0) + (0.5 if settings["chunk_steps"] == 100 else 1.0)

    machine = Machine(seconds)
    found = search(machine)
    assert found.choice.lines == ['Trainer.compile = "xla"', "Trainer.chunk_steps = 100"]
    assert found.total.times_as_fast == pytest.approx(2.0)
    xla, apart = {"compile": "xla"}, {"compile": {"net": "xla"}}
    assert machine.made[1:4] == [xla, apart, {**xla, "chunk_steps": 10}]
    assert verdicts(found)["chunk_steps", "10"] == SLOWER
    assert "2.00 ± 0 % times as fast" in winners(found)
    assert table(found).row_count == 1 + len(found.rows)
    assert as_json(found, complete=True)["lines"] == found.choice.lines


def test_nothing_is_chosen_where_a_machine_is_only_busy():
    """An equally fast setting looks up to 30 % faster or slower, from turn to turn."""
    found = search(Machine(lambda settings: 1.0, noise=(1.0, 1.3, 0.9, 1.2, 1.0, 0.8, 1.1)))
    assert not found.choice.changes
    assert found.total is None
    assert "leave it as it is" in winners(found)


def test_a_gain_of_less_than_the_noise_is_no_gain():
    assert not Outcome([1.05, 0.8, 1.3, 1.04, 1.2], 1.0).faster
    assert Outcome([1.05, 1.06, 1.04, 1.05, 1.2], 1.0).faster
    assert not Outcome([1.02, 1.02, 1.02], 1.0).faster
    assert Outcome([1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 0.9], 1.0).faster
    assert not Outcome([1.2, 1.2, 1.2, 1.2, 1.2, 0.9, 0.9], 1.0).faster
    assert not Outcome([1.2, 1.2, 0.9], 1.0).faster


def test_another_loss_makes_a_row_void_and_it_is_never_timed():
    machine = Machine(
        lambda settings: 1.0 if settings["compile"] == "xla" else 2.0,
        figures=lambda settings: {"loss": 1.0 + 2e-4 * (settings["compile"] == "xla"), "accuracy": 0.5},
    )
    found = search(machine)
    row, *_ = found.rows
    assert (row.verdict, row.outcome) == (VOID, None)
    assert row.why == "`loss` is 1.0002 after 20 steps, and was 1"
    assert "compile" not in found.choice.settings


def test_figures_that_differ_in_their_last_bits_are_the_same():
    machine = Machine(
        lambda settings: 1.0 if settings["compile"] == "xla" else 2.0,
        figures=lambda settings: {"loss": 1.0 + 5e-5 * (settings["compile"] == "xla")},
    )
    assert search(machine).choice.lines == ['Trainer.compile = "xla"']


@pytest.mark.parametrize(("loss", "verdict"), [(1.005, CHOSEN), (1.01, VOID)])
def test_rounding_of_a_narrow_phase_is_the_same(loss, verdict):
    machine = Machine(
        lambda settings: 1.0 if settings["compile"] == "xla" else 2.0,
        figures=lambda settings: {"loss": loss if settings["compile"] == "xla" else 1.0},
    )
    assert search(machine, narrow=True).rows[0].verdict == verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConfigurationError("XLA can't compile `Where`"), FAILED),
        (MemoryError(), FAILED),
        (NotFiniteError("the loss is nan"), VOID),
    ],
)
def test_failed_trial_is_a_row_with_its_reason_and_the_search_continues(error, verdict):
    def seconds(settings):
        if settings["compile"] == "xla":
            raise error
        return 1.0 if settings["chunk_steps"] == 100 else 2.0

    found = search(Machine(seconds))
    assert found.rows[0].verdict == verdict
    assert str(error) in found.rows[0].why
    assert found.rows[0].why
    assert found.choice.lines == ["Trainer.chunk_steps = 100"]


@pytest.mark.parametrize("error", [PeerLostError("a worker"), PreemptedError("SIGTERM")])
def test_a_lost_worker_or_a_signal_is_no_row(error):
    def seconds(settings):
        if settings["compile"] == "xla":
            raise error
        return 1.0

    with pytest.raises(type(error)):
        search(Machine(seconds))


def test_after_its_time_no_trial_begins():
    class Slow(Machine):
        def trial(self, choice=AS_CONFIGURED):
            self.now += SEARCH_SECONDS if choice.changes else 0.0
            return super().trial(choice)

    machine = Slow(lambda settings: 1.0)
    found = search(machine)
    assert len(machine.made) == 2
    assert {row.verdict for row in found.rows[1:]} == {NOT_TRIED}
    assert "120 s were over" in found.rows[1].why


def test_a_cliff_is_seen_by_one_step():
    machine = Machine(lambda settings: 5.0 if settings["compile"] == "xla" else 0.5, unit=1.0)
    found = search(machine)
    assert found.rows[0].verdict == SLOWER
    assert found.rows[0].outcome.times_as_fast == pytest.approx(0.1)
    assert len(found.rows[0].outcome.ratios) == 1


def test_settings_that_gain_nothing_together_are_not_recommended():
    class Fading(Machine):
        def trial(self, choice=AS_CONFIGURED):
            trial = super().trial(choice)
            if choice.changes:
                steps = itertools.chain([0.5e-3] * PAIRS, itertools.repeat(1e-3))
                trial.step = lambda: next(steps)
            return trial

    found = search(Fading(lambda settings: 1.0))
    assert CHOSEN in verdicts(found).values()
    assert not found.choice.changes
    assert "together they gain nothing" in winners(found)


def test_contest_of_a_clearly_slower_or_too_slow_one_has_the_fewest_pairs(monkeypatch):
    assert len(contest(lambda: 1.0, lambda: 2.0).ratios) == FEWEST
    assert len(contest(lambda: 1.0, lambda: 1.0).ratios) == PAIRS
    monkeypatch.setattr(contests, "SECONDS", 5.0)
    assert len(contest(lambda: 1.0, lambda: 1.0, clock=itertools.count(0, 10).__next__).ratios) == FEWEST


def shown(proposals, *, faster=()):
    """Returns the proposal if these values are faster."""
    found = []
    try:
        proposal = next(proposals)
        while True:
            found.append(proposal.shown)
            proposal = proposals.send(proposal.shown in faster)
    except StopIteration:
        return found


def case(**changes):
    own = {name: changes.pop(name) for name in list(changes) if name in {f.name for f in dataclasses.fields(Case)}}
    return dataclasses.replace(CASE, settings=dataclasses.replace(SETTINGS, **changes), **own)


def test_chunks_divide_all_intervals_and_hold_whole_rounds():
    assert shown(chunks(CASE)) == ["10", "100"]
    assert shown(chunks(case(log_every=30))) == ["10"]  # of 10, which 30 and 500 share
    assert shown(chunks(case(log_every=48, evaluate_every=None, checkpoint_every=None, local_steps=4, steps=960))) == [
        "8",
        "48",
    ]
    assert shown(chunks(case(step_bytes=2**20))) == ["10"]  # 100 of them would take more than they may
    assert shown(chunks(case(cut=True))) == ["any"]
    assert shown(chunks(case(seconds=0.003))) == ["any"]  # 50 of them take so long that calls don't count


def test_microbatches_are_halved_while_that_helps_and_else_doubled():
    assert shown(microbatches(case(microbatches=8)), faster=["4", "2"]) == ["4", "2", "1"]
    assert shown(microbatches(case(microbatches=8))) == ["4", "16"]
    assert shown(microbatches(CASE), faster=["2"]) == ["2", "4"]
    assert shown(microbatches(case(global_batch_size=33))) == []


def test_microbatches_of_mixed_rows_are_left_as_they_are():
    (proposal,) = microbatches(case(mixing=["d"]))
    assert "phase `d` mixes the rows" in proposal.why


def test_phases_change_places_on_several_replicas_alone():
    placements = {"d": EVERY_REPLICA, "g": ONE_DEVICE}
    assert shown(places(case(placements=placements))) == []
    found = shown(places(case(placements=placements, replicas=2)), faster=['{"d": @on_one_device()}'])
    assert found == ['{"d": @on_one_device()}', '{"d": @on_one_device(), "g": @on_every_replica()}']


def test_placed_phase_stays_there_while_another_one_changes_its_place():
    placed = {"g": when_batch_at_least(64)}
    two = case(placements={"d": EVERY_REPLICA, **placed}, placed=placed, replicas=2)
    assert shown(places(two)) == [
        '{"g": @on_one_device(), "d": @on_one_device()}',
        '{"g": @on_every_replica()}',
    ]


def test_more_calls_are_proposed_where_steps_wait():
    assert shown(calls(case(waits=0.01))) == ["any"]
    assert shown(calls(case(waits=0.1)), faster=["2", "4"]) == ["2", "4", "8"]
    assert shown(calls_first(case(waits=0.1))) == []
    assert shown(calls_first(case(waits=0.5))) == ["2"]


def test_all_is_compiled_or_nothing_and_then_update_by_update():
    assert shown(compiles(CASE)) == ['"xla"', '{"net": "xla"}']
    assert shown(compiles(case(compile="xla"))) == ['"off"', '{"net": "xla"}']
    assert shown(compiles(case(replicas=2))) == ['"xla"']
    two = case(updates=["d", "g"], replicas=2)
    assert shown(compiles(two)) == ['"xla"', '{"d": "xla"}', '{"g": "xla"}']
    found = shown(compiles(two), faster=['{"d": "xla"}'])
    assert found == ['"xla"', '{"d": "xla"}', '{"d": "xla", "g": "xla"}']
    assert shown(compiles(case(compiled=False))) == ["any"]
