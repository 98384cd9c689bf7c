"""The embedded topics: the file, its licence, and a test split that training never sees."""

import ast
import gzip
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import gin
import numpy as np
import pytest
from data_lab import everything

import core.data
from core.data import topics
from core.errors import ConfigurationError

FILE = Path(core.data.__file__).parent / "embedded" / "topics.json.gz"
ATTRIBUTION = (FILE.parent / "ATTRIBUTION.md").read_text().partition("# topics.json.gz")[2]


@pytest.fixture(scope="module")
def stored():
    return json.loads(gzip.decompress(FILE.read_bytes()))


def test_the_file_is_small_and_holds_what_its_attribution_says(stored):
    assert FILE.stat().st_size < 200_000
    assert hashlib.sha256(gzip.decompress(FILE.read_bytes())).hexdigest() in ATTRIBUTION
    assert {split: len(texts) for split, texts in stored.items()} == {"train": 63, "test": 16}
    assert stored["test"]["pass"].startswith('The "pass" statement\n')


def test_no_paragraph_to_test_with_is_one_to_train_on(stored):
    paragraphs = {
        split: {part for text in texts.values() for part in text.split("\n\n") if len(part) > 60}
        for split, texts in stored.items()
    }
    assert len(paragraphs["test"]) > 100
    assert not paragraphs["test"] & paragraphs["train"]


def test_the_documented_lines_make_such_a_file_and_such_a_split(stored, tmp_path):
    """Another Python has other topics; from the file's topics, the lines make its exact split."""
    (lines,) = re.findall(r"```python\n(.*?)```", ATTRIBUTION, re.DOTALL)
    (tmp_path / "make_topics.py").write_text(lines)
    package = tmp_path / "pydoc_data"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "topics.py").write_text(f"topics = {stored['train'] | stored['test']!r}")
    assert ast.parse(lines)
    subprocess.run([sys.executable, "make_topics.py", "made.gz"], cwd=tmp_path, check=True, timeout=60)
    assert gzip.decompress((tmp_path / "made.gz").read_bytes()) == gzip.decompress(FILE.read_bytes())


def test_the_licence_ships_next_to_the_file():
    licence = (FILE.parent / "LICENSE-PSF.txt").read_text()
    for part in ("PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2", "Copyright (c) 2001", "Agreement"):
        assert part in licence
    for part in ("Python Software Foundation", "Python 3.11.7", "LICENSE-PSF.txt", "Changes"):
        assert part in ATTRIBUTION


@pytest.mark.parametrize("split", ["train", "test"])
def test_topics_are_documents_with_all_of_the_text(stored, split):
    source = topics(split, 128)
    found = everything(source)
    real = found["document"] >= 0
    real[1:, 0] = False  # the token that was the last target of the window before
    tokens = found["tokens"][real]
    documents = source.tokenizer.decode(tokens).decode()
    assert documents == "".join(stored[split].values())
    ends = np.flatnonzero(tokens == source.tokenizer.end)
    assert np.diff([-1, *ends]).tolist() == [len(text.encode()) + 1 for text in stored[split].values()]


def test_a_gin_file_chooses_split_and_tokenizer():
    gin.parse_config("topics.split = 'test'\ntopics.length = 64\ntopics.tokenizer = @byte_tokens()")
    assert (len(topics()), topics().length) == (727, 64)


def test_another_split_is_refused():
    with pytest.raises(ConfigurationError, match=r"`split` of `topics` is 'tests'.*Did you mean `test`"):
        topics("tests", 8)
