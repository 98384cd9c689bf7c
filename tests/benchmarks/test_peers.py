"""`benchmarks.peers`: its tables, its rounds, and hand-written programs that train as Tapeloop does."""

import functools
import importlib
import math

import numpy as np
import pytest

from benchmarks import environments
from benchmarks.peers import __main__ as command
from benchmarks.peers import laid_out, others, rounds
from benchmarks.peers.programs import ours, work
from benchmarks.peers.programs.work import Work, measured
from benchmarks.peers.roster import AUTO, DEFAULTS, PEERS, TARGETS, Target
from benchmarks.peers.table import peers_table, ratio, rows_of, targets_table
from benchmarks.peers.works import TOLERANCE, WORKS, coloured, gin_files, levels, tokens, two_domains
from trainers.loop.speed import figures_of
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir


def found(loss, *rates):
    return {"loss": loss, "rates": list(rates)}


def test_medians_are_over_all_rounds_and_ratios_are_of_medians():
    rows = rows_of({DEFAULTS: [found(2.0, 10.0, 30.0), found(2.0, 20.0)], "jax-scan": [found(2.0, 40.0)]})
    assert rows[DEFAULTS].median == 20.0
    assert rows[DEFAULTS].low < 20.0 < rows[DEFAULTS].high
    assert ratio(rows, DEFAULTS, ["jax-scan"]) == (0.5, "jax-scan")


def test_fastest_valid_peer_of_several_counts():
    rows = rows_of(
        {
            AUTO: [found(2.0, 30.0)],
            "jax-step": [found(2.0, 10.0)],
            "jax-scan": [found(2.0, 20.0)],
            "jax-indices": [found(2.0 * (1.0 + 2 * TOLERANCE), 1000.0)],
        }
    )
    assert ratio(rows, AUTO, ["jax-step", "jax-scan", "jax-indices"]) == (1.5, "jax-scan")
    assert rows["jax-indices"].wrong.startswith("void: its loss is 2.004, not 2")
    assert ratio(rows, DEFAULTS, ["jax-step"]) is None
    assert ratio(rows, AUTO, ["jax-indices"]) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf, 2.1])
def test_other_loss_in_any_round_voids_the_row(loss):
    rows = rows_of({DEFAULTS: [found(2.0, 10.0)] * 3, "jax-scan": [found(2.0, 10.0), found(loss, 10.0)]})
    assert rows["jax-scan"].wrong.startswith("void")
    assert not rows[DEFAULTS].wrong


def test_without_tapeloop_losses_are_compared_with_each_other():
    rows = rows_of({"jax-step": [found(2.0, 1.0)], "jax-scan": [found(2.0, 1.0)], "hand-step": [found(3.0, 1.0)]})
    assert [name for name, row in rows.items() if row.wrong] == ["hand-step"]


def test_missing_peer_is_a_row_that_says_so():
    rows = rows_of({DEFAULTS: [found(2.0, 1.0)], "fabric-eager": [{"failed": rounds.NOT_INSTALLED}], "jax-step": []})
    _, cells = peers_table(rows)
    assert [row[2] for row in cells] == ["1", "isn't installed", "not run"]
    _, (row,) = targets_table(rows, [Target("Fabric", ("fabric-eager",), 6.0)])
    assert row == ["Fabric", "–", "6", "–", "–"]


def test_best_of_fewer_peers_than_asked_for_says_so():
    rows = rows_of({AUTO: [found(2.0, 30.0)], "jax-step": [found(2.0, 10.0)], "jax-scan": [found(3.0, 90.0)]})
    _, (row,) = targets_table(rows, [Target("JAX", ("jax-step", "jax-scan", "jax-indices"), 1.0)])
    assert row == ["JAX", "`jax-step`, of the 1 of 2 that ran", "1", "3.00", "–"]


def test_results_of_other_peers_stay_on_the_same_machine():
    before = {"machine": command.machine(), "found": {"jax-step": [1], "jax-scan": [2], "a peer of old": [3]}}
    assert command.of_others(before, ["jax-scan"]) == {"jax-step": [1]}
    assert command.of_others(None, ["jax-scan"]) == {}
    before["machine"]["processor"] = "Z80"
    assert command.of_others(before, ["jax-scan"]) == {}


