"""TensorBoard's files of a real run: the figures of `metrics.jsonl`, whatever happened to it in between."""

import json
import signal

import numpy as np
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


def test_metrics_and_events_agree_figure_for_figure(tmp_path):
    assert run(*FLAGS, "--kill_after_step=35", cwd=tmp_path).returncode == -signal.SIGKILL
    done = run(*FLAGS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workdir = tmp_path / "run"
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    expected = {
        (line["split"], line["step"], name): np.float32(value)
        for line in lines
        for name, value in line.items()
        if name not in ("split", "step")
    }
    assert {split for split, *_ in expected} >= {"train", "norms"}
    assert {step for _, step, _ in expected} == {10, 20, 30, 40}
    found = {}
    for folder in (workdir / "events").iterdir():
        if folder.is_dir():
            events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
            for tag in events.Tags()["scalars"]:
                found |= {(folder.name, event.step, tag): np.float32(event.value) for event in events.Scalars(tag)}
    assert found == expected
    samples = EventAccumulator(str(workdir / "events" / "samples")).Reload()
    assert samples.Images("samples")[-1].encoded_image_string == (workdir / "samples/step-000000040.png").read_bytes()
    weights = EventAccumulator(str(workdir / "events" / "weights")).Reload().Tags()["histograms"]
    assert weights
    assert all(path.startswith("g/") for path in weights)
    *_, text = EventAccumulator(str(workdir / "events")).Reload().Tensors("configuration")  # one for each start
    assert "SampleGrid.every = 20" in text.tensor_proto.string_val[0].decode()
