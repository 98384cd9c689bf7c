"""The pictures of the pages exist and are self-contained; `python -m tools.pictures` makes them."""

import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow as tf

from tests.commands import CHECKOUT
from tests.pages import blocks
from tests.written_runs import write_run
from tools.pictures.__main__ import main
from tools.pictures.diagram import diagram
from tools.pictures.draw import svg
from tools.pictures.shots import chromium
from tools.pictures.terminal import Screen
from tools.pictures.trained import TRAININGS, Training, in_tensorboard, samples, trained
from trainers.hooks.samples import encode_grid

DOCS = CHECKOUT / "docs"
SHOWN = re.compile(r"!\[([^]]*)\]\(pictures/(\S+)\)")
LARGEST = {".svg": 60_000, ".png": 150_000}  # bytes
NAMESPACE = "http://www.w3.org/2000/svg"
BEYOND = re.compile(r"\w+://|url\((?!#)|@import|@font-face|<script|<image|<foreignObject")
ABSOLUTE = re.compile(r"(?<![\w./])/[\w.]+/[\w.]+")
PAGE = """
<!-- run -->
```sh
python -m trainers.runs runs/a runs/b
```

![Two runs](pictures/compared.svg)

<!-- file: train.py -->
```python
import itertools

from core.telemetry.console import Console

console = Console(40, clock=itertools.count(step=2.0).__next__)
for step in (10, 20, 30, 40):
    console.progress(step)
console.close()
print("finished")
```

<!-- run -->
```sh
python train.py
echo '<svg/>' > left.svg
```

![A training](pictures/training.svg)

<!-- run -->
```sh
touch page.html
```

![A page](pictures/page.png)

<!-- run -->
```sh
true
```

![What was left before](pictures/left.svg)
"""


def shown(page: str) -> list[tuple[str, str]]:
    """Returns the alternative text and the name of each picture that a page shows."""
    return SHOWN.findall(page)


def faults(picture: str) -> list[str]:
    """Returns references of an SVG to anything outside it."""
    ElementTree.fromstring(picture)
    text = re.sub(rf"{re.escape(NAMESPACE)}|</|/>", " ", picture)
    return [found[0] for pattern in (BEYOND, ABSOLUTE) for found in pattern.finditer(text)]


def test_every_picture_exists_and_is_self_contained():
    pages = {page.name: page.read_text() for page in DOCS.glob("*.md")}
    names = [name for page in pages.values() for _, name in shown(page)]
    files = {path.name: path for path in (DOCS / "pictures").iterdir()}
    assert set(names) == set(files)
    assert {*TRAININGS} <= set(names)
    assert all(len(text) > 30 for page in pages.values() for text, _ in shown(page))
    made = {block.picture for page in pages.values() for block in blocks(page)} - {None}
    assert made == {"training.svg", "compared.svg", "diagnosis.svg", "rates.png"}
    for name, path in files.items():
        assert path.stat().st_size <= LARGEST[path.suffix], name
        if path.suffix == ".svg":
            assert faults(path.read_text()) == [], name
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "text", ["https://example.org/x", 'url("x.woff2")', "saved in /some/where/runs", "<image/>", "<script>1</script>"]
)
def test_link_out_of_a_picture_is_found(text):
    assert faults(f"<svg xmlns='{NAMESPACE}'><a clip-path='url(#b)'>runs/a, 1/2, s/step</a></svg>") == []
    text = text if text.startswith("<") else f"<text>{text}</text>"
    assert len(faults(f"<svg xmlns='{NAMESPACE}'>{text}</svg>")) == 1


@pytest.mark.parametrize("name", ["step", "house"])
def test_diagram_is_that_of_its_text(name):
    text = (CHECKOUT / "tools" / "pictures" / f"{name}.txt").read_text()
    same = (DOCS / "pictures" / f"{name}.svg").read_text() == diagram(text)
    assert same, f"run `python -m tools.pictures`: `{name}.txt` has changed"


def test_diagram_joins_one_box_with_all_and_equal_numbers_one_to_one():
    drawn = diagram("A <title>\na\nb | c: more & less\nd | e\n= f")
    assert faults(drawn) == []
    arrows = [path for path in ElementTree.fromstring(drawn).iter(f"{{{NAMESPACE}}}path") if path.get("marker-end")]
    assert len(arrows) == 4
    assert "A &lt;title&gt;" in drawn
    assert "more &amp; less" in drawn


def test_text_wider_than_its_box_is_refused():
    with pytest.raises(ValueError, match=f"`{'x' * 70}: ` is wider than its box of 360 pixels: shorten it"):
        diagram(f"A title\n{'x' * 70} | b")


def test_diagram_of_the_packages_names_those_that_exist():
    boxes = (CHECKOUT / "tools" / "pictures" / "house.txt").read_text().splitlines()[1:]
    for names in (part.partition(":")[0].strip(" =") for line in boxes for part in line.split("|")):
        package, _, modules = names.partition(".")
        for module in modules.split(", ") if modules else []:
            folder = CHECKOUT / package / module
            assert folder.is_dir() or folder.with_suffix(".py").is_file(), f"`{package}.{module}`"


