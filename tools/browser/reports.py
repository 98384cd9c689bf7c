"""The page of `python -m trainers.report` about real runs, and one with hostile texts."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from core.telemetry.console import format_figure
from tests.commands import CONFIGS, run
from tests.written_runs import write_run
from tools.browser.look import views
from tools.browser.progress import progress
from trainers.report.__main__ import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHORT = (
    "Trainer.steps = 40",
    "Trainer.log_every = 2",
    "Trainer.evaluate_every = 10",
    "Trainer.checkpoint_every = None",
    "warmup_cosine.warmup_steps = 5",
)
RUNS = {"digits_mlp": (), "digits_mlp_fast": ("warmup_cosine.peak_rate = 0.1",)}  # two to compare
WITH_SAMPLES = ("digits_vae", "text_nano")


def made(folder: Path, shipped: Path) -> Path:
    """Trains with the real command; returns a page about that run, and one about runs that wrote pictures and texts."""
    runs = folder / "runs"
    for name, bindings in RUNS.items():
        flags = [f"--gin_param={text}" for text in (*SHORT, *bindings)]
        done = run(f"--gin_file={CONFIGS / 'digits_mlp'}.gin", *flags, f"--workdir={runs / name}", cwd=folder)
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr}")
    for name in WITH_SAMPLES:
        shutil.copytree(shipped / name, runs / name)
    broken = write_run(runs / ("a_name_without_a_place_to_break" * 6), exit_code=3, reason="<b>broken</b> " + "w" * 200)
    with (broken / "metrics.jsonl").open("a") as file:  # labels of extreme length
        file.write(
            '{"step": 10, "split": "train", "far": -1.05e-38}\n{"step": 1000000, "split": "train", "far": -1e38}\n'
        )
    for i in range(8):
        write_run(runs / f"seed={i}", losses={1: 2.0, 100: 0.5 + i / 1000})
    page = folder / "report.html"
    if main([str(runs), f"--out={page}"]):
        raise RuntimeError("`trainers.report` has failed")
    return page


def faults(chromium: "Browser", folder: Path, shipped: Path, shots: Path | None) -> Iterator[str]:
    """Yields a sentence for each fault in some view."""
    progress("trains for the report, and writes it")
    path = made(folder, shipped)
    for view, page, wrong in views(chromium, path.as_uri()):
        progress(f"checks the report ({view})")
        if shots:
            page.screenshot(path=shots / f"report, {view}.png", full_page=True)
        yield from (f"the report ({view}) {text}" for text in [*wrong, *_untrue(page, folder / "runs" / "digits_mlp")])


def _untrue(page: "Page", run: Path) -> Iterator[str]:
    """Compares the displayed values with those that the run wrote."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen = page.locator("body").inner_text()
    last = [line for line in lines if line["split"] == "eval"][-1]
    yield from (
        f"doesn't show that `{name}` ended at {told}"
        for name, value in last.items()
        if name not in ("step", "split") and (told := format_figure(name, value)) not in seen
    )
    charts = {each for line in lines for each in line} - {"step", "split"}
    drawn = {each.get_attribute("aria-label") for each in page.locator("svg").all()}
    yield from (f"has no chart of `{name}`" for name in charts if f"{name} by step" not in drawn)
    if not page.locator(".samples img").count() or not page.locator(".samples pre").count():
        yield "shows no picture or no text that a run has made"
