"""GPT-2's smallest shape, without training: a summary without weights, and samples of a narrower one."""

import subprocess
import sys

import pytest

from tests.commands import CHECKOUT, CONFIGS, environment
from trainers import hooks
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import read
from trainers.hooks.texts import make_writer
from trainers.settings import Settings

PARAMETERS = 124_439_808  # as OpenAI's own has
SUMMARY = """
import pathlib, re, sys
from trainers.main import main
code = main(sys.argv[1:])
print("kilobytes", re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


@pytest.mark.long
def test_summary_takes_no_memory_for_weights(tmp_path):
    command = [sys.executable, "-c", SUMMARY, f"--gin_file={CONFIGS / 'text_small.gin'}", "--mode=summary"]
    root = {**environment(), "PYTHONPATH": f"{CONFIGS.parent}:{environment()['PYTHONPATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{PARAMETERS:,} parameters trained" in done.stdout
    assert int(done.stdout.rpartition("kilobytes")[2]) < 1_400_000  # weights and slots alone would be 1.5 GB


@pytest.mark.long
def test_translation_is_written_untrained():
    narrow = ["LanguageModel.num_layers = 1", "LanguageModel.size = 48", "LanguageModel.text_length = 24"]
    configuration = read([str(CONFIGS / "text_small.gin")], narrow, search=[CHECKOUT])
    configuration.bind([Experiment, Settings, Evaluator], required=[Experiment, Settings], register=hooks.register)
    experiment = Experiment()
    one, two = make_writer(experiment.task, experiment.train_source, ["The value", "If"], seed=0)()
    assert one.startswith(b"The value")
    assert two.startswith(b"If")
    assert len(set(one + two)) > 15  # of nearly equal probabilities, hardly any is drawn twice
