"""`python -m trainers.report`: a page that is well formed, complete, true to the metrics, and self-contained."""

import itertools
import json
import math
import os
import re
import shutil
import struct
import zlib

import pytest

from core.telemetry import Warned
from tests import rights
from tests.commands import CONFIGS, one_paragraph, passed, python
from tests.markup import Page
from tests.written_runs import write_run
from trainers.report.__main__ import main
from trainers.report.page import MOST_BYTES
from trainers.report.svg import BOTTOM, HEIGHT, LEFT, MOST_POINTS, RIGHT, TOP, WIDTH, Line, chart
from trainers.runs.figures import Curve


def png(width=2, height=2):
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x7f" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", rows) + part(b"IEND", b"")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reported(folder, *words):
    assert main([*words]) == 0
    text = (folder / "report.html").read_text()
    assert_nothing_is_fetched(text)
    return Page(text)


def assert_nothing_is_fetched(text):
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "base", "a", "form")
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("href", "srcset", "style", "action")
            assert name != "src" or value.startswith("data:image/png;base64,")
    assert "url(" not in text
    assert "@import" not in text
    (policy,) = [each["content"] for each in page.all("meta") if "http-equiv" in each]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@pytest.mark.long
def test_page_about_real_runs_has_their_figures(folder):
    flags = [f"--gin_param=Trainer.{each}" for each in ("steps=4", "chunk_steps=2", "log_every=2", "evaluate_every=2")]
    passed(f"--gin_file={CONFIGS / 'digits_linear.gin'}", *flags, "--workdir=runs/1", cwd=folder)
    for file in (shutil.copytree(folder / "runs" / "1", folder / "runs" / "0") / "config").glob("*.gin"):
        file.write_text(file.read_text().replace("Experiment.seed = 0", "Experiment.seed = 1"))
    page = reported(folder, "runs")
    lines = [json.loads(line) for line in (folder / "runs" / "1" / "metrics.jsonl").read_text().splitlines()]
    names = {name for line in lines for name in line} - {"step", "split"}
    assert {each["aria-label"] for each in page.all("svg")} == {f"{name} by step" for name in names}
    last = [line for line in lines if line["split"] == "eval"][-1]
    assert f"{last['loss']:.4f}" in page.text("td")
    assert "runs/1: eval/loss" in page.text("title")
    assert "Experiment.seed" in page.text("td")
    assert "no further apart than" in page.text("p") or "over 2 seeds" in page.text("p")
    assert "None was recorded." in page.text("p")
    assert "--workdir=runs/1" in page.text("dd")


def test_settings_that_differ_are_a_table_of_runs(folder):
    for i, rate in enumerate(["0.1", "0.2"]):
        write_run(folder / "runs" / str(i), rate=rate)
    page = reported(folder, "runs")
    assert "2 runs" in page.text("title")
    classes = [each["class"] for each in page.all("g") if re.fullmatch(r"c\d.*", each.get("class", ""))]
    assert classes == ["c0", "c1"]  # one colour a run; held-out curves are solid
    assert "adamw.learning_rate 0.1 0.2" in page.text("td")


def test_chart_holds_its_points_to_a_tenth_of_a_pixel():
    curve = Curve((0, 50, 100, 200), (4.0, 3.0, math.nan, 2.0))
    text = chart(
        "loss", [Line("1", "a & b", 0, True, curve), Line("1", "train", 0, False, Curve((0, 200), (2.0, 3.0)))]
    )
    page = Page(text)
    held, trained = (each["points"] for each in page.all("polyline"))

    def place(step, value):
        x = LEFT + step / 200 * (WIDTH - LEFT - RIGHT)
        return x, TOP + (4.0 - value) / 2.0 * (HEIGHT - TOP - BOTTOM)

    def places(points):
        return [tuple(map(float, each.split(","))) for each in points.split()]

    for found, expected in [(held, [(0, 4.0), (50, 3.0)]), (trained, [(0, 2.0), (200, 3.0)])]:
        for point, (step, value) in zip(places(found), expected, strict=True):
            assert point == pytest.approx(place(step, value), abs=0.06)
    alone = page.all("circle")[-1]  # the part between two gaps
    assert (float(alone["cx"]), float(alone["cy"])) == pytest.approx(place(200, 2.0), abs=0.06)
    assert page.text("title") == "a & b train"
    assert [each["class"] for each in page.all("g")] == ["c0", "c0 dashed"]
    assert [each for each in page.all("text") if "end" in each.get("class", "")] == [
        {"class": "end c0", "x": str(WIDTH - RIGHT + 4), "y": f"{HEIGHT - BOTTOM + 4:.1f}"},  # the held out one's alone
    ]


def test_curve_that_grows_towards_a_bound_is_drawn_evenly():
    page = Page(chart("roc_auc", [Line("1", "", 0, True, Curve((0, 1, 2), (0.05, 0.525, 1.0)))]))
    ys = [float(each["cy"]) for each in page.all("circle")]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.11)


def test_long_curve_keeps_its_extremes():
    values = [math.sin(i / 500) for i in range(20_000)]
    values[7_777], values[12_345], *values[-3:-1] = 9.0, -9.0, 8.0, -8.0
    (line,) = Page(chart("x", [Line("1", "", 0, True, Curve(tuple(range(20_000)), tuple(values)))])).all("polyline")
    ys = [float(each.partition(",")[2]) for each in line["points"].split()]
    assert MOST_POINTS / 2 < len(ys) <= 1.25 * MOST_POINTS
    assert (min(ys), max(ys)) == pytest.approx((TOP, HEIGHT - BOTTOM), abs=0.06)
    xs = [float(each.partition(",")[0]) for each in line["points"].split()]
    assert (xs[0], xs[-1]) == pytest.approx((LEFT, WIDTH - RIGHT), abs=0.06)


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_labels_of_curves_that_end_together_do_not_overlap(end):
    curves = [Curve((0, 1), (1.0 - end, end + i / 1000)) for i in range(10)]
    text = chart("x", [Line(str(i), "", i, True, curve) for i, curve in enumerate(curves)])
    ys = sorted(float(y) for y in re.findall(r'<text class="end c\d" x="\d+" y="([\d.]+)"', text))
    assert len(ys) == 10
    assert min(b - a for a, b in itertools.pairwise(ys)) >= 12
    assert ys[-1] <= HEIGHT


