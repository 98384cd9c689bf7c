"""A run starts from the weights of another: once, on any devices, and then independently of it."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from core.checkpoint.manifest import read_manifest
from core.cluster import membership
from core.cluster.topology import Cluster
from core.errors import ConfigurationError, NotFiniteError, PeerLostError
from core.module import named_variables
from core.optimizers import chain, ema, groups, lookahead, schedule_free_adamw, sgd
from core.testing import on_virtual_cpus, on_virtual_mesh
from core.weights import AVERAGES, checkpoint
from tests.commands import CONFIGS, launch, passed, refused, run
from tests.trainers.resume_lab import killed_after, manifest_of
from tests.trainers.test_keeping import there, with_accuracies
from tests.trainers.trainer_lab import HELD_OUT, Deep, hashes, make, newest, train
from trainers.lifecycle.start import Configured, Start
from trainers.lifecycle.train_to_end import begin, run_training, warm_start
from trainers.loop.run_parts import RESTART
from trainers.process.signals import Preemption

PATHS = ["layers/0/b", "layers/0/w", "layers/1/b", "layers/1/w"]
LAYOUTS = [("net/layers/0/?", "...,model"), ("net/layers/1/w", "model,-")]
MOMENTUM = sgd(0.1, momentum=0.9)
FAST_AND_SLOW = groups({"layers/1/*": sgd(0.1)}, otherwise=lookahead(MOMENTUM))
WHERE = {
    "one device": {},
    "2 replicas": {"strategy": lambda: on_virtual_cpus(2)},
    "mesh": {"strategy": lambda: on_virtual_mesh(1, 2, LAYOUTS)},
    "local steps": {"strategy": lambda: on_virtual_cpus(2), "local_steps": 5, "outer": sgd(0.9, momentum=0.5)},
}


def task_with(optimizer):
    return type("Ruled", (Deep,), {"optimizer": optimizer})


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Returns a run whose optimizer keeps averages, and has saved."""
    settings = {"task": task_with(chain(MOMENTUM, ema(0.9))), "steps": 20, "checkpoint_every": 20}
    trainer = make(tmp_path_factory.mktemp("source"), "a", **settings)
    train(trainer)
    return trainer


def averages_of(trainer):
    return {path: np.asarray(x) for path, x in trainer.experiment.assembly.optimizers["net"].shadow().items()}


@pytest.mark.parametrize(
    "where",
    ["mesh", *(pytest.param(where, marks=pytest.mark.long) for where in WHERE if where != "mesh")],
)
def test_weights_averages_and_slots_are_those_of_the_checkpoint(where, source, tmp_path):
    settings = dict(WHERE[where])
    strategy = settings.pop("strategy", lambda: None)()
    averaging = task_with(chain(MOMENTUM, ema(0.5, debias=False)))
    trainer = make(tmp_path, task=averaging, strategy=strategy, eval_source=HELD_OUT, **settings)
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (MOMENTUM, None),
        (chain(MOMENTUM, ema(0.9)), {path: f"ema/average/{path}" for path in PATHS}),
        (FAST_AND_SLOW, {path: f"groups/lookahead/slow/{path}" for path in PATHS[:2]}),
        (schedule_free_adamw(), dict.fromkeys(PATHS)),
    ],
)
def test_checkpoint_names_its_averages(optimizer, expected, tmp_path):
    trainer = make(tmp_path, task=task_with(optimizer))
    trainer.save()
    manifest = newest(trainer)
    places = {f"net/{path}": place and f"optimizer/net/{place}" for path, place in (expected or {}).items()}
    assert manifest.extra.get(AVERAGES, {}) == places
    assert set(filter(None, places.values())) <= set(manifest.variables)