@pytest.mark.long
def test_pictures_of_a_page_are_made_by_its_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)  # no Chromium
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", rate="0.2")
    page, out = tmp_path / "page.md", tmp_path / "out"
    page.write_text(f"<!-- run -->\n```sh\ncp -r {tmp_path}/runs .\n```\n{PAGE}")
    assert main([str(page), f"--out={out}"]) == 1
    assert "page.png needs Chromium" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"compared.svg", "training.svg", "left.svg"}
    assert (out / "left.svg").read_text() == "<svg/>\n"
    compared, training = (words(out / f"{name}.svg") for name in ("compared", "training"))
    assert compared.startswith("$ python -m trainers.runs runs/a runs/b")
    assert "adamw.learning_rate" in compared
    assert "⠤" in compared or "⣀" in compared or "⠉" in compared
    assert training.startswith("$ python train.py")
    assert re.search(r"━ +30/40  eta 0:0\d", training)  # the first bar beyond two thirds
    assert "40/40" not in training
    assert "finished" not in training


def words(path):
    """Returns the readable text of a picture."""
    picture = path.read_text()
    assert faults(picture) == []
    texts = [each.text for each in ElementTree.fromstring(picture).iter() if each.tag.endswith("}text")]
    return "".join(texts).replace("\xa0", " ")


def test_picture_of_a_training_is_that_of_its_workdir(tmp_path):
    flags = ("--gin_param=Trainer.steps = 2", "--gin_param=Trainer.log_every = 1")
    training = Training("digits_linear", flags, lambda workdir: (workdir / "result.json").read_bytes())
    assert b'"reason": "finished"' in trained(training, tmp_path)
    with pytest.raises(RuntimeError, match="digits_linear ended with 2:"):
        trained(training._replace(flags=("--gin_param=Trainer.pace = 2",)), tmp_path)


def test_samples_are_those_of_the_last_step_with_larger_pixels(tmp_path):
    (tmp_path / "samples").mkdir()
    for step, value in enumerate((0.0, 1.0)):
        image = tf.fill([1, 8, 8, 1], value)
        (tmp_path / "samples" / f"step-{step}.png").write_bytes(encode_grid(image))
    drawn = tf.io.decode_png(samples(tmp_path))
    assert drawn.shape == [60, 60, 1]
    assert np.all(drawn == 255)


def test_tensorboard_is_shown_if_there_is_chromium(tmp_path):
    write_run(tmp_path / "runs" / "a")
    with tf.summary.create_file_writer(str(tmp_path / "runs" / "a" / "events")).as_default():
        tf.summary.scalar("loss", 0.5, step=1)
    drawn = in_tensorboard(tmp_path / "runs" / "a")
    assert drawn is None if chromium() is None else drawn.startswith(b"\x89PNG")


def test_failed_command_makes_no_picture(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n```sh\necho why; exit 3\n```\n\n![Nothing](pictures/none.svg)\n")
    with pytest.raises(RuntimeError, match=r"exit code 3 of\n\$ echo why; exit 3\nwhy"):
        main([str(page), f"--out={tmp_path / 'out'}"])


BAR = "\x1b[?25l\x1b[36m━━\x1b[0m 1/2\r\x1b[2K\x1b[1mloss\x1b[0m 0.5\r\n━━━━ 2/2\r\x1b[2K\x1b[?25h"


def test_bar_is_moved_below_the_lines():
    screen = Screen(20)
    screen.feed(BAR)
    assert screen.text == "loss 0.5\n"
    assert screen.ansi == "\x1b[1mloss\x1b[0m 0.5\x1b[0m\n"


def test_sequence_may_come_in_parts():
    for place in range(len(BAR)):
        screen = Screen(20)
        screen.feed(BAR[:place])
        screen.feed(BAR[place:])
        assert screen.text == "loss 0.5\n", place


def test_long_line_is_broken_and_short_one_written_over():
    screen = Screen(4)
    screen.feed("abcdef\r\n1234\r5\r\n\nx\x1b[2Ay\x1b[Az")
    assert screen.text == "abcd\nefz\n5y34\n\nx"


def test_unknown_sequence_is_named():
    with pytest.raises(ValueError, match=r"doesn't know `ESC\[3J`"):
        Screen(4).feed("\x1b[3J")


def test_text_of_a_picture_is_at_its_place():
    drawn = ElementTree.fromstring(svg("ab \x1b[31mcd\x1b[0m\n\x1b[2mlonger\x1b[0m   ", "one"))
    texts = [each for each in drawn.iter() if each.tag.endswith("}text")]
    assert [each.text.replace("\xa0", " ") for each in texts] == ["ab ", "cd", "longer"]
    letter = float(texts[0].get("textLength")) / 3
    assert [float(each.get("x")) / letter for each in texts] == pytest.approx([0, 3, 0])
    assert [float(each.get("textLength")) / letter for each in texts] == pytest.approx([3, 2, 6])
    assert len({each.get("class") for each in texts}) == 3
