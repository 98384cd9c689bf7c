"""Parses a page's instructions: files to write, commands to run, and pictures of their results."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import ports
from tests.commands import CHECKOUT

BLOCK = re.compile(
    r"<!-- (file: (?P<file>\S+)|from: (?P<source>\S+)|run) -->\n```\w*\n(?P<text>.*?)```"
    r"(\n\n!\[[^]]*\]\(pictures/(?P<picture>\S+)\))?",
    re.DOTALL,
)
SMALLER = {  # shipped files as pages' commands get them in tests
    "configs/digits_mlp.gin": [("steps = 3000", "steps = 1000")],
    "configs/digits_convnet.gin": [("channels = [32, 64]", "channels = [4, 8]")],
    "configs/text_70b.gin": [("num_layers = 80", "num_layers = 2")],
    "configs/text_tiny.gin": [
        ("num_layers = 2", "num_layers = 1"),
        ("steps = 400", "steps = 50"),
        ("Trainer.hooks = [@Texts()]", ""),
        ("Texts.every = 200", ""),
        ('Texts.prompts = ["The "]', ""),
    ],
    "configs/text_lstm.gin": [("num_layers = 2", "num_layers = 1"), ("context = 128", "context = 16")],
    "configs/text_bert.gin": [("size = 128", "size = 16"), ("context = 128", "context = 16")],
    "examples/byol/byol.gin": [("steps = 600", "steps = 60\nByol.channels = [4, 8]\nByol.size = 8")],
    "examples/cart_pole/cart_pole.gin": [("steps = 600", "steps = 60\nCartPole.horizon = 4")],
    "examples/catch/catch.gin": [("steps = 300", "steps = 60\nCatch.moves = 3\nTrainer.chunk_steps = 5")],
    "examples/inner_loop/inner_loop.gin": [("steps = 600", "steps = 60")],
    "examples/jax_net/jax_net.gin": [("steps = 600", "steps = 100")],
    "examples/mean_teacher/mean_teacher.gin": [("steps = 600", "steps = 60")],
    "examples/pcgrad/pcgrad.gin": [("steps = 600", "steps = 60")],
    "examples/ring/ring.gin": [("steps = 2000", "steps = 100")],
    "examples/segmentation/segmentation.gin": [("steps = 300", "steps = 40\nSegmentation.channels = [4, 8]")],
    "examples/speech/speech.gin": [
        ("steps = 400", "steps = 60\nSpeech.size = 8"),
        ("test/utterances.count = 512", "test/utterances.count = 64\nutterances.count = 256"),
    ],
    "examples/spiral/spiral.gin": [("steps = 1000", "steps = 200")],
}
PART = re.compile(r"<!-- part of: (\S+) -->\n```\w*\n(.*?)```", re.DOTALL)


class Block(NamedTuple):
    """A file if it has a name, or else commands; with the picture below them."""

    text: str
    file: str | None = None
    source: str | None = None  # in the checkout, where the file is copied from
    picture: str | None = None


def blocks(page: str) -> Iterator[Block]:
    """Yields the blocks below `<!-- file: NAME -->`, `<!-- from: PATH -->` and `<!-- run -->`."""
    for found in BLOCK.finditer(page):
        name = found["file"] or (found["source"] and Path(found["source"]).name)
        yield Block(found["text"], name, found["source"], found["picture"])


def commands(page: str, folder: Path, *, smaller: bool = False) -> Iterator[Block]:
    """Writes the files of a page into a new folder, and yields the commands to run there, in order.

    `smaller` makes shipped networks smaller, and trainings shorter, where the page sets neither.
    """
    for name in ("configs", "examples"):
        if smaller:
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        else:
            os.symlink(CHECKOUT / name, folder / name)
    for name, changes in SMALLER.items() if smaller else ():
        text = (folder / name).read_text()
        for shipped, small in changes:
            assert text.count(shipped) == 1, f"{name} doesn't say `{shipped}` once"
            text = text.replace(shipped, small)
        (folder / name).write_text(text)
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        else:
            yield block


def bash(text: str, python: Sequence[str] = (sys.executable,)) -> list[str]:
    """Returns the command line that runs these commands; `python` is this one, or its replacement."""
    text = text.replace("-m trainers.launch ", " ".join(["-m trainers.launch", *ports.flags(), ""]))
    return ["bash", "-euo", "pipefail", "-c", f'python() {{ {shlex.join(python)} "$@"; }}; {text}']


def session(page: str) -> tuple[str, list[str]]:
    """Returns a page's Python blocks without a comment above as one program, and the lines that it should print.

    Each `print(...) # 2.0` has its output behind it.
    """
    code = "\n".join(re.findall(r"(?<!-->\n)```python\n(.*?)```", page, re.DOTALL))
    shown = re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)
    assert code.count("print(") == len(shown), "a `print(...)` has no comment behind it that says what it prints"
    return code, shown


def section(page: str) -> str:
    """Returns the text below the heading that a page is linked by, down to the next one of its rank, or the whole."""
    name, _, anchor = page.partition("#")
    lines = (CHECKOUT / name).read_text().splitlines()
    if not anchor:
        return "\n".join(lines)
    found = [(i, re.fullmatch("(#{1,4}) (.*)", line)) for i, line in enumerate(lines)]
    ranks = [(i, len(heading[1]), slug(heading[2])) for i, heading in found if heading]
    ((first, rank),) = [(i, rank) for i, rank, name in ranks if name == anchor]
    after = [i for i, other, _ in ranks if i > first and other <= rank]
    return "\n".join(lines[first : after[0] if after else None])


def slug(title: str) -> str:
    """Returns the anchor that the site gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
