"""The run that a report calls best, and reasons against calling one so."""

import math

from tests.written_runs import write_run
from trainers.report.verdict import verdict
from trainers.runs.read import read_run


def said(folder, *runs):
    """Returns the verdict on runs of (rate, seed, last loss)."""
    paths = []
    for rate, seed, loss in runs:
        path = write_run(folder / f"{len(paths)}", rate=rate, losses={1: 9.0, 2: loss})
        with (path / "config" / "operative.gin").open("a") as file:
            file.write(f"Experiment.seed = {seed}\n")
        paths.append(path)
    return verdict([read_run(path) for path in paths])


def test_the_verdict_measures_by_the_spread_between_seeds(tmp_path):
    far = [("0.1", 0, 1.0), ("0.1", 1, 2.0), ("0.2", 0, 8.0), ("0.2", 1, 9.0)]
    assert said(tmp_path / "far", *far) == (
        "Runs 1 and 2 ended with the smallest eval/loss, 1.5000 ± 0.7071 over 2 seeds, before runs 3 and 4 with "
        "8.5000 ± 0.7071 over 2 seeds: 7.0000 apart, 9.9 times the standard deviation between seeds."
    )
    near = [("0.1", 0, 1.0), ("0.1", 1, 2.0), ("0.2", 0, 1.5)]
    assert "no further apart than seeds of one setting" in said(tmp_path / "near", *near)
    wider = [("0.1", 0, 1.0), ("0.1", 1, 1.1), ("0.2", 0, 0.0), ("0.2", 1, 4.0)]
    assert "no further apart than seeds of one setting" in said(tmp_path / "wider", *wider)
    once = said(tmp_path / "once", ("0.1", 0, 2.0), ("0.2", 0, 1.0))
    assert once.startswith("Run 2 ended with the smallest eval/loss, 1.0000, before run 1 with 2.0000: one seed each")
    assert "nothing" not in once
    twice = said(tmp_path / "twice", ("0.1", 0, 1.0), ("0.1", 0, 1.0), ("0.2", 0, 2.0))
    assert twice.startswith(
        "Runs 1 and 2 ended with the smallest eval/loss, 1.0000, before run 3 with 2.0000: one seed"
    )
    assert "no other setting" in said(tmp_path / "one", ("0.1", 0, 2.0))
    assert "No run has ended with a finite eval/loss" in said(tmp_path / "nan", ("0.1", 0, math.nan))


def test_the_verdict_knows_what_is_better_larger(tmp_path):
    paths = [write_run(tmp_path / str(x), losses={1: x}, rate=str(x)) for x in (0.5, 0.75)]
    for path in paths:
        (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text().replace("loss", "accuracy"))
    assert verdict([read_run(path) for path in paths]).startswith(
        "Run 2 ended with the largest eval/accuracy, 0.7500, before run 1 with 0.5000"
    )
