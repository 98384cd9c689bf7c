"""Runs from before files moved resume: their manifests name configurables by the modules of that time."""

import json
import shutil
from pathlib import Path

import pytest

from core import checkpoint
from tests.commands import CONFIGS, launch, passed, refused, run

SAVED = Path(__file__).parent / "data" / "before_the_moves"  # ten steps of each, trained at revision f5df0af
MLP = ["MlpClassifier.sizes = [64, 4, 10]", "Trainer.log_every = 5"]
GAN = [
    "mlp_networks.g_hidden = [8]",
    "mlp_networks.d_hidden = [8]",
    "Gan.latent_size = 4",
    "Trainer.global_batch_size = 8",
    "Trainer.log_every = 10",
]
RUNS = {
    "mlp": (["digits_mlp"], MLP, 32),
    # Its generator is on one device, which was the task's own setting then (`Gan.sample_placement`,
    # `Gan.one_device`). Placements and strategies may change: that one was on two replicas.
    "gan": (["digits_gan_generator_on_one_device"], GAN, 8),
}


def flags_of(name: str) -> list[str]:
    files, params, _ = RUNS[name]
    return [*(f"--gin_file={CONFIGS / file}.gin" for file in files), *(f"--gin_param={text}" for text in params)]


def copied(name: str, folder: Path) -> Path:
    return shutil.copytree(SAVED / name, folder / "run")


@pytest.mark.parametrize("name", RUNS)
def test_run_resumes(name: str, tmp_path: Path) -> None:
    workdir = copied(name, tmp_path)
    before = checkpoint.newest(workdir / "checkpoints", warn=print)
    assert before is not None
    assert "trainers.experiment.Experiment.task" in before.extra["configuration"]
    longer = [f"--gin_param=Trainer.{text}" for text in ("steps = 20", "hooks = []")]
    done = passed(*flags_of(name), *longer, f"--workdir={workdir}", cwd=tmp_path)
    assert "resuming from step 10" in done.stdout
    after = checkpoint.newest(workdir / "checkpoints", warn=print)
    assert after is not None
    assert (after.step, after.examples) == (20, 20 * RUNS[name][2])
    assert after.variables.keys() == before.variables.keys()
    assert "Experiment.task" in after.extra["configuration"]
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == ({5, 10, 15, 20} if name == "mlp" else {10, 20})


def test_other_configuration_is_still_refused(tmp_path: Path) -> None:
    workdir = copied("mlp", tmp_path)
    text = refused(
        *flags_of("mlp"),
        "--gin_param=adamw.beta_1 = 0.5",
        f"--workdir={workdir}",
        cwd=tmp_path,
        exit_code=2,
        says=["holds a run of another configuration", "- adamw.beta_1 = 0.9\n+ adamw.beta_1 = 0.5\nStart"],
    )
    assert "Experiment" not in text


# --- One of each kind of strategy, ten steps at 0.2.0 (revision d7194db) ----------------------------------------------

AT_0_2_0 = SAVED.with_name("at_0_2_0")
NARROW = [
    "MlpClassifier.sizes = [64, 4, 10]",
    "Trainer.log_every = 10",
    "Trainer.global_batch_size = 8",
    "Trainer.evaluate_every = None",
    "Trainer.checkpoint_every = 10",
]
KINDS = {
    "mirrored": (["mirrored"], ["mirrored.replicas = 2"]),
    "mesh": (["mesh"], []),
    "local_steps": (["mirrored", "local_steps"], ["Trainer.local_steps = 5", "mirrored.replicas = 2"]),
    "servers": (["parameter_server"], []),
}


def words_of(kind: str) -> list[str]:
    files, params = KINDS[kind]
    paths = [CONFIGS / "digits_mlp.gin", *(CONFIGS / "runtime" / f"{name}.gin" for name in files)]
    return [*(f"--gin_file={path}" for path in paths), *(f"--gin_param={text}" for text in [*NARROW, *params])]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_run_of_each_strategy_resumes(kind: str, tmp_path: Path) -> None:
    workdir = shutil.copytree(AT_0_2_0 / kind, tmp_path / "run")
    before = checkpoint.newest(workdir / "checkpoints", warn=print)
    assert before is not None
    words = [*words_of(kind), "--gin_param=Trainer.steps = 20", f"--workdir={workdir}"]
    if kind == "servers":
        done = launch("--workers=1", "--ps=1", "--", *words, cwd=tmp_path)
        assert done.returncode == 0, (done.stdout, done.stderr)
    else:
        done = passed(*words, cwd=tmp_path)
    assert "resuming from step 10" in done.stdout
    after = checkpoint.newest(workdir / "checkpoints", warn=print)
    assert after is not None
    assert (after.step, after.examples) == (20, 160)
    assert after.variables.keys() == before.variables.keys()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "mode"), [("mesh", "export"), ("servers", "evaluate")])
def test_run_of_0_2_0_is_read(kind: str, mode: str, tmp_path: Path) -> None:
    workdir = shutil.copytree(AT_0_2_0 / kind, tmp_path / "run")
    words = [*words_of(kind), f"--workdir={workdir}", *["--format=tflite"] * (mode == "export")]
    if kind == "servers":  # the weights are read on one device
        del words[1]
    done = passed(f"--mode={mode}", *words, cwd=tmp_path)
    assert "accuracy" in done.stdout if mode == "evaluate" else list((workdir / "export").iterdir())


@pytest.mark.long
def test_capsule_is_replayed(tmp_path: Path) -> None:
    capsule = shutil.copytree(AT_0_2_0 / "capsule", tmp_path / "capsule")
    done = run("--mode=replay", f"--capsule={capsule}", cwd=tmp_path)
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "step 1 is not finite" in done.stdout
    assert "phase      `net`" in done.stdout