def test_text_of_runs_is_shown_and_not_obeyed(folder):
    name = '<script>alert("1")<\u2215script>&\x1b'
    path = write_run(folder / "runs" / name, exit_code=3, reason="<img src=x onerror=alert(1)> & </body>")
    write_run(folder / "runs" / "b", rate="'</pre><script>'")
    (path / "run.json").write_text(json.dumps({"command": ["<b>", '"'], "git": "\ud800", "versions": {"<i>": 1}}))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "split": "eval", "<b>\\ud800\\"": 1}\n')
    (path / "samples").mkdir()
    (path / "samples" / "step-1.txt").write_bytes(b"<script>\xff</pre>")
    page = reported(folder, "runs")
    assert "<script>" in page.text("pre")
    assert "onerror" in page.text("li")
    assert r"\xff</pre>" in page.text("pre")


def test_samples_are_in_the_page(folder):
    path = write_run(folder / "runs" / "a")
    (path / "samples").mkdir()
    for step in range(10):
        (path / "samples" / f"step-{step:09d}.png").write_bytes(png(step + 1))
    (path / "samples" / "step-000000003.png").write_bytes(b"no picture")
    os.mkfifo(path / "samples" / "step-000000011.png")
    (path / "samples" / "step-000000010.png").write_bytes(png())
    (path / "samples" / "step-000000010.png").chmod(0)
    (path / "samples" / "step-000000011.txt").write_bytes(b"x" * (MOST_BYTES + 1))
    with rights.given_up():
        page = reported(folder, "runs")
    assert "xxx" not in page.text("pre")
    images = page.all("img")
    assert [each["alt"] for each in images] == ["step-000000000", "step-000000007"]


def test_best_that_equals_the_last_is_not_shown_with_it(folder):
    write_run(folder / "again" / "run", losses={100: 0.5, 200: 0.25, 300: 0.25001})
    assert "best 0." not in reported(folder, "again").text("span")


def test_faults_are_listed(folder):
    path = write_run(folder / "a", losses={1: 0.5, 2: math.nan}, exit_code=3, reason="a loss wasn't finite")
    (path / "run.json").write_text("{")
    said = reported(folder, "a").text("li")
    assert "failed (3: not finite): a loss wasn't finite" in said
    assert "eval/loss wasn't finite at 1 of 2 steps, first at 2" in said
    assert "`run.json` holds no JSON object" in said


def test_warnings_are_listed(folder):
    path = write_run(folder / "a")
    assert "Warnings" not in reported(folder, "a").text("h2")
    warned = Warned(path / "warnings.jsonl", 0)
    warned.warn(1200, "the loss <rises>")
    with (path / "warnings.jsonl").open("a") as file:
        file.write('{"step": "x"}\n{"step": 3')
    page = reported(folder, "a")
    assert "Warnings" in page.text("h2")
    assert "step 1,200: the loss <rises>" in page.text("li")
    assert "lines of `warnings.jsonl` can't be read: 1" in page.text("li")


def test_run_that_left_nothing_has_a_page(folder):
    (folder / "a").mkdir()
    (folder / "a" / ".lock").touch()
    page = reported(folder, "a")
    assert "No run has finished" in page.text("p")
    assert page.all("svg") == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ["no run is given"]),
        (["empty"], ["'empty' is no run"]),
        (["run", "--out=no/folder/x.html"], ["`--out` is 'no/folder/x.html'", "No such file or directory"]),
        (["run", "--out=empty"], ["`--out` is 'empty'", "isn't a plain file", "as `--out=report.html`"]),
        (["run", "--out=pipe"], ["`--out` is 'pipe'", "isn't a plain file"]),
        (["run", f"--out={'x' * 300}"], ["File name too long"]),
        (["run", "--ot=x"], ["there is no flag `--ot=x`. Did you mean `--out`?"]),
    ],
)
def test_mistakes_are_one_paragraph(folder, capsys, words, says):
    write_run(folder / "run")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    assert main(words) == 2
    one_paragraph(capsys.readouterr().err, *says)
    assert sorted(os.listdir(folder)) == ["empty", "pipe", "run"]


def test_link_is_followed_and_stays(folder):
    write_run(folder / "run")
    (folder / "there").mkdir()
    (folder / "report.html").symlink_to("there/page.html")
    reported(folder, "run")
    assert (folder / "report.html").is_symlink()
    assert (folder / "there" / "page.html").is_file()


def test_full_disk_leaves_the_page_before(folder, monkeypatch, capsys):
    write_run(folder / "run")
    reported(folder, "run")
    before = (folder / "report.html").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["run"]) == 8
    assert "`report.html` can't be written: No space left on device" in capsys.readouterr().err
    assert (folder / "report.html").read_bytes() == before
    assert sorted(os.listdir(folder)) == ["report.html", "run"]


def test_command_imports_no_tensorflow(folder):
    write_run(folder / "run")
    code = (
        "import runpy, sys; sys.modules['tensorflow'] = None; runpy.run_module('trainers.report', run_name='__main__')"
    )
    done = python("-c", code, "run", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "run in `report.html`\n"
