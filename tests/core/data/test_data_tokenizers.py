"""Tokenizers: any bytes survive a round trip, and the end of a document isn't text."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from core.data import Tokenizer, bpe, byte_tokens, text_files, topics, train_bpe
from core.data.bpe import END
from core.errors import ConfigurationError, DataError
from tests.commands import CHECKOUT

TEXTS = [b"the cat sat on the mat\n" * 20, "né né né, 漢字 漢字\n".encode() * 20]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe") / "bpe.json"
    train_bpe(TEXTS, path, vocabulary=300)
    return path


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def tokenizer(request, file):
    return byte_tokens() if request.param == "bytes" else bpe(str(file))


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(text=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_tokenizer_decodes_every_text_to_itself(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.end not in tokens
    assert tokenizer.byte_counts[tokens].sum() == len(text)


@pytest.mark.parametrize("text", [b"", END.encode(), f"a{END}b".encode(), bytes(range(256)), b"\xff\xc3", b"\r\n \t"])
def test_texts_that_look_like_something_else_are_text(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.end not in tokens


def test_the_end_of_a_document_has_no_text(tokenizer):
    assert tokenizer.decode([tokenizer.end]) == b""
    assert tokenizer.byte_counts.shape == (tokenizer.vocabulary,)
    assert tokenizer.byte_counts[tokenizer.end] == 0
    assert tokenizer.byte_counts.dtype == np.int32
    with pytest.raises(ValueError, match=f"holds {tokenizer.vocabulary}, but this tokenizer's are 0 to"):
        tokenizer.decode([0, tokenizer.vocabulary])


def test_bytes_are_themselves():
    tokenizer = byte_tokens()
    assert (tokenizer.vocabulary, tokenizer.end, tokenizer.identity) == (257, 256, "bytes")
    assert tokenizer.encode(b"az\xff") == [97, 122, 255]


def test_byte_pairs_are_learnt_and_make_text_shorter(file):
    tokenizer = bpe(str(file))
    assert 257 < tokenizer.vocabulary <= 300
    assert len(tokenizer.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    source = topics("test", 64, tokenizer=tokenizer)
    assert len(source) < len(topics("test", 64))
    assert source.tokenizer is tokenizer


@pytest.mark.long
def test_the_same_texts_give_the_same_file_in_every_process(file, tmp_path):
    script = (
        "import sys; from pathlib import Path; from core.data import train_bpe; "
        "train_bpe([bytes.fromhex(x) for x in sys.argv[2:]], Path(sys.argv[1]), vocabulary=300)"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "bpe.json"), *(text.hex() for text in TEXTS)]
    subprocess.run(words, cwd=CHECKOUT, env={**os.environ, "PYTHONHASHSEED": "7"}, check=True, timeout=100)
    assert (tmp_path / "bpe.json").read_bytes() == file.read_bytes()
    assert bpe(str(tmp_path / "bpe.json")).identity == bpe(str(file)).identity


def test_the_package_s_own_encoding_is_the_same(file):
    peer = tokenizers.Tokenizer.from_file(str(file))
    for text in TEXTS:
        assert bpe(str(file)).encode(text) == peer.encode(text.decode(), add_special_tokens=False).ids


def test_missing_package_is_named_with_its_extra(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for call in (lambda: bpe(str(file)), lambda: train_bpe(TEXTS, file, vocabulary=300)):
        with pytest.raises(ConfigurationError, match=r"`tokenizers`.*`pip install -e '\.\[text\]'` installs it"):
            call()


def varied(file, path, change):
    coder = tokenizers.Tokenizer.from_file(str(file))
    change(coder)
    coder.save(str(path))
    return str(path)


def beginning(coder):
    coder.add_special_tokens(["<s>"])
    places = [("<s>", coder.token_to_id("<s>"))]
    coder.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=places)


@pytest.mark.parametrize(
    "change",
    [
        lambda coder: coder.add_tokens(["[X]", "né "]),
        lambda coder: coder.add_special_tokens(["<s>", tokenizers.AddedToken("[X]", lstrip=True, rstrip=True)]),
        lambda coder: coder.enable_truncation(3),
        lambda coder: coder.enable_padding(length=50),
        beginning,
    ],
)
def test_special_tokens_of_other_files_change_no_text(file, tmp_path, change):
    tokenizer = bpe(varied(file, tmp_path / "x.json", change))
    text = "the [X] cat <s>  né  é".encode()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.byte_counts[tokenizer.encode(text)].sum() == len(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda coder: coder.add_tokens([tokenizers.AddedToken("[X]", lstrip=True)]),
        lambda coder: setattr(coder.model, "dropout", 0.3),
    ],
)
def test_a_file_whose_tokens_leave_out_spaces_or_hang_on_chance_is_refused(file, tmp_path, change):
    with pytest.raises(DataError, match=r"x.json leaves out spaces, or merges by chance"):
        bpe(varied(file, tmp_path / "x.json", change))


def damaged(file, before, after):
    content = file.read_text()
    assert before in content
    return content.replace(before, after).encode()


STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}


def normalized(file, normalizer):
    return damaged(file, '"normalizer": null', f'"normalizer": {json.dumps(normalizer)}')


def with_ends(file, **said):
    """Returns the file with another description of the end token, or none; it stays in the vocabulary."""
    content = json.loads(file.read_text())
    content["added_tokens"] = [{**end, **said} for end in content["added_tokens"] if said]
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda file: b"", "a tokenizer file"),
        (lambda file: b"\xff\xfe", "a tokenizer file"),
        (lambda file: file.read_bytes()[:-20], "a tokenizer file"),
        (lambda file: damaged(file, END, "<end>"), r"has no token `<\|endoftext\|>`"),
        (lambda file: damaged(file, '"A": ', '"漢": '), "isn't of bytes"),
        (lambda file: with_ends(file), r"takes `<\|endoftext\|>` for text"),
        (lambda file: with_ends(file, special=False), r"takes `<\|endoftext\|>` for text"),
        (lambda file: normalized(file, {"type": "Lowercase"}), r"changes text before .*`normalizer` is Lowercase"),
        (lambda file: normalized(file, {"type": "NFC"}), r"changes text before .*`normalizer` is NFC"),
        (lambda file: normalized(file, STRIP), r"changes text before .*`normalizer` is Strip"),
        (lambda file: normalized(file, {"type": "Sequence", "normalizers": [STRIP]}), "`normalizer` is Sequence"),
        (lambda file: damaged(file, '"add_prefix_space": false', '"add_prefix_space": true'), "changes text"),
    ],
)
def test_a_file_that_is_no_tokenizer_of_bytes_is_refused(file, tmp_path, change, says):
    (tmp_path / "x.json").write_bytes(change(file))
    with pytest.raises(DataError, match=f"x.json .*{says}"):
        bpe(str(tmp_path / "x.json"))


def test_words_are_no_byte_pairs(file, tmp_path):
    coder = tokenizers.Tokenizer.from_file(str(file))
    coder.model = tokenizers.models.WordLevel(coder.get_vocab(), unk_token="a")
    coder.save(str(tmp_path / "x.json"))
    with pytest.raises(DataError, match=r"x.json is of WordLevel, not of byte pairs"):
        bpe(str(tmp_path / "x.json"))


def test_missing_or_too_large_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"x.json can't be read: No such file"):
        bpe(str(tmp_path / "x.json"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe"):
        bpe(str(tmp_path / "pipe"))
    with (tmp_path / "x.json").open("wb") as large:
        large.truncate(2**40)
    with pytest.raises(DataError, match="has 1,099,511,627,776 bytes, too many"):
        bpe(str(tmp_path / "x.json"))


def test_vocabulary_without_room_for_a_pair_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"`vocabulary` is 257, but .*: give 258 or more"):
        train_bpe(TEXTS, tmp_path / "x.json", vocabulary=257)
    train_bpe(TEXTS, tmp_path / "x.json", vocabulary=258)
    assert bpe(str(tmp_path / "x.json")).vocabulary == 258


def removes(pattern):
    """Returns a pre-tokenizer that removes text which the probe doesn't contain."""

    def change(coder):
        byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        split = tokenizers.pre_tokenizers.Split(pattern, "removed")
        coder.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, byte_level])

    return change


