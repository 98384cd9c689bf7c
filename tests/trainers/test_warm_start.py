"""A run begins with the weights of another: once, wherever it computes, and then it doesn't need the other."""

import json
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from core.checkpoint.manifest import read_manifest
from core.data import digits
from core.errors import ConfigurationError, NotFiniteError, PeerLostError
from core.module import named_variables
from core.optimizers import adamw, chain, ema, groups, lookahead, schedule_free_adamw, sgd
from core.testing import on_virtual_cpus, on_virtual_mesh
from core.weights import AVERAGES, checkpoint
from core.workers import membership
from core.workers.cluster import Cluster
from models.classifiers.mlp import MlpClassifier
from tests.commands import CONFIGS, launch, run
from tests.trainers.test_keeping import there, with_accuracies
from tests.trainers.trainer_lab import hashes, make, newest, train
from trainers.preemption import Preemption
from trainers.run_state import RESTART
from trainers.start import Configured, Start
from trainers.training import run_training
from trainers.warm_start import begin, warm_start

PATHS = ["layers/0/b", "layers/0/w", "layers/1/b", "layers/1/w"]
LAYOUTS = [("net/layers/0/?", "...,model"), ("net/layers/1/w", "model,-")]
FAST_AND_SLOW = groups({"layers/1/*": sgd(0.1)}, otherwise=lookahead(adamw(3e-3)))
WHERE = {
    "one device": {},
    "2 replicas": {"strategy": lambda: on_virtual_cpus(2)},
    "mesh": {"strategy": lambda: on_virtual_mesh(1, 2, LAYOUTS)},
    "local steps": {"strategy": lambda: on_virtual_cpus(2), "local_steps": 5, "outer": sgd(0.9, momentum=0.5)},
}


def task_with(optimizer):
    return lambda *, rng: MlpClassifier(rng=rng, sizes=[64, 16, 10], optimizer=optimizer)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run whose optimizer keeps averages, and has saved."""
    folder = tmp_path_factory.mktemp("source")
    trainer = make(folder, "a", task=task_with(chain(adamw(3e-3), ema(0.9))), steps=20, checkpoint_every=20)
    train(trainer)
    return trainer


def averages_of(trainer):
    return {path: np.asarray(x) for path, x in trainer.experiment.assembly.optimizers["net"].shadow().items()}


@pytest.mark.parametrize("where", WHERE)
def test_weights_and_all_that_follows_from_them_are_those_that_were_taken(where, source, tmp_path):
    settings = dict(WHERE[where])
    strategy = settings.pop("strategy", lambda: None)()
    averaging = task_with(chain(adamw(3e-3), ema(0.5, debias=False)))
    trainer = make(tmp_path, task=averaging, strategy=strategy, eval_source=digits("test"), **settings)
    trainer.experiment.start_from = checkpoint(str(source.workdir.path))
    assert "4 of 4 variables, 4 of them averages" in warm_start(trainer)
    taken = averages_of(source)
    for name, variable in named_variables(trainer.experiment.task).items():
        assert variable.numpy().tobytes() == taken[name.removeprefix("net/")].tobytes(), name
    for slot, values in trainer.experiment.assembly.optimizers["net"].slots.items():
        for path, variable in values.items():
            expected = taken[path] if slot == "ema/average" else np.zeros_like(taken[path])
            assert variable.numpy().tobytes() == expected.tobytes(), (slot, path)
    trainer.averaged.update()
    for name, variable in named_variables(trainer.averaged.task).items():
        assert variable.numpy().tobytes() == taken[name.removeprefix("net/")].tobytes(), name
    trainer.save()
    assert newest(trainer).extra["start_from"]["path"].endswith("step-000000020")
    if where != "local steps":
        one = make(tmp_path, "one", task=averaging, steps=20)
        one.experiment.start_from = trainer.experiment.start_from
        warm_start(one)
        found, expected = train(trainer), train(one)
        assert found[0][2]["loss"] == pytest.approx(expected[0][2]["loss"], rel=2e-5)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (adamw(3e-3), None),
        (chain(adamw(3e-3), ema(0.9)), {path: f"ema/average/{path}" for path in PATHS}),
        (FAST_AND_SLOW, {path: f"groups/lookahead/slow/{path}" for path in PATHS[:2]}),
        (schedule_free_adamw(), dict.fromkeys(PATHS)),
    ],
)
def test_a_checkpoint_says_where_its_averages_lie(optimizer, expected, tmp_path):
    trainer = make(tmp_path, task=task_with(optimizer))
    trainer.save()
    manifest = newest(trainer)
    places = {f"net/{path}": place and f"optimizer/net/{place}" for path, place in (expected or {}).items()}
    assert manifest.extra.get(AVERAGES, {}) == places
    assert set(filter(None, places.values())) <= set(manifest.variables)


def test_a_fresh_optimizer_leaves_a_checkpoint_as_it_was_measured(tmp_path):
    """The best by a figure of its averages mustn't become one with others."""
    averaging = task_with(chain(adamw(3e-3), ema(0.9)))
    trainer = with_accuracies(tmp_path, [0.9], task=averaging)
    train(trainer)
    best, measured = newest(trainer), hashes(trainer)
    other = task_with(chain(sgd(0.1, momentum=0.9), ema(0.9)))
    again = with_accuracies(tmp_path, [0.9, 0.1, 0.2], task=other, on_nonfinite="rollback")
    lines, to_save = begin(again, best, restart_optimizer=True)
    assert "No capsule is left" in str(again._leaving_capsule(NotFiniteError("step 11"), 11))
    assert (to_save, "from step 10 on with a fresh optimizer" in lines[-1]) == (False, True)
    again.state.go_back(best)
    assert (again.state.beginnings, again.state.rollbacks) == ({RESTART: {"step": 10}}, 1)
    assert [int(optimizer.step) for optimizer in again.state.optimizers] == [0]
    train(again)
    assert there(again)[10] == ["last", "best by max accuracy"]
    assert (newest(again).extra[RESTART], again.state.best.step) == ({"step": 10}, 10)
    assert {path: x.sha256 for path, x in read_manifest(best.path).variables.items()} == measured
    last = with_accuracies(tmp_path, [0.9, 0.1, 0.2], task=averaging)
    begin(last, best, restart_optimizer=True)
    last.save()  # as a signal would have it
    assert newest(last, up_to=10).extra["kept"] == {"because": ["last"], "measured": {}}