def test_first_steps_are_shown_in_seconds_without_a_loss():
    rows = rows_of({"start-fit": [{"rates": [0.1]}], DEFAULTS: [{"rates": [0.25]}, {"rates": [0.5]}]})
    _, (keras, defaults) = peers_table(rows, first_step=True)
    assert keras[2] == "10"
    assert keras[5] == "3.75"
    assert defaults[3] == "2.11 to 3.64"


def test_targets_name_peers_that_exist():
    assert set(TARGETS) == set(WORKS)
    for name, targets in TARGETS.items():
        for target in targets:
            there = [peer for peer in target.against if name in PEERS[peer].works]
            assert there, (name, target.what)


def test_rounds_alternate_in_direction_and_skip_what_failed(tmp_path, monkeypatch):
    called = []

    def run(name, folder, seconds):
        called.append(name)
        return {"failed": "failed: no"} if name == "b" else found(1.0, 1.0)

    kept = {}
    monkeypatch.setattr(others, "share_of_others", lambda *_: 0.0)
    rounds.interleaved(["a", "b", "c"], tmp_path, rounds=3, seconds=1.0, found=kept, say=len, run=run)
    assert called == ["a", "b", "c", "c", "a", "a", "c"]
    assert [len(kept[name]) for name in "abc"] == [3, 1, 3]


def test_share_of_others_is_what_the_programs_left():
    before, after = others.Seen(0.0, 100.0, 50.0), others.Seen(10.0, 118.0, 60.0)
    assert others.share_of_others(before, after, cores=2) == pytest.approx(0.4)
    assert others.share_of_others(before, others.Seen(10.0, 108.0, 60.0), cores=2) == 0.0  # ticks are coarse
    assert others.seen().all_busy > 0.0


def test_least_disturbed_of_a_few_runs_counts(monkeypatch):
    shares, runs = iter([0.5, 0.2, 0.3]), iter("abc")
    monkeypatch.setattr(others, "share_of_others", lambda *_: next(shares))
    assert others.undisturbed(lambda: {"run": next(runs)}, at_most=0.1, tries=3) == {"run": "b", "others": 0.2}
    shares, runs = iter([0.05]), iter("a")
    assert others.undisturbed(lambda: {"run": next(runs)}, at_most=0.1, tries=3) == {"run": "a", "others": 0.05}


def test_missing_environment_and_failing_program_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    assert rounds.run_once("jax-scan", tmp_path, 1.0) == {"failed": rounds.NOT_INSTALLED}
    assert rounds.run_command(["sh", "-c", "echo why >&2; exit 3"])["failed"] == "failed: exit code 3, why"
    assert rounds.run_command(["sh", "-c", "echo noise; echo '{\"loss\": 1.0}'"]) == {"loss": 1.0}


def test_peers_flag_takes_families_and_refuses_strangers(capsys):
    flags = command.parse(["--peers=jax,hand-step", "--works=mlp"])
    assert flags.peers == ["hand-step", "jax-step", "jax-scan", "jax-indices", "jax-gather"]
    assert flags.works == ["mlp"]
    with pytest.raises(SystemExit):
        command.parse(["--peers=flax"])
    assert "`--peers` names `flax`" in capsys.readouterr().err


def test_segments_of_ours_last_long_enough():
    assert ours.rates_of([(10, 0.0), (20, 0.3), (30, 0.6), (40, 0.9), (50, 1.2)]) == pytest.approx([100 / 3, 100 / 3])
    assert ours.rates_of([(10, 0.0), (20, 0.1)]) == pytest.approx([100])


