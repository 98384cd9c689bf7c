"""Memory that a dry run estimates, against a fresh process that trains with the real command."""

import os

import pytest

from benchmarks import estimates
from benchmarks.estimates import CHECKOUT, LARGE, NOT_HERE, compared
from benchmarks.pages import rows_in


def test_page_has_every_configuration_that_trains_here():
    page = (CHECKOUT / "benchmarks" / "notes" / "estimates.md").read_text()
    names = {path.stem for path in (CHECKOUT / "configs").glob("*.gin")} - NOT_HERE
    memory, times = (rows_in(page, key) for key in ("estimates", "times"))
    assert {row[0].strip("`") for row in memory} == {row[0].strip("`") for row in times} == names
    assert all(abs(float(row[-1].rstrip("%"))) <= 15 for row in memory)
    assert all(0.85 <= float(row[-1]) <= 2 for row in times)  # a bound is as exact as the speeds measured for it


# One block on more rows: a step that can be told from what a process needs anyway, and few operations to trace.
LARGER = ["LanguageModel.num_layers = 1", "Trainer.global_batch_size = 96"]


@pytest.mark.long
@pytest.mark.parametrize(("name", "changes"), [("digits_gan", []), ("text_nano", LARGER)], ids=["little", "large"])
def test_process_takes_as_much_as_the_dry_run_estimated(name, changes, monkeypatch):
    monkeypatch.setattr(estimates, "_planted", lambda name, folder: changes)
    found = compared(name, steps=2)
    assert found["said_peak"] == pytest.approx(found["peak"], rel=0.15)
    assert (found["step"] > LARGE) == (changes == LARGER)
    # Other kernels use a fifth more memory while they compute.
    if changes == LARGER and os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0":
        assert found["said_step"] == pytest.approx(found["step"], rel=0.25)
