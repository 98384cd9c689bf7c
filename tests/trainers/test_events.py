"""TensorBoard's files of a real run agree with `metrics.jsonl`, also after a kill."""

import json
import signal

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.commands import CONFIGS, passed, run


def agreeing(workdir):
    """Returns the metrics of both, by split, step and name; asserts that they are the same."""
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


def flags_of(*files, **params):
    bound = [f"--gin_param={name.replace('__', '.')} = {value}" for name, value in params.items()]
    return [*(f"--gin_file={CONFIGS / name}.gin" for name in files), *bound, "--workdir=run"]


EVERY = {f"Trainer__{name}_every": 40 for name in ("log", "evaluate", "checkpoint")} | {"Trainer__chunk_steps": 20}


def test_metrics_and_events_agree_after_a_kill_and_an_evaluation_writes_nothing(tmp_path):
    flags = flags_of("digits_linear", **EVERY, Trainer__steps=80)
    assert run(*flags, "--kill_after_step=60", cwd=tmp_path).returncode == -signal.SIGKILL
    done = passed(*flags, cwd=tmp_path)
    assert "resuming from step 40" in done.stdout
    workdir = tmp_path / "run"
    found = agreeing(workdir)
    where = {(split, step) for split in ("train", "eval") for step in (40, 80)}
    assert {(split, step) for split, step, _ in found} == where
    written = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and "native" not in path.name}
    done = passed(*flags, "--mode=evaluate", cwd=tmp_path)
    assert {path: path.read_bytes() for path in written} == written
    assert agreeing(workdir) == found
    assert f"loss {found['eval', 80, 'loss']:.4f}" in done.stdout


@pytest.mark.long
def test_events_hold_pictures_histograms_and_the_configuration(tmp_path):
    how = {"Trainer__steps": 10, "Trainer__log_every": 10, "Trainer__checkpoint_every": None}
    how |= {
        "Trainer__hooks": "[@SampleGrid(), @Norms(), @Histograms()]",
        "SampleGrid__every": 10,
        "Norms__every": 10,
        "Histograms__paths": "['g/*']",
    }
    how |= {"mlp_networks__g_hidden": "[8]", "mlp_networks__d_hidden": "[8]"}
    passed(*flags_of("digits_gan", **how), cwd=tmp_path)
    workdir = tmp_path / "run"
    assert {name[:2] for name in agreeing(workdir)} == {(split, 10) for split in ("train", "norms", "eval")}
    samples = EventAccumulator(str(workdir / "events" / "samples")).Reload()
    assert samples.Images("samples")[-1].encoded_image_string == (workdir / "samples/step-000000010.png").read_bytes()
    weights = EventAccumulator(str(workdir / "events" / "weights")).Reload().Tags()["histograms"]
    assert weights
    assert all(path.startswith("g/") for path in weights)
    *_, text = EventAccumulator(str(workdir / "events")).Reload().Tensors("configuration")  # one for each start
    assert "SampleGrid.every = 10" in text.tensor_proto.string_val[0].decode()