def test_a_fresh_optimizer_is_saved_at_once_where_no_averages_were_measured(tmp_path):
    train(with_accuracies(tmp_path, [0.9]))
    again = with_accuracies(tmp_path, [0.9, 0.1])
    assert begin(again, newest(again), restart_optimizer=True).to_save
    again.save()
    assert (newest(again).extra[RESTART], there(again)) == ({"step": 10}, {10: ["last", "best by max accuracy"]})
    over = with_accuracies(tmp_path, [0.9])
    assert begin(over, newest(over), restart_optimizer=True).lines[-1].endswith("isn't done again")


def test_workers_that_found_different_weights_say_so(source, tmp_path, monkeypatch):
    trainer = make(tmp_path, task=task_with(adamw(3e-3)))
    trainer.experiment.start_from = checkpoint(str(source.workdir.path))
    monkeypatch.setattr(trainer.agreement, "first_text", lambda text: "the first worker's")
    with pytest.raises(
        ConfigurationError, match=r"`Experiment.start_from` names `.*/a`, where this worker found other"
    ):
        begin(trainer, None)


def test_a_worker_that_is_lost_while_all_look_for_the_weights_is_named(tmp_path, monkeypatch):
    trainer = make(tmp_path)

    def lose(*_, **__):
        peers = SimpleNamespace(wait_for_word=lambda seconds: "worker 1 ended")
        joined = SimpleNamespace(cluster=Cluster(("a:1", "b:2"), 0), heartbeat=peers, timeout=0.0)
        monkeypatch.setattr(membership, "_joined", joined)
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    monkeypatch.setattr("trainers.training.begin", lose)
    configured = Configured({}, {}, read=dict, given=lambda: None, operative=str, note=str, remedy="")
    with pytest.raises(PeerLostError, match="worker 1 ended"):
        run_training(trainer, Start(trainer.workdir, configured), Preemption(), quiet=True)
    result = json.loads(trainer.workdir.result.read_text())
    assert (result["exit_code"], "worker 1 ended" in result["reason"]) == (6, True)


def test_what_would_have_no_effect_on_a_run_that_goes_on_is_said(tmp_path):
    train(trainer := make(tmp_path, steps=20, checkpoint_every=20))
    over = make(tmp_path, steps=20)
    with pytest.raises(
        ConfigurationError, match=r"`.*/run` is over \(finished\) with `Trainer.steps = 20`: give it more"
    ):
        begin(over, newest(trainer), restart_optimizer=True)
    longer = make(tmp_path)
    longer.experiment.start_from = checkpoint("a")
    assert "`Experiment.start_from` has no effect on a run that is at step 20" in begin(longer, newest(longer)).lines[1]


LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
SHORT = ("--gin_param=Trainer.steps = 20", "--gin_param=Trainer.chunk_steps = 5", "--gin_param=Trainer.log_every = 10")
WARM = ("--gin_param=Experiment.start_from = @checkpoint()", "--gin_param=checkpoint.path = 'a'")


def variables_of(workdir, step):
    manifest = json.loads((workdir / "checkpoints" / f"step-{step:09d}" / "manifest.json").read_text())
    return {path: entry["sha256"] for path, entry in manifest["variables"].items()}


