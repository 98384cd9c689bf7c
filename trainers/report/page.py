"""The HTML page: verdict, metrics, curves, differences, samples, machines, faults. All text from runs is escaped."""

import base64
import math
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from core.errors import as_said
from core.telemetry.console import format_figure
from trainers.report.style import STYLE
from trainers.report.svg import COLOURS, Line, chart
from trainers.report.verdict import verdict
from trainers.runs.figures import last_and_best, main_figures
from trainers.runs.listing import MISSING, differences
from trainers.runs.read import Run

# A second barrier: should unescaped markup slip through, browsers load and run nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(runs: Sequence[Run], *, now: float) -> str:
    """Returns the HTML page as one text. The runs are numbered from 1."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    sections = [
        ("Runs", _runs(runs)),
        ("Curves", _curves(runs)),
        ("What differs", _differences(runs)),
        ("Samples", _samples(runs)),
        ("Commands, revisions and devices", _machines(runs)),
        ("Warnings", _warnings(runs)),
        ("Faults", _faults(runs)),
    ]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_said(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f'<h1>{_said(title)}</h1>\n<p class="faint">as of {_time(now)}</p>',
            f'<p class="verdict">{_said(verdict(runs))}</p>',
            *(f"<section>\n<h2>{name}</h2>\n{content}\n</section>" for name, content in sections if content),
            "</body>\n</html>\n",
        ]
    )


def _runs(runs: Sequence[Run]) -> str:
    figures = main_figures(run.figures for run in runs)
    rows = []
    for i, run in enumerate(runs, 1):
        state = f'<span class="{run.state.split()[0]}">{_said(run.ending)}</span>'
        told = [_figure(run, name) for name in figures]
        rows.append([_number(i), _said(run.name), state, run.reached, *told, _time(run.heard)])
    return _table(["", "run", "state", "step", *map(_said, figures), "last wrote"], rows)


def _figure(run: Run, name: str) -> str:
    if name not in run.figures:
        return MISSING
    last, best = last_and_best(name, run.figures[name])
    return f'{last} <span class="faint">{best}</span>' if best else last


def _curves(runs: Sequence[Run]) -> str:
    """Draws one chart a metric with all runs: training dashed, held-out solid."""
    lines: dict[str, list[Line]] = {}
    for i, run in enumerate(runs):
        for name, curve in run.figures.items():
            split, _, own = name.partition("/")
            line = Line(str(i + 1), f"{run.name}: {name}", i, split != "train", curve)
            lines.setdefault(own, []).append(line)
    drawn = {own: each for own, each in lines.items() if any(line.curve.finite for line in each)}
    charts = [
        f"<figure><figcaption>{_said(own)}</figcaption>{chart(own, each)}{_values(own, each)}</figure>"
        for own, each in drawn.items()
    ]
    if not charts:
        return ""
    legend = "".join(f"<li>{_number(i)} {_said(run.name)}</li>" for i, run in enumerate(runs, 1))
    note = '<p class="faint">Dashed: training data. Solid: held-out data.</p>'
    return f'<ul class="legend">{legend}</ul>{note}<div class="charts">{"".join(charts)}</div>'


def _values(name: str, lines: Sequence[Line]) -> str:
    """Returns an HTML table of each curve's last, smallest and largest value."""
    rows = []
    for line in lines:
        values = [y for _, y in line.curve.finite]
        some = line.curve.last[1], min(values, default=math.nan), max(values, default=math.nan)
        told = [format_figure(name, x) for x in some]
        rows.append([_said(line.title), f"{len(line.curve.steps):,}", *told])
    head = ["curve", "points", "last", "smallest", "largest"]
    return f"<details><summary>numbers</summary>{_table(head, rows)}</details>"


