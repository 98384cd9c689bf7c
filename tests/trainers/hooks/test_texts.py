"""Texts of a language model: shown during training, written on demand, and refusals."""

import contextlib
from types import SimpleNamespace

import pytest
import tensorflow as tf

from core.data import digits, markov, topics
from core.distribution import mirrored
from core.errors import ConfigurationError, NotFiniteError
from core.optimizers import adamw, chain, ema, sgd
from core.random import Rng
from core.task import Task
from models import LanguageModel
from models.classifiers import MlpClassifier
from tests.commands import CONFIGS, passed, refused
from tests.trainers.trainer_lab import make, train
from trainers.hooks import Texts
from trainers.hooks import texts as hooks_texts
from trainers.hooks.texts import make_writer, readable
from trainers.main import parse

TINY = f"--gin_file={CONFIGS / 'text_tiny.gin'}"
SHORT = [
    f"--gin_param={text}"
    for text in (
        "LanguageModel.num_layers = 1",
        "steps = 4",
        "warmup_cosine.warmup_steps = 1",
        "Trainer.chunk_steps = 2",
        "Trainer.log_every = 2",
        "Trainer.evaluate_every = None",
        "Trainer.checkpoint_every = 4",
        "Texts.every = 2",
    )
]


@pytest.mark.long
def test_texts_are_shown_while_a_model_trains_and_written_on_demand(tmp_path):
    done = passed(TINY, *SHORT, "--workdir=run", cwd=tmp_path)
    shown = sorted((tmp_path / "run" / "samples").glob("step-*.txt"))
    assert [path.name for path in shown] == ["step-000000002.txt", "step-000000004.txt"]
    for path in shown:
        assert path.read_bytes().startswith(b"The ")
        assert readable(path.read_bytes()).splitlines()[0] in done.stdout

    flags = [TINY, *SHORT, "--workdir=run", "--mode=sample", "--prompt=If a", "--prompt=class B:", "--samples=2"]
    done = passed(*flags, cwd=tmp_path)
    assert "4 texts of step 4" in done.stdout
    texts = [path.read_bytes() for path in sorted((tmp_path / "run" / "samples").glob("sample-*.txt"))]
    assert [text.startswith(b"If a") for text in texts] == [True, True, False, False]
    assert [text.startswith(b"class B:") for text in texts] == [False, False, True, True]
    assert len(set(texts)) == 4
    assert readable(texts[2]) in done.stdout


@pytest.mark.long
def test_averages_write_on_two_replicas_as_on_one_device(tmp_path):
    def wrote(name, *averages, strategy=None):
        settings = {"vocabulary": 257, "context": 16, "num_layers": 1, "size": 8, "num_heads": 1}
        trainer = make(
            tmp_path,
            name,
            task=lambda rng: LanguageModel(rng=rng, optimizer=chain(adamw(0.1), *averages), **settings),
            source=topics("train", 16),
            strategy=strategy,
            steps=4,
            chunk_steps=4,
            log_every=None,
            global_batch_size=4,
            hooks=[Texts(prompts=["The "])],
        )
        train(trainer)
        return (tmp_path / name / "samples" / "step-000000004.txt").read_bytes()

    found = wrote("one", ema())
    assert wrote("two", ema(), strategy=mirrored(2)) == found
    assert wrote("without") != found


@pytest.mark.long
def test_flags_for_the_other_kind_are_refused(tmp_path):
    images = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--mode=sample", "--prompt=If"]
    refused(*images, cwd=tmp_path, exit_code=2, says=["`LinearClassifier` writes no text", "`--prompt`"])
    refused(TINY, "--mode=sample", cwd=tmp_path, exit_code=2, says=["`--prompt` is missing: `LanguageModel` continues"])
    pictures = (TINY, "--mode=sample", "--images=pictures")
    refused(*pictures, cwd=tmp_path, exit_code=2, says=["`LanguageModel` translates no images"])
    with pytest.raises(ConfigurationError, match=r"`--prompt` is for texts and `--images` for images"):
        parse([TINY, "--mode=sample", "--prompt=If", "--images=pictures"])
    with pytest.raises(ConfigurationError, match="`--prompt` has no effect with `--mode=train`"):
        parse([TINY, "--prompt=If"])