SMALL = {
    "conv": ["Trainer.global_batch_size = 8"],
    "transformer": ["LanguageModel.context = 16", "LanguageModel.size = 32", "LanguageModel.num_layers = 2"],
    "cyclegan": [
        *("CycleGan.image_shape = [16, 16, 3]", "CycleGan.width = 8", "CycleGan.blocks = 1"),
        "CycleGan.discriminator_channels = [4, 8]",
    ],
}


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A work of few steps and examples, and a small network."""
    few = {
        "mlp": lambda: levels(90, 784),
        "softmax": lambda: levels(90, 784),
        "conv": lambda: coloured(20, 32),
        "transformer": lambda: tokens(40, 16, 256),
        "dcgan": lambda: coloured(90, 32),
        "cyclegan": lambda: two_domains(20, 16),
    }
    for name, data in few.items():
        monkeypatch.setitem(WORKS, name, WORKS[name]._replace(data=data, chunk=2, log=2, check=4, order=8))

    def smaller(name):
        file = tmp_path / "small.gin"
        file.write_text("\n".join(SMALL.get(name, [])))
        return [*gin_files(name), file]

    monkeypatch.setattr(laid_out, "gin_files", smaller)
    monkeypatch.setattr(work, "SEGMENT_SECONDS", 0.0)


def ours_on(folder, scratch, monkeypatch):
    """Returns the mean loss of the trainer's third and fourth step."""
    taken = {}

    def experiment_of(*_):
        taken["experiment"] = real()
        return taken["experiment"]

    real = laid_out.Experiment
    monkeypatch.setattr(laid_out, "Experiment", experiment_of)
    laid_out.lay_out(folder.name, folder)
    work = Work(folder)
    settings = Settings(steps=10, global_batch_size=work.batch, chunk_steps=2, log_every=None, checkpoint_every=None)
    trainer = Trainer(taken["experiment"], Workdir(scratch), settings)
    chunks = trainer.input.chunks_from(0)
    trainer.take_steps(next(chunks), 2, run=trainer.chunk)
    trainer.progress.take_sums()
    trainer.take_steps(next(chunks), 2, run=trainer.chunk)
    return work, figures_of(trainer.progress.take_sums())[WORKS[folder.name].figure]


@pytest.mark.long
@pytest.mark.parametrize("name", ["dcgan", "cyclegan"])
def test_gans_by_hand_train_as_tapeloop_does(name, small, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    work, loss = ours_on(tmp_path / name, tmp_path / "run", monkeypatch)
    by_hand = importlib.import_module("benchmarks.peers.programs.by_hand")
    sizes = by_hand.gans.Sizes(size=16, width=8, blocks=1, d_channels=(4, 8))
    monkeypatch.setattr(by_hand.gans, "SIZES", sizes)
    advance = by_hand.looped(work, jit=None)
    assert measured(work, advance, seconds=0.0)["loss"] == pytest.approx(loss, rel=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["softmax", "mlp", "conv", "transformer"])
def test_by_hand_and_jax_train_as_tapeloop_does(name, small, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    work, loss = ours_on(tmp_path / name, tmp_path / "run", monkeypatch)
    examples, *_ = map(len, WORKS[name].data().values())
    assert work.order.shape == (8, work.batch)
    assert np.unique(work.order).tolist() == list(range(examples))  # the order of training visits all examples
    by_hand = importlib.import_module("benchmarks.peers.programs.by_hand")
    in_jax = importlib.import_module("benchmarks.peers.programs.in_jax")
    for nets in ("hand_nets", "jax_nets"):
        module = importlib.import_module(f"benchmarks.peers.programs.{nets}")
        monkeypatch.setitem(module.LOSSES, "transformer", functools.partial(module.transformer, blocks=2))
    advances = [by_hand.looped(work, jit=None), by_hand.handed_indices(work, once=False), in_jax.fed(work)]
    for advance in advances[:: 1 if name != "conv" else 2]:
        assert measured(work, advance, seconds=0.0)["loss"] == pytest.approx(loss, rel=2e-5)


@pytest.mark.long
def test_command_measures_keeps_and_shows(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rounds, "TRIES", 1)  # other tests would count as disturbance
    peers = "hand-step,tapeloop-defaults"
    arguments = ["--works=softmax", f"--peers={peers}", f"--json={tmp_path / 'kept.json'}"]
    assert command.main([*arguments, "--rounds=1", "--seconds=0.1"]) == 0
    first = capsys.readouterr().out
    assert "softmax, round 1 of 1, hand-step (" in first
    assert command.main([*arguments, "--rounds=0"]) == 0
    shown = capsys.readouterr().out
    assert "Tapeloop, its defaults" in shown
    assert first.endswith(shown)