def test_a_run_begins_with_another_once_and_outlives_it(tmp_path):
    assert run(LINEAR, *SHORT, "--workdir=a", cwd=tmp_path).returncode == 0
    whole = run(LINEAR, *SHORT, *WARM, "--workdir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert f"begins with `{tmp_path}/a/checkpoints/step-000000020`: 2 of 2 variables\n" in whole.stdout
    begun, trained = variables_of(tmp_path / "whole", 0), variables_of(tmp_path / "a", 20)
    assert {path: x for path, x in begun.items() if path.startswith("task/")} == {
        path: x for path, x in trained.items() if path.startswith("task/")
    }
    killed = run(LINEAR, *SHORT, *WARM, "--workdir=killed", "--kill_after_step=10", cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    shutil.rmtree(tmp_path / "a")
    resumed = run(LINEAR, *SHORT, *WARM, "--workdir=killed", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "going on from step 0" in resumed.stdout
    assert variables_of(tmp_path / "killed", 20) == variables_of(tmp_path / "whole", 20)
    late = run(LINEAR, *SHORT, *WARM, "--workdir=late", cwd=tmp_path)
    assert (late.returncode, "is no folder" in late.stderr) == (5, True)
    other = run(LINEAR, *SHORT, "--workdir=killed", cwd=tmp_path)
    assert (other.returncode, "- Experiment.start_from = @checkpoint()" in other.stderr) == (2, True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("processes", "runtime"),
    [(["--workers=2"], "multi_worker.gin"), (["--workers=2", "--ps=1"], "parameter_server.gin")],
)
def test_processes_begin_with_another_run_and_outlive_it(processes, runtime, tmp_path):
    assert run(LINEAR, *SHORT, "--workdir=a", cwd=tmp_path).returncode == 0
    many = (*processes, "--", LINEAR, f"--gin_file={CONFIGS / 'runtime' / runtime}", *WARM, *SHORT, "--workdir=many")
    done = launch(*many, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    begun, trained = variables_of(tmp_path / "many", 0), variables_of(tmp_path / "a", 20)
    assert {path: x for path, x in begun.items() if path.startswith("task/")} == {
        path: x for path, x in trained.items() if path.startswith("task/")
    }
    shutil.rmtree(tmp_path / "a")
    again = launch(*many, "--gin_param=Trainer.steps = 40", "--restart_optimizer", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    extra = json.loads((tmp_path / "many" / "checkpoints" / "step-000000040" / "manifest.json").read_text())["extra"]
    assert extra["start_from"]["path"].endswith("a/checkpoints/step-000000020")
    assert extra["restart_optimizer"] == {"step": 20}


@pytest.mark.parametrize(
    ("bindings", "code", "message"),
    [
        (["Experiment.start_from = 'runs/a'"], 2, "`start_from` is given 'runs/a' (str)"),
        ([*WARM, "checkpoint.path = 'runs/new'"], 5, "holds no checkpoint"),
    ],
)
def test_what_cant_be_begun_with_is_refused(bindings, code, message, tmp_path):
    flags = [x if x.startswith("--") else f"--gin_param={x}" for x in bindings]
    done = run(LINEAR, *SHORT, *flags, "--workdir=runs/new", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_goes_on_with_a_fresh_optimizer_once(tmp_path):
    """However often the command is repeated, and wherever it is killed; the optimizer may be another."""
    longer = (*SHORT, "--gin_param=Trainer.steps = 40", "--gin_param=Trainer.checkpoint_every = 10")
    new = ("--gin_param=sgd.momentum = 0.0", "--allow_config_change", "--restart_optimizer")
    none = run(LINEAR, *SHORT, "--restart_optimizer", "--workdir=a", cwd=tmp_path)
    assert (none.returncode, "is for a run that goes on, but `a/checkpoints` holds no" in none.stderr) == (2, True)
    assert run(LINEAR, *SHORT, "--workdir=a", cwd=tmp_path).returncode == 0
    trained = variables_of(tmp_path / "a", 20)
    for folder in ("whole", "killed"):
        shutil.copytree(tmp_path / "a", tmp_path / folder)
    whole = run(LINEAR, *longer, *new, "--workdir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert "`--restart_optimizer`: from step 20 on with a fresh optimizer, whose schedules count from 0" in whole.stdout
    restarted = variables_of(tmp_path / "whole", 20)
    assert {path: x for path, x in restarted.items() if path.startswith("task/")} == {
        path: x for path, x in trained.items() if path.startswith("task/")
    }
    assert {path for path in trained if "momentum" in path} - {*restarted}
    killed = run(LINEAR, *longer, *new, "--workdir=killed", "--kill_after_step=35", cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    again = run(LINEAR, *longer, *new, "--workdir=killed", cwd=tmp_path)
    assert "`--restart_optimizer` has done its work at step 20, and isn't done again" in again.stdout
    assert variables_of(tmp_path / "killed", 40) == variables_of(tmp_path / "whole", 40)
    manifest = json.loads((tmp_path / "whole" / "checkpoints" / "step-000000040" / "manifest.json").read_text())
    assert manifest["extra"]["restart_optimizer"] == {"step": 20}