class Writes(Task):
    """Returns its function's output for prompts and the end token."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def write(self, rng, prompts, lengths, *, end, vocabulary):
        return self.made(prompts, end)


def model(**settings):
    sizes = {"vocabulary": 257, "context": 8, "num_layers": 1, "size": 4, "num_heads": 1, "optimizer": sgd(0.1)}
    return LanguageModel(rng=Rng.from_seed(0), **{**sizes, **settings})


@pytest.mark.parametrize(
    ("task", "source", "prompts", "says"),
    [
        (model, topics("test", 8), [""], "a prompt is empty"),
        (model, markov("test", 8), ["abZ"], "the text holds b'Z', but `markov` knows the letters abcdefgh alone"),
        (model, digits(), ["If"], "the source `digits` has no `tokenizer`"),
        (
            lambda: MlpClassifier(sizes=[2, 2], optimizer=sgd(0.1), rng=Rng.from_seed(0)),
            topics("test", 8),
            ["If"],
            "`MlpClassifier` writes no text: it needs `write",
        ),
        (
            lambda: Writes(lambda prompts, end: tf.zeros([3])),
            topics("test", 8),
            ["If"],
            r"`Writes.write` returned .* integers of shape \[1, length\]",
        ),
    ],
)
def test_prompts_that_nothing_can_follow_are_refused(task, source, prompts, says):
    with pytest.raises(ConfigurationError, match=says):
        make_writer(task(), source, prompts, seed=0)


def test_prompt_longer_than_a_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a prompt has 10 tokens, but a text has 8, including its prompt"):
        make_writer(model(), topics("test", 8), ["If", "0123456789"], seed=0)
    long = [TINY, *SHORT, f"--gin_param=Texts.prompts = ['{'x' * 32}']"]
    refused(*long, cwd=tmp_path, exit_code=2, says=["a prompt has 32 tokens, but a text has 32, including its prompt"])


@pytest.mark.long
def test_texts_are_the_same_in_groups_and_the_tokenizer_has_all_of_their_tokens(monkeypatch):
    prompts = ["a", "bc", "def", "hi", "g"]

    task = model(vocabulary=5000)
    together = make_writer(task, topics("test", 8), prompts, seed=0)()
    monkeypatch.setattr(hooks_texts, "TOGETHER", 2)
    write = make_writer(task, topics("test", 8), prompts, seed=0)
    assert write() == together
    assert [text[: len(prompt)].decode() for text, prompt in zip(together, prompts, strict=True)] == prompts
    assert len({text[len(prompt) :] for text, prompt in zip(together, prompts, strict=True)}) == len(prompts)
    task.net.tokens.w.assign(task.net.tokens.w * float("nan"))
    with pytest.raises(NotFiniteError, match=r"`LanguageModel.write` can't choose a token: logits aren't finite"):
        write()


def test_texts_begin_on_the_screen(tmp_path):
    notes = []
    hook = Texts(prompts=["a"])
    hook._write = lambda: [b"1\n2\n3\n4\n5\xff", b"one"]
    hook(
        SimpleNamespace(
            step=7,
            averaged=SimpleNamespace(update=lambda: None),
            telemetry=SimpleNamespace(note=notes.append, text=lambda *_: None, sparing=contextlib.nullcontext),
            workdir=SimpleNamespace(path=tmp_path),
        )
    )
    assert (tmp_path / "samples" / "step-000000007.txt").read_bytes() == b"1\n2\n3\n4\n5\xff\n\none\n\n"
    assert notes == ["  │ 1\n  │ 2\n  │ 3\n  │ 4\n  │ …", "  │ one"]


@pytest.mark.parametrize("prompts", ["The ", [], [1]])
def test_prompts_are_a_list_of_texts(prompts):
    with pytest.raises(ConfigurationError, match=r"`Texts.prompts` is .*; give a list of texts"):
        Texts(prompts=prompts)


def test_texts_end_where_documents_do_and_any_bytes_are_a_prompt():
    def made(prompts, end):
        return tf.concat([prompts, tf.fill([2, 2], ord("c")), tf.fill([2, 2], end)], 1)

    texts = make_writer(Writes(made), topics("test", 8), ["\udcffa", "b"], seed=0)()
    assert texts == [b"\xffacc", b"b"]  # the second continues with the end token, which pads its row


def test_texts_do_not_move_the_screen():
    assert readable(b"a\x1b[2J\r\n\xffb\x07\xc2\xa0c") == "a\\x1b[2J\\r\n\\xffb\\x07\\xa0c"