def test_text_that_a_tokenizer_leaves_out_is_named(file, tmp_path):
    leaving = bpe(varied(file, tmp_path / "x.json", removes("%%")))
    np.testing.assert_array_equal(leaving.encode_whole(b"the cat"), leaving.encode(b"the cat"))
    says = rf"`tokenizer` \('{leaving.identity[:16]}'\) makes 6 bytes of 8, and b' cat' of b'%% cat': take one"
    (tmp_path / "a.txt").write_bytes(b"on%% cat")
    with pytest.raises(DataError, match=says):
        text_files(str(tmp_path / "a.txt"), 2, tokenizer=leaving)
    with pytest.raises(DataError, match=r"makes 6 bytes of 8, and b'' of b'%%'"):
        leaving.encode_whole(b"on cat%%")
    with pytest.raises(DataError, match="of b'the "):
        topics("test", 64, tokenizer=bpe(varied(file, tmp_path / "y.json", removes("the "))))


class Named(Tokenizer):
    def encode(self, text):
        return [0] * len(text)


def test_an_identity_that_a_file_of_tokens_has_no_room_for_is_refused():
    for identity in ("x" * 65, "né"):
        with pytest.raises(ValueError, match=rf"`identity` is '{identity[:2]}.* room for 64 ASCII characters"):
            Named([b"x", b""], end=1, identity=identity)
    assert Named([b"x", b""], end=1, identity="x" * 64).identity == "x" * 64
