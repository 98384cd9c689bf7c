"""Runs in object storage, with the command."""

import json
import shutil
import subprocess

import pytest

import trainers
from core.errors import ConfigurationError
from core.storage import parse_address
from tests.commands import CONFIGS, environment, passed
from tests.toys import Line, point_source
from tests.trainers.resume_lab import outcome
from trainers import main as command
from trainers.launch import __main__ as launcher
from trainers.launch.commands import free_ports
from trainers.launch.network import ALONE, Network
from trainers.runs.__main__ import main

WORDS = [
    f"--gin_file={CONFIGS}/digits_linear.gin",
    *(f"--gin_param=Trainer.{name}_every = 10" for name in ("checkpoint", "evaluate", "log")),
]
WORKERS = f"--gin_file={CONFIGS}/runtime/multi_worker.gin"
ADDRESS = "--workdir=s3://bucket/runs/mine"
FOLDER = "runs/s3/bucket/runs/mine"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Returns the folder in which a run without storage has ended."""
    folder = tmp_path_factory.mktemp("undisturbed")
    passed(*WORDS, "--workdir=run", "--gin_param=Trainer.steps = 40", cwd=folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("server", ["s3", "gs"], indirect=True)
def test_a_fresh_machine_resumes_to_the_bit(server, undisturbed, tmp_path):
    words = [*WORDS, f"--workdir={server.address}"]
    here, there, plain = (tmp_path / name for name in ("here", "there", "plain"))
    copied = there / parse_address(server.address, "address").folder
    for folder in (here, there, plain):
        folder.mkdir()
    passed(*words, "--gin_param=Trainer.steps = 20", cwd=here, run=server.run)
    shutil.rmtree(here)
    printed = passed(*words, "--gin_param=Trainer.steps = 40", cwd=there, run=server.run).stdout
    assert f"downloading `step-000000020` from `{server.address}`" in printed
    assert "resuming from step 20" in printed
    assert outcome(copied) == outcome(undisturbed / "run")
    evaluated = passed(*words, "--mode=evaluate", cwd=plain, run=server.run).stdout
    assert "downloading `step-000000040`" in evaluated
    names = sorted(name for name in server.names("bucket/runs/mine") if name.startswith("checkpoints/"))
    local = (path.relative_to(copied).as_posix() for path in (copied).rglob("step-*/*"))
    assert names == sorted(local)


@pytest.fixture
def workers(python, server):
    """Returns a function that runs two workers in folders, and returns their exit codes and outputs."""

    def run(folders, *flags, workdir=server.address):
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
        begun = []
        for i, folder in enumerate(folders):
            folder.mkdir(exist_ok=True)
            place = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
            command = [*python, "-m", "trainers.main", *WORDS, WORKERS, f"--workdir={workdir}", *flags]
            variables = {**environment(), **server.variables, **place}
            out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            begun.append(subprocess.Popen(command, cwd=folder, env=variables, **out))
        said = [process.communicate(timeout=300)[0] for process in begun]
        return [process.returncode for process in begun], said

    return run


@pytest.mark.long
def test_workers_in_separate_folders_resume_to_the_bit(workers, server, tmp_path):
    here, other, there, plain = folders = [tmp_path / name for name in ("here", "other", "there", "plain")]
    server.fault = lambda method, path: "busy" if "step-" in path and method == "PUT" else None
    codes, said = workers(folders[:2], "--gin_param=Trainer.steps = 40", "--kill_after_step=10")
    assert codes == [-9, -9], said
    server.fault = lambda method, path: None
    assert not [name for name in server.names("bucket/runs/mine") if "step-" in name]
    codes, said = workers(folders[:2], "--gin_param=Trainer.steps = 20")
    assert codes == [0, 0], said
    assert "resuming from step 10" in said[0]
    assert "downloading `step-000000010`" in said[1]
    assert {path.name for path in other.rglob("step-*")} == {"step-000000010"}  # the chief's alone has the rest
    shutil.rmtree(here)
    codes, said = workers([there, other], "--gin_param=Trainer.steps = 30")
    assert codes == [0, 0], said
    codes, said = workers([plain, plain], "--gin_param=Trainer.steps = 30", workdir="run")
    assert codes == [0, 0], said
    assert outcome(there / FOLDER) == outcome(plain / "run")


def test_python_trains_to_an_address_and_loads_from_it(storage, monkeypatch, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    for place in ("bucket/line", "bucket/line/checkpoints"):
        storage.mark(place)
    monkeypatch.chdir(tmp_path / "here")
    source = point_source()
    experiment = trainers.Experiment(task=Line, train_source=source)
    settings = trainers.Settings(steps=4, global_batch_size=4, chunk_steps=2)
    trained = trainers.train(experiment, settings, "s3://bucket/line", quiet=True)
    assert trained.path == tmp_path / "here" / "runs/s3/bucket/line"
    monkeypatch.chdir(tmp_path / "there")
    experiment = trainers.Experiment(task=Line, train_source=source)
    again = trainers.train(experiment, settings, "s3://bucket/line", quiet=True)
    assert again.manifest.variables == trained.manifest.variables
    with pytest.raises(ConfigurationError, match="was trained by calls of Python"):
        trainers.load("s3://bucket/line")


def test_commands_that_read_folders_say_how_to_download(capsys):
    assert main(["s3://bucket/line"]) == 2
    says = "`python -m trainers.storage --download s3://bucket/line` copies the run to `runs/s3/bucket/line`"
    assert says in capsys.readouterr().err
    assert command.main([WORDS[0], ADDRESS, "--mode=tune"]) == 2
    says = (
        f"`--mode=tune` works in a local folder, but `--workdir` is 's3://bucket/runs/mine': give `--workdir={FOLDER}`"
    )
    assert says in capsys.readouterr().err


def test_workers_in_a_private_network_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(launcher, "choose_network", lambda open_ports: Network(lambda: None, ALONE))
    assert launcher.main(["--workers=2", "--", WORDS[0], ADDRESS]) == 2
    assert "in a network that reaches no server: give `--open_ports`" in capsys.readouterr().err