def test_fresh_optimizer_leaves_the_best_checkpoint_as_it_was_measured(tmp_path):
    """A checkpoint that is best by a metric of its averages mustn't get other averages."""
    averaging = task_with(chain(MOMENTUM, ema(0.9)))
    trainer = with_accuracies(tmp_path, [0.9], task=averaging)
    for variable in trainer.experiment.assembly.optimizers["net"].variables.values():
        variable.assign(variable + tf.ones_like(variable))  # as training would change it
    train(trainer)
    best, measured = newest(trainer), hashes(trainer)
    other = task_with(chain(sgd(0.1, momentum=0.9), ema(0.9)))
    again = with_accuracies(tmp_path, [0.9, 0.1, 0.2], task=other, on_nonfinite="rollback")
    lines, to_save = begin(again, best, restart_optimizer=True)
    assert "No capsule is written" in str(again._recovery.leave_capsule(NotFiniteError("step 11"), 11, again.telemetry))
    assert (to_save, "from step 10 on with a fresh optimizer" in lines[-1]) == (False, True)
    again.state.go_back(best, past=again.step - 1)
    assert (again.state.beginnings.record, again.state.passed_over.rollbacks) == ({RESTART: {"step": 10}}, 1)
    assert [int(optimizer.step) for optimizer in again.state.optimizers] == [0]
    train(again)
    assert there(again)[10] == ["last", "best by max accuracy"]
    assert (newest(again).extra[RESTART], again.state.best.step) == ({"step": 10}, 10)
    assert {path: x.sha256 for path, x in read_manifest(best.path).variables.items()} == measured
    last = with_accuracies(tmp_path, [0.9, 0.1, 0.2], task=averaging)
    begin(last, best, restart_optimizer=True)
    last.save()  # as a signal would have it
    assert newest(last, up_to=10).extra["kept"] == {"because": ["last"], "measured": {}}


def test_fresh_optimizer_is_saved_at_once_if_no_averages_were_measured(tmp_path):
    train(with_accuracies(tmp_path, [0.9]))
    again = with_accuracies(tmp_path, [0.9, 0.1])
    assert begin(again, newest(again), restart_optimizer=True).to_save
    again.save()
    assert (newest(again).extra[RESTART], there(again)) == ({"step": 10}, {10: ["last", "best by max accuracy"]})
    over = with_accuracies(tmp_path, [0.9])
    assert begin(over, newest(over), restart_optimizer=True).lines[-1].endswith("isn't repeated")


def test_workers_that_found_different_weights_say_so(source, tmp_path, monkeypatch):
    trainer = make(tmp_path, task=task_with(MOMENTUM))
    trainer.experiment.start_from = checkpoint(str(source.workdir.path))
    monkeypatch.setattr(trainer.agreement, "first_text", lambda text: "the first worker's")
    with pytest.raises(ConfigurationError, match=r"`Experiment.start_from` is `.*/a`, where this worker found other"):
        begin(trainer, None)


def test_a_worker_that_is_lost_while_all_look_for_the_weights_is_named(tmp_path, monkeypatch):
    trainer = make(tmp_path)

    def lose(*_, **__):
        peers = SimpleNamespace(wait_for_word=lambda seconds: "worker 1 ended")
        joined = SimpleNamespace(cluster=Cluster(("a:1", "b:2"), 0), heartbeat=peers, timeout=0.0)
        monkeypatch.setattr(membership, "_joined", joined)
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    monkeypatch.setattr("trainers.lifecycle.train_to_end.begin", lose)
    configured = Configured({}, {}, read=dict, given=lambda: None, operative=str, note=str, remedy="")
    with pytest.raises(PeerLostError, match="worker 1 ended"):
        run_training(trainer, Start(trainer.workdir, configured), Preemption(), quiet=True)
    result = json.loads(trainer.workdir.result.read_text())
    assert (result["exit_code"], "worker 1 ended" in result["reason"]) == (6, True)


def test_settings_without_effect_on_a_resumed_run_are_reported(tmp_path):
    trainer = make(tmp_path, steps=20)
    trainer.state.advance(20)
    trainer.save()
    over = make(tmp_path, steps=20)
    with pytest.raises(
        ConfigurationError, match=r"`.*/run` has ended \(finished\) with `Trainer.steps = 20`: increase it"
    ):
        begin(over, newest(trainer), restart_optimizer=True)
    with pytest.raises(ConfigurationError, match=r"is for resuming a run, but `.*/checkpoints` has no"):
        begin(over, None, restart_optimizer=True)
    longer = make(tmp_path)
    longer.experiment.start_from = checkpoint("a")
    assert "`Experiment.start_from` has no effect on a run that is at step 20" in begin(longer, newest(longer)).lines[1]


LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
SHORT = ("--gin_param=Trainer.steps = 20", "--gin_param=Trainer.chunk_steps = 5", "--gin_param=Trainer.log_every = 10")
SHORT += ("--gin_param=Trainer.evaluate_every = None", "--gin_param=Experiment.eval_source = None")
WARM = ("--gin_param=Experiment.start_from = @checkpoint()", "--gin_param=checkpoint.path = 'a'")


