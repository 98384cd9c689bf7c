"""TensorBoard's files of a real run: the figures of `metrics.jsonl`, whatever happened to it in between."""

import json
import signal

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.commands import CONFIGS, run

FLAGS = (
    f"--gin_file={CONFIGS / 'digits_gan.gin'}",
    "--gin_param=Trainer.steps = 40",
    "--gin_param=Trainer.chunk_steps = 5",
    "--gin_param=Trainer.log_every = 10",
    "--gin_param=Trainer.checkpoint_every = 20",
    "--gin_param=Trainer.hooks = [@SampleGrid(), @Norms(), @Histograms()]",
    "--gin_param=SampleGrid.every = 20",
    "--gin_param=Norms.every = 20",
    "--gin_param=Histograms.paths = ['g/*']",
    "--workdir=run",
)


def agreeing(workdir):
    """The figures of both, by split, step and name, once they are found to be the same."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    expected = {
        (line["split"], line["step"], name): np.float32(value)
        for line in lines
        for name, value in line.items()
        if name not in ("split", "step")
    }
    found = {}
    for folder in (workdir / "events").iterdir():
        if folder.is_dir():
            events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
            for tag in events.Tags()["scalars"]:
                found |= {(folder.name, event.step, tag): np.float32(event.value) for event in events.Scalars(tag)}
    assert found == expected
    return found


def test_metrics_and_events_agree_figure_for_figure(tmp_path):
    assert run(*FLAGS, "--kill_after_step=35", cwd=tmp_path).returncode == -signal.SIGKILL
    done = run(*FLAGS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workdir = tmp_path / "run"
    found = agreeing(workdir)
    assert {split for split, *_ in found} >= {"train", "norms"}
    assert {step for _, step, _ in found} == {10, 20, 30, 40}
    samples = EventAccumulator(str(workdir / "events" / "samples")).Reload()
    assert samples.Images("samples")[-1].encoded_image_string == (workdir / "samples/step-000000040.png").read_bytes()
    weights = EventAccumulator(str(workdir / "events" / "weights")).Reload().Tags()["histograms"]
    assert weights
    assert all(path.startswith("g/") for path in weights)
    *_, text = EventAccumulator(str(workdir / "events")).Reload().Tensors("configuration")  # one for each start
    assert "SampleGrid.every = 20" in text.tensor_proto.string_val[0].decode()


LOCAL = ("runtime/mirrored", "runtime/local_steps")


@pytest.mark.parametrize("runtime", [(), LOCAL], ids=["replicas together", "local steps"])
def test_so_they_do_of_what_is_held_out_and_an_evaluation_writes_nothing(runtime, tmp_path):
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", *runtime)]
    every = [f"--gin_param=Trainer.{name}_every = 40" for name in ("log", "evaluate", "checkpoint")]
    flags = (*files, *every, "--gin_param=Trainer.steps = 80", "--workdir=run")
    done = run(*flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workdir = tmp_path / "run"
    found = agreeing(workdir)
    assert {(split, step) for split, step, _ in found} == {
        (split, step) for split in ("train", "eval") for step in (40, 80)
    }
    written = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and "native" not in path.name}
    done = run(*flags, "--mode=evaluate", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in written} == written
    assert agreeing(workdir) == found
    loss = found["eval", 80, "loss"]
    assert f"loss {loss:.4f}" in done.stdout
