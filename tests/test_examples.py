"""Each example of `examples/` learns in bfloat16, in place; `test_docs` trains it in float32, and compares its page."""

import json
import re

import pytest

from tests.commands import CHECKOUT, run

EXAMPLES = sorted(path.parent for path in (CHECKOUT / "examples").glob("*/*.gin"))
LEARNT = {  # by 60 steps
    "spiral": lambda figures: figures["accuracy"] > 0.5,
    "self_play": lambda figures: figures["accuracy"] > 0.9,
    "ring": lambda figures: figures["loss"] < 0.65,  # it begins at 0.84
    "mean_teacher": lambda figures: figures["accuracy"] > 0.5,
    "jax_net": lambda figures: figures["accuracy"] > 0.8,
    "inner_loop": lambda figures: figures["loss"] < 0.9 * figures["unadapted"],
    "catch": lambda figures: figures["caught"] > 0.3,  # it begins at 0.2
    "byol": lambda figures: figures["probe/accuracy"] > 0.9,
    "speech": lambda figures: figures["label_errors"] < 0.3,  # it begins at 1
    "segmentation": lambda figures: figures["iou"] > 0.55,  # it begins at 0.45
    "pcgrad": lambda figures: figures["accuracy"] > 0.5,
    "cart_pole": lambda figures: figures["length"] > 30.0,  # it begins at 10
}
# bfloat16 has too few digits for the motion in one fiftieth of a second, and for seeds.
IN_PART = {"cart_pole": {"net": "bfloat16"}, "catch": {"net": "bfloat16"}}
SMALLER = {  # a narrower network and fewer examples, which learn as much by then
    "speech": ["Speech.size = 24", "utterances.count = 1024"],
}
names = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)


@pytest.mark.long
@names
def test_an_example_trains_by_the_command(folder, tmp_path):
    precision = IN_PART.get(folder.name, "bfloat16")
    flags = ("--gin_param=steps = 60", f"--gin_param=Trainer.precision = {precision!r}", f"--workdir={tmp_path}")
    smaller = [f"--gin_param={text}" for text in SMALLER.get(folder.name, [])]
    done = run(f"--gin_file={folder.name}.gin", *flags, *smaller, cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["step"], result["reason"]) == (60, "finished")
    assert json.loads((tmp_path / "run.json").read_text())["precision"] == precision
    assert LEARNT[folder.name](result["evaluation"])
    assert not re.search("draws the same|folds an rng|gets no rng", done.stdout)
    assert done.stdout.count("calls Python") == (folder.name == "catch")


@names
def test_a_page_runs_the_tests_of_an_example(folder):
    (tests,) = folder.glob("test_*.py")
    pages = [page.read_text() for page in (CHECKOUT / "docs").glob("*.md")]
    shown, copied = f"<!-- from: examples/{folder.name}/{tests.name} -->", f"cp -r examples/{folder.name}/. .\n"
    (page,) = [page for page in pages if shown in page or copied in page]
    assert re.search(rf"<!-- run -->\n```sh\n({re.escape(copied)})?python -m pytest -q {tests.name}\n", page)