def _differences(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return ""
    rows = [[_said(name), *map(_said, values)] for name, values in differences(runs).items()]
    if not rows:
        return "<p>Nothing differs in settings, revision, versions or devices.</p>"
    return _table(["", *(_number(i) for i in range(1, len(runs) + 1))], rows)


def _samples(runs: Sequence[Run]) -> str:
    found = {i: "".join(samples(run.path / "samples")) for i, run in enumerate(runs, 1)}
    return "".join(
        f'<h3>{_number(i)} {_said(runs[i - 1].name)}</h3><div class="samples">{each}</div>'
        for i, each in found.items()
        if each
    )


def _machines(runs: Sequence[Run]) -> str:
    parts = []
    for i, run in enumerate(runs, 1):
        record = run.record
        told = {
            "started": record.get("started"),
            "command": _joined(record.get("command"), " "),
            "git revision": record.get("git"),
            "devices": _joined(record.get("devices"), ", "),
            "versions": _pairs(record.get("versions")),
        }
        rows = "".join(f"<dt>{name}</dt><dd>{_said(str(x))}</dd>" for name, x in told.items() if x)
        settings = "\n".join(f"{name} = {value}" for name, value in run.configuration.items())
        parts.append(
            f"<h3>{_number(i)} {_said(run.name)}</h3>"
            + (f"<dl>{rows}</dl>" if rows else "<p>Not recorded.</p>")
            + (f"<details><summary>configuration</summary><pre>{_said(settings)}</pre></details>" if settings else "")
        )
    return "".join(parts)


def _warnings(runs: Sequence[Run]) -> str:
    said = [
        f"<li>{_number(i)} step {step:,}: {_said(text)}</li>"
        for i, run in enumerate(runs, 1)
        for step, text in run.warnings
    ]
    return f"<ul>{''.join(said)}</ul>" if said else ""


def _faults(runs: Sequence[Run]) -> str:
    said = []
    for i, run in enumerate(runs, 1):
        own = [f"{run.ending}: {run.reason}"] if run.reason and run.exit_code != 0 else []
        for name, curve in run.figures.items():
            steps = [step for step, value in zip(curve.steps, curve.values, strict=True) if not math.isfinite(value)]
            if steps:
                own.append(
                    f"{name} wasn't finite at {len(steps):,} of {len(curve.steps):,} steps, first at {steps[0]:,}"
                )
        said += [f"<li>{_number(i)} {_said(text)}</li>" for text in [*own, *run.damage]]
    return f"<ul>{''.join(said)}</ul>" if said else "<p>None was recorded.</p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table whose cells are already HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(i: int) -> str:
    return f'<b class="c{(i - 1) % COLOURS}">{i}</b>'


def _said(text: str) -> str:
    """Returns text escaped for HTML, also within attributes."""
    return escape(as_said(text))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _joined(value: object, by: str) -> str:
    return by.join(map(str, value)) if isinstance(value, list) else ""


def _pairs(value: object) -> str:
    return ", ".join(f"{name} {x}" for name, x in value.items()) if isinstance(value, Mapping) else ""


MOST = 4  # a run
MOST_BYTES = 4 << 20  # a file
PNG = b"\x89PNG\r\n\x1a\n"


def samples(folder: Path) -> Iterator[str]:
    """Yields an HTML `figure` for each sample to show."""
    files = sorted(path for path in folder.glob("step-*") if path.suffix in (".png", ".txt") and _is_file(path))
    for i in sorted({round(k * (len(files) - 1) / (MOST - 1)) for k in range(MOST)} if files else ()):
        path = files[i]
        try:
            content = path.read_bytes()
        except OSError:  # not readable, or deleted meanwhile
            continue
        name = escape(as_said(path.stem))
        if path.suffix == ".txt":
            yield f"<figure><figcaption>{name}</figcaption><pre>{escape(_readable(content))}</pre></figure>"
        elif content.startswith(PNG):
            data = base64.b64encode(content).decode()
            image = f'<img alt="{name}" src="data:image/png;base64,{data}">'
            yield f"<figure><figcaption>{name}</figcaption>{image}</figure>"


def _is_file(path: Path) -> bool:
    """Returns whether `path` is a plain file of at most `MOST_BYTES`."""
    try:
        found = path.stat()
        return stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES
    except OSError:
        return False


def _readable(content: bytes) -> str:
    text = content.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
