"""GPT-2's smallest shape, without training: a summary without weights, and samples of a narrower one."""

import pytest

from core.measure import peak_memory, reset_peak_memory
from tests.commands import CHECKOUT, CONFIGS
from trainers import hooks
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import read
from trainers.hooks.texts import make_writer
from trainers.loop.speed import memory_in_use
from trainers.main import main
from trainers.settings import Settings

PARAMETERS = 124_439_808  # as OpenAI's own has


@pytest.mark.long
def test_summary_takes_no_memory_for_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reset_peak_memory()
    before = memory_in_use()
    assert main([f"--gin_file={CONFIGS / 'text_small.gin'}", "--mode=summary"]) == 0
    assert f"{PARAMETERS:,} parameters trained" in capsys.readouterr().out
    assert peak_memory()["process"] - before < 400e6  # weights and slots alone would be 1.5 GB


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
