"""`Trainer.memory_budget` chooses microbatches, then recomputation, by estimates; a resumed run keeps the choice."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.errors import ConfigurationError, NoRoomError
from core.layers.recompute import RECOMPUTES
from core.module import Module
from core.optimizers import sgd
from core.task import Loss, Task, Update
from core.testing import on_virtual_cpus
from models.classifiers.mlp import Mlp
from tests.commands import CONFIGS, launch, passed, refused
from trainers.dry_run import budget
from trainers.dry_run.build import DryBuild
from trainers.experiment import Experiment
from trainers.settings import Settings
from trainers.workdir import Workdir

MIB = 2**20
SOURCE = ArraySource({"x": np.zeros([24, 4], "float32")}, name="lab")


class Deep(Task):
    """Two networks in a list of blocks."""

    mixes = False

    def __init__(self, *, rng):
        super().__init__()
        self.net = Module()
        self.net.blocks = [Mlp([4, 4], rng=rng.fold(i)) for i in range(2)]

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1), mixes_rows=self.mixes)]

    def loss(self, batch, rng):
        x = batch["x"]
        for block in self.net.blocks:
            x = block(x)
        return Loss(tf.reduce_sum(tf.square(x - batch["x"]), 1))


class Mixing(Deep):
    mixes = True


def build(task=Deep, text="8 MiB", recompute=(), rows=24, strategy=None, **settings):
    made = Experiment(task=task, train_source=SOURCE, recompute=recompute, strategy=strategy)
    return DryBuild.of(made, Settings(steps=10, global_batch_size=rows, memory_budget=text, **settings))


@pytest.fixture
def needs(monkeypatch):
    """Makes a step of 24 MiB, divided by the microbatches, and by three with recomputation, or by 1.5 of every other.

    Returns the estimates made.
    """
    made = []

    def need(build, patterns, microbatches):
        made.append((str(patterns), microbatches))
        saved = {"[]": 1, "()": 1, "{'net/blocks/*': 'every_other'}": 1.5}.get(str(patterns), 3)
        return int(24 * MIB / saved) // microbatches

    monkeypatch.setattr(budget, "_need", need)
    return made


@pytest.mark.parametrize(
    ("text", "microbatches", "recompute"),
    [("24 MiB", 1, []), ("23.9 MiB", 2, []), ("9MB", 3, []), ("1 MiB", 24, []), ("0.5 MiB", 24, ["net/blocks/*"])],
)
def test_fewest_microbatches_that_fit_are_chosen_before_recomputation(text, microbatches, recompute, needs):
    fit = budget.choose(build(text=text))
    assert (fit.microbatches, list(fit.recompute)) == (microbatches, recompute)
    assert f"{microbatches} microbatch" in fit.line
    assert len(needs) == len(set(needs)) <= 8


def test_batch_whose_rows_are_mixed_stays_whole(needs):
    fit = budget.choose(build(Mixing))
    assert (fit.microbatches, list(fit.recompute)) == (1, ["net/blocks/*"])
    assert "the batch stays whole, because phase `net` mixes rows" in fit.line


def test_bound_values_are_not_chosen(needs):
    with pytest.raises(NoRoomError, match=r"with 2 microbatches and recomputation of net/blocks/0 .*is given"):
        budget.choose(build(text="1 MiB", microbatches=2, recompute=["net/blocks/0"]))
    assert needs == [("['net/blocks/0']", 2)]


def test_budget_that_is_too_small_names_the_smallest_one(needs):
    with pytest.raises(NoRoomError, match=r'hold 341.3 KiB at least.*`Trainer.memory_budget = "1 MiB"` or more'):
        budget.choose(build(text="300 KiB"))


def test_every_other_module_recomputes_if_that_suffices(needs):
    fit = budget.choose(build(Mixing, text="16 MiB"))
    assert (fit.microbatches, fit.recompute) == (1, {"net/blocks/*": "every_other"})
    assert "1 microbatch and recomputation of net/blocks/* (every_other) (the batch stays whole" in fit.line


def test_replicas_share_each_microbatch(needs):
    with pytest.raises(NoRoomError, match=r"with 12 microbatches without recomputation or 12 microbatches and"):
        budget.choose(build(text="300 KiB", strategy=on_virtual_cpus(2)))


@pytest.mark.parametrize("text", ["8", "8 Gib", "0 GiB", "-1 GiB", "nan GiB", "lots", 8])
def test_budget_without_a_meaning_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"`Trainer.memory_budget` is .*; give a positive number with a unit"):
        Settings(steps=1, global_batch_size=1, memory_budget=text)


class Wide(Deep):
    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net.blocks = [Mlp([4, 64, 64, 4], rng=rng.fold(i)) for i in range(4)]


@pytest.mark.long
def test_estimate_falls_with_microbatches_and_recomputation():
    made = build(Wide, rows=4800)
    some = {"net/blocks/*": "every_other"}
    stored, halved, partly, again = (
        budget._need(made, *of) for of in (((), 1), ((), 2), (some, 1), (["net/blocks/*"], 1))
    )
    assert halved < stored
    assert again < partly < stored


@pytest.mark.long
def test_estimate_falls_with_replicas():
    one, two = (build(Wide, rows=4800, strategy=strategy) for strategy in (None, on_virtual_cpus(2)))
    assert budget._need(two, (), 1) < budget._need(one, (), 1)


def test_chosen_modules_recompute(needs, tmp_path):
    made = Experiment(task=Deep, train_source=SOURCE)
    settings = Settings(steps=10, global_batch_size=24, memory_budget="0.5 MiB")
    chosen, announce = budget.fit_budget(made, settings, Workdir(tmp_path))
    assert chosen.microbatches == 24
    assert all(hasattr(type(block), RECOMPUTES) for block in made.task.net.blocks)
    lines = []
    announce(lines.append)
    assert "24 microbatches and recomputation of net/blocks/*" in lines[0]
    assert json.loads((tmp_path / "memory.json").read_text())["recompute"] == ["net/blocks/*"]


FLAGS = [f"--gin_file={CONFIGS / 'digits_mlp.gin'}", "--workdir=run", "--gin_param=Trainer.global_batch_size = 512"]
FLAGS += ["--gin_param=MlpClassifier.sizes = [64, 256, 10]", "--gin_param=Trainer.chunk_steps = 1"]
FLAGS += ["--gin_param=Trainer.evaluate_every = None", "--gin_param=Experiment.eval_source = None"]


@pytest.mark.long
def test_resumed_run_keeps_its_choice(tmp_path):
    def trained(steps, text):
        flags = [f"--gin_param=Trainer.{x}" for x in (f"steps = {steps}", "log_every = 2", f"memory_budget = '{text}'")]
        return passed(*FLAGS, *flags, cwd=tmp_path).stdout

    found = re.search(r"memory: (\d+) microbatch.*a device is expected to hold ", trained(2, "1.3 MiB"))
    assert int(found[1]) > 1
    assert f"memory: {found[1]} microbatches without recomputation, as `memory.json` remembers" in trained(4, "8 GiB")


def of_several(runtime, budget):
    """Returns flags of a run on several devices with this budget."""
    settings = (f"memory_budget = '{budget}'", "steps = 2", "log_every = 2", "global_batch_size = 1024")
    return [*FLAGS, f"--gin_file={CONFIGS / 'runtime' / runtime}.gin", *(f"--gin_param=Trainer.{x}" for x in settings)]


@pytest.mark.long
def test_budget_of_several_workers_chooses(tmp_path):
    done = passed("--workers=2", "--", *of_several("multi_worker", "1 MiB"), cwd=tmp_path, run=launch)
    assert int(re.search(r"memory: (\d+) microbatch", done.stdout)[1]) > 1


@pytest.mark.long
def test_budget_of_a_mesh_chooses_or_is_refused(tmp_path):
    done = passed(*of_several("mesh", "1 MiB"), cwd=tmp_path)
    assert int(re.search(r"memory: (\d+) microbatch", done.stdout)[1]) > 1
    other = tmp_path / "other"
    other.mkdir()
    says = ["is 100 KiB", "or 512 microbatches and recomputation of net/layers/*. Give `Trainer.memory_budget ="]
    refused(*of_several("mesh", "100 KiB"), cwd=other, exit_code=8, says=says)
    assert not (other / "run" / "memory.json").exists()


@pytest.mark.long
def test_parameter_servers_have_no_budget(tmp_path):
    servers = f"--gin_file={CONFIGS / 'runtime' / 'parameter_server.gin'}"
    flags = ("--workers=1", "--ps=1", "--", *FLAGS, servers, "--gin_param=Trainer.memory_budget = '1 MiB'")
    done = launch(*flags, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "`Trainer.memory_budget` is for replicas and meshes, not for parameter servers" in done.stderr
