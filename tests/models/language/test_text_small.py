"""GPT-2's smallest shape, which isn't trained here: summarised without its weights, and sampled as it begins."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import adamw
from core.random import Rng
from models import LanguageModel
from tests.commands import CONFIGS, environment

PARAMETERS = 124_439_808  # as OpenAI's own has
SUMMARY = """
import pathlib, re, sys
from trainers.main import main
code = main(sys.argv[1:])
print("kilobytes", re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


@pytest.mark.long
def test_its_summary_takes_no_memory_for_weights(tmp_path):
    command = [sys.executable, "-c", SUMMARY, f"--gin_file={CONFIGS / 'text_small.gin'}", "--mode=summary"]
    root = {**environment(), "PYTHONPATH": f"{CONFIGS.parent}:{environment()['PYTHONPATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{PARAMETERS:,} parameters trained" in done.stdout
    assert int(done.stdout.rpartition("kilobytes")[2]) < 1_400_000  # weights and slots alone would be 1.5 GB


@pytest.mark.long
def test_it_writes_untrained():
    task = LanguageModel(
        rng=Rng.from_seed(0), vocabulary=50257, context=1024, layers=12, size=768, heads=12, text_length=12,
        optimizer=adamw(1e-3),
    )  # fmt: skip
    assert sum(v.shape.num_elements() for v in task.parameters().values()) == PARAMETERS
    prompts, lengths = tf.constant([[464, 1988, 286], [4871, 0, 0]]), tf.constant([3, 1])
    texts = tf.function(task.write, autograph=False)(Rng.from_seed(0), prompts, lengths, end=50256).numpy()
    assert texts.shape == (2, 12)
    assert texts[0, :3].tolist() == [464, 1988, 286]
    assert texts[1, 0] == 4871
    assert len(np.unique(texts)) > 15  # of nearly equal probabilities, hardly any is drawn twice
