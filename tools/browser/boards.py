"""Checks that TensorBoard shows everything that real runs of each trainable configuration wrote."""

import fnmatch
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.browser import board, shipped
from tools.browser.progress import progress

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = {"SampleGrid": "samples", "Reconstructions": "reconstructions", "Translations": "translations"}  # by hook


def faults(chromium: "Browser", runs: Path, shots: Path | None) -> Iterator[str]:
    """Yields a sentence for each thing of these runs that TensorBoard shows wrongly."""
    said, all_runs = list[str](), sorted(runs.iterdir())
    with board.serving(runs) as address, board.opened(chromium, said) as page:
        for run in all_runs:
            progress(f"opens TensorBoard's cards of {run.name}")
            yield from board.see(page, board.address_of_cards(address, run.name), "cards", partial(_of_cards, run))
            _shoot(page, shots, run.name)
        progress("opens TensorBoard's Text and HParams")
        yield from board.see(page, board.address_of_texts(address), "texts", partial(_of_texts, all_runs))
        _shoot(page, shots, "Text")
        board.see(page, board.address_of_trials(address), "trials", lambda table: [] if table else ["is empty"])
        yield from board.see_all_figures(page, partial(_of_trials, all_runs))
        _shoot(page, shots, "HParams")
    yield from (f"TensorBoard {text}" for text in dict.fromkeys(said))


def _shoot(page: "Page", shots: Path | None, what: str) -> None:
    """Takes a screenshot of one screen."""
    if shots:
        page.set_viewport_size({"width": board.WIDE, "height": 1000})
        page.wait_for_timeout(500)
        page.screenshot(path=shots / f"TensorBoard, {what}.png")
        page.set_viewport_size({"width": board.WIDE, "height": board.TALL})


def figures(run: Path) -> dict[str, dict[str, float]]:
    """Returns the last values of a run's metrics: by name, then by split."""
    found: dict[str, dict[str, float]] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name in line.keys() - {"step", "split"}:
            found.setdefault(name, {})[line["split"]] = line[name]
    return found


def _of_cards(run: Path, cards: list[dict[str, Any]]) -> list[str]:
    """Compares the cards of Time Series with the run's events."""
    said: list[str] = []
    shown: dict[str, dict[str, Any]] = {"scalar": {}, "image": {}, "histogram": {}}
    for card in cards:
        shown.get(card["kind"], {})[card["name"]] = card
    for name, splits in figures(run).items():
        card = shown["scalar"].get(name)
        if card is None:
            said.append(f"has no chart of `{name}`")
            continue
        values = {f"{run.name}/events/{split}": value for split, value in splits.items()}
        if card["lines"] != len(values):
            said.append(f"draws {card['lines']} lines of `{name}`, which {' and '.join(sorted(splits))} have")
        for who, value in values.items():
            told = card["values"].get(who, "nothing")
            if not _is_told(value, told):
                said.append(f"says that `{name}` of {who} is {told}, and it is {value}")
    operative = (run / "config" / "operative.gin").read_text()
    pictures = [name for hook, name in PICTURES.items() if f"@{hook}()" in operative]
    said += [f"shows no picture of `{name}`" for name in pictures if not shown["image"].get(name, {}).get("width")]
    histograms = {name for name, card in shown["histogram"].items() if card["bars"]}
    said += [f"has no histogram of `{name}`" for name in _weights(run) if name not in histograms]
    return [f"TensorBoard, of {run.name}, {text}" for text in said]


def _of_texts(runs: Sequence[Path], texts: list[list[str]]) -> list[str]:
    """Compares Text with the configurations, and looks for the texts that the runs wrote."""
    said: list[str] = []
    shown = {(run, tag): rest for tag, run, *rest in texts}
    for run in runs:
        operative = (run / "config" / "operative.gin").read_text()
        told = " ".join(shown.get((f"{run.name}/events", "configuration"), []))
        if not all(line in told for line in operative.splitlines()):
            said.append(f"TensorBoard doesn't show the whole configuration of {run.name}")
        if "@Texts()" in operative and (f"{run.name}/events/samples", "texts") not in shown:
            said.append(f"TensorBoard shows no text that {run.name} has written")
    return said


def _of_trials(runs: Sequence[Path], table: list[list[str]]) -> list[str]:
    """Compares the rows of HParams with the final metrics of the runs."""
    said: list[str] = []
    head, *rows = table or [[]]
    told = {row[0].rpartition("/")[2]: dict(zip(head, row, strict=False)) for row in rows if row}
    for run in runs:
        if run.name not in told:
            said.append(f"HParams has no row of {run.name}")
            continue
        for name, splits in figures(run).items():
            for split, value in splits.items():
                shown = told[run.name].get(f"{split}.{name}", "nothing")
                if not _is_told(value, shown):
                    said.append(f"HParams says that `{name}` of {run.name}/{split} is {shown}, and it is {value}")
    return said


def _weights(run: Path) -> list[str]:
    """Returns the variables that have histograms, from the newest checkpoint."""
    manifest = max(run.glob("checkpoints/*/manifest.json"))
    names = [name.partition("/")[2] for name in json.loads(manifest.read_text())["variables"] if name[:5] == "task/"]
    return fnmatch.filter(names, shipped.HISTOGRAMS)


def _is_told(value: float, said: str) -> bool:
    """Tells whether the page shows a number, to four places at least."""
    try:
        shown = float(said.replace(",", ""))
    except ValueError:
        return False
    return abs(shown - value) <= max(1e-4 * abs(value), 6e-5)