def variables_of(workdir, step):
    return {path: entry["sha256"] for path, entry in manifest_of(workdir, step)["variables"].items()}


def weights_of(workdir, step):
    return {path: x for path, x in variables_of(workdir, step).items() if path.startswith("task/")}


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """Returns a run of the command."""
    folder = tmp_path_factory.mktemp("linear")
    passed(LINEAR, *SHORT, "--workdir=a", cwd=folder)
    return folder / "a"


@pytest.mark.long
def test_command_starts_from_another_run_once_and_outlives_it(linear, tmp_path):
    shutil.copytree(linear, tmp_path / "a")
    whole = passed(LINEAR, *SHORT, *WARM, "--workdir=whole", cwd=tmp_path)
    assert f"begins with `{tmp_path}/a/checkpoints/step-000000020`: 2 of 2 variables\n" in whole.stdout
    assert weights_of(tmp_path / "whole", 0) == weights_of(tmp_path / "a", 20)
    killed_after(tmp_path / "whole", 0, tmp_path)
    shutil.rmtree(tmp_path / "a")
    resumed = passed(LINEAR, *SHORT, *WARM, "--workdir=killed", cwd=tmp_path)
    assert "resuming from step 0" in resumed.stdout
    assert variables_of(tmp_path / "killed", 20) == variables_of(tmp_path / "whole", 20)
    other = run(LINEAR, *SHORT, "--workdir=killed", cwd=tmp_path)
    assert (other.returncode, "- Experiment.start_from = @checkpoint()" in other.stderr) == (2, True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("processes", "runtime"),
    [(["--workers=2"], "multi_worker.gin"), (["--workers=2", "--ps=1"], "parameter_server.gin")],
)
def test_processes_start_from_another_run_and_outlive_it(processes, runtime, linear, tmp_path):
    shutil.copytree(linear, tmp_path / "a")
    many = (*processes, "--", LINEAR, f"--gin_file={CONFIGS / 'runtime' / runtime}", *WARM, *SHORT, "--workdir=many")
    passed(*many, cwd=tmp_path, run=launch)
    assert weights_of(tmp_path / "many", 0) == weights_of(tmp_path / "a", 20)
    shutil.rmtree(tmp_path / "a")
    passed(*many, "--gin_param=Trainer.steps = 40", "--restart_optimizer", cwd=tmp_path, run=launch)
    extra = manifest_of(tmp_path / "many", 40)["extra"]
    assert extra["start_from"]["path"].endswith("a/checkpoints/step-000000020")
    assert extra["restart_optimizer"] == {"step": 20}


@pytest.mark.parametrize(
    ("bindings", "code", "message"),
    [
        (["--gin_param=Experiment.start_from = 'runs/a'"], 2, "`start_from` is given 'runs/a' (str)"),
        (WARM, 5, "isn't a folder"),
    ],
)
def test_start_from_a_wrong_value_or_a_lost_folder_is_refused(bindings, code, message, tmp_path):
    refused(LINEAR, *SHORT, *bindings, "--workdir=runs/new", cwd=tmp_path, exit_code=code, says=[message])


@pytest.mark.long
def test_command_restarts_the_optimizer_once(linear, tmp_path):
    """It does so once even if it is killed and repeated; the optimizer may differ."""
    longer = (*SHORT, "--gin_param=Trainer.steps = 40", "--gin_param=Trainer.checkpoint_every = 10")
    new = ("--gin_param=sgd.momentum = 0.0", "--allow_config_change", "--restart_optimizer")
    shutil.copytree(linear, tmp_path / "whole")
    whole = passed(LINEAR, *longer, *new, "--workdir=whole", cwd=tmp_path)
    assert "`--restart_optimizer`: from step 20 on with a fresh optimizer, whose schedules count from 0" in whole.stdout
    assert weights_of(tmp_path / "whole", 20) == weights_of(linear, 20)
    momentum = {path for path in variables_of(linear, 20) if "momentum" in path}
    assert momentum - {*variables_of(tmp_path / "whole", 20)}
    killed_after(tmp_path / "whole", 30, tmp_path)
    again = run(LINEAR, *longer, *new, "--workdir=killed", cwd=tmp_path)
    assert "`--restart_optimizer` was applied at step 20, and isn't repeated" in again.stdout
    assert variables_of(tmp_path / "killed", 40) == variables_of(tmp_path / "whole", 40)
    assert manifest_of(tmp_path / "whole", 40)["extra"]["restart_optimizer"] == {"step": 20}
