"""The language model of LSTMs: its equations, documents, texts, and states that last over batches."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from language_lab import CONTEXT, END, VOCABULARY, batch

from core.data import ArraySource, continued
from core.errors import ConfigurationError, DataError
from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng
from core.testing import Run, assemble, assert_task, on_virtual_cpus, on_virtual_mesh
from models import LSTMLanguageModel, beam_search, greedy
from tests.commands import CONFIGS, fork_server, passed
from tools.invariance.subjects import configured

RNG = Rng.from_seed(0)
SEQUENCES = 4


def make_task(*, rng=RNG, **settings):
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "num_layers": 2, "size": 6, "optimizer": sgd(0.1)}
    return LSTMLanguageModel(rng=rng, **{**sizes, **settings})


def lively(**settings):
    """Returns a task whose predictions depend on everything before: weights far larger than initially."""
    task = make_task(**settings)
    for variable in task.net.parameters().values():
        variable.assign(3.0 * variable)
    return task


def test_values_of_windows_say_their_sequence_and_place():
    windows = ArraySource({"x": np.arange(11)}, name="windows")
    source = continued(windows, sequences=2)  # of five windows each; the last window is left out
    assert [source.values(name).tolist() for name in ("sequence", "place")] == [[0] * 5 + [1] * 5, [*range(5)] * 2]
    assert source.values("x").tolist() == [*range(10)]
    assert source.gather(tf.constant([7]))["sequence"].numpy() == source.values("sequence")[7]


def logits_of(net, text):
    """Returns the logits after each token of one text, computed in float64 from the equations."""
    get = {path: v.numpy().astype("f8") for path, v in net.parameters().items()}

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    x = get["tokens/w"][text]
    for layer in range(2):
        w, u, b = (get[f"layers/{layer}/{name}"] for name in "wub")
        h = c = np.zeros(net.size)
        outputs = []
        for step in x:
            i, f, g, o = np.split(step @ w + h @ u + b, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
        x = np.stack(outputs)
    return x @ get["tokens/w"].T


def test_packed_documents_have_the_logits_of_the_equations_alone():
    net, window = lively().net, batch(4)
    tokens, document = (window[name][:, :CONTEXT] for name in ("tokens", "document"))
    found = net(tokens, document).numpy()
    for row, ids, logits in zip(tokens.numpy(), document.numpy(), found, strict=True):
        for i in set(ids) - {-1}:
            np.testing.assert_allclose(logits[ids == i], logits_of(net, row[ids == i]), atol=1e-5)
    assert np.ptp(found) > 0.5


def test_lstm_passes_all_checks_of_a_task():
    assert_task(make_task(dropout=0.1), batch(3), causal="tokens", padding="document", except_for=["bytes"])


@pytest.mark.parametrize("decoder", [greedy(), beam_search(width=1)])
def test_texts_continue_prompts_of_unlike_length_with_the_most_probable_token(decoder):
    task = lively(decoder=decoder)
    prompts, lengths = [[1, 2, 3, 4], [5, 0, 0, 0]], [4, 1]
    found = task.write(RNG, tf.constant(prompts), tf.constant(lengths), end=END, vocabulary=VOCABULARY)
    for row, prompt, length in zip(found.numpy(), prompts, lengths, strict=True):
        text = prompt[:length]
        while len(text) < CONTEXT:
            text.append(END if END in text[length:] else int(np.argmax(logits_of(task.net, text)[-1])))
        np.testing.assert_array_equal(row, text)


def test_mesh_is_refused_by_name():
    window = {name: x.numpy() for name, x in batch(4).items()}
    with pytest.raises(ConfigurationError, match=r"`unroll` computes `LSTM` in a loop over time.*`Experiment.strategy"):
        Run(assemble(make_task, on_virtual_mesh(2, 1, [])), window).train(1)


def test_configuration_has_as_many_parameters_as_text_nano(tmp_path):
    def count(name):
        task = configured(CONFIGS / f"{name}.gin", tmp_path).make(on_virtual_cpus(1)).task
        return sum(v.shape.num_elements() for v in named_variables(task, trainable_only=True).values())

    assert count("text_lstm") == pytest.approx(count("text_nano"), rel=0.02)


# --- states that last over batches ------------------------------------------------------------------------------------


def long_texts(windows=3):
    """Returns a source of four long texts, each in some windows, and the texts."""
    texts = np.random.RandomState(1).randint(0, END, [SEQUENCES, windows * CONTEXT + 1])
    texts[1, [3, CONTEXT]] = END  # a document ends within a window, and with one
    rows = np.lib.stride_tricks.sliding_window_view(texts, CONTEXT + 1, 1)[:, ::CONTEXT].reshape(-1, CONTEXT + 1)
    document = np.pad(np.cumsum(rows[:, :-1] == END, 1), [[0, 0], [1, 0]])
    parts = {"tokens": rows, "document": document, "bytes": np.ones_like(rows)}
    source = ArraySource({name: x.astype("int32") for name, x in parts.items()}, name="long")
    return continued(source, sequences=SEQUENCES), texts


def drawn(source, positions):
    return source.gather(source.order(tf.constant(positions, tf.int64), rng=RNG, span=len(positions)))


def test_batches_continue_their_sequences_as_if_each_were_read_at_once():
    task, (source, texts) = lively(sequences=SEQUENCES), long_texts()
    task.check_source(source)
    found = []
    for first in range(0, len(source), SEQUENCES):
        window = drawn(source, range(first, first + SEQUENCES))
        loss = task.loss(window, RNG)
        found.append(loss.per_example.numpy())
        for variable, value in task.carry({**window, **loss.outputs}, RNG)[1].items():
            variable.deref().assign(value)
    found = np.concatenate(found, 1)
    for losses, text in zip(found, texts, strict=True):
        for part in np.split(np.arange(len(losses)), np.flatnonzero(text[:-1] == END) + 1):
            logits = logits_of(task.net, text[part])
            expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(part)), text[part + 1]]
            np.testing.assert_allclose(losses[part], expected, atol=1e-4)
    again = task.loss(drawn(source, range(len(source), len(source) + SEQUENCES)), RNG).per_example
    np.testing.assert_allclose(again, found[:, :CONTEXT], atol=1e-5)  # the next epoch begins with empty states


@pytest.mark.long
def test_carried_states_are_the_same_on_replicas_and_in_microbatches():
    window = {name: x.numpy() for name, x in drawn(long_texts()[0], range(SEQUENCES, 2 * SEQUENCES)).items()}
    make = functools.partial(make_task, sequences=SEQUENCES, dropout=0.2)
    one = Run(assemble(make, on_virtual_cpus(1)), window).train(3)
    other = Run(assemble(make, on_virtual_cpus(2)), window, microbatches=2).train(3)
    assert abs(one.variables["carried/cell"]).max() > 1e-3
    for name, value in one.variables.items():
        np.testing.assert_allclose(other.variables[name], value, atol=1e-6, err_msg=name)


def test_sequences_that_do_not_fit_are_refused():
    source, _ = long_texts()
    with pytest.raises(DataError, match=r"has 4 sequences, but `LSTMLanguageModel.sequences` is 3"):
        make_task(sequences=3).check_source(source)
    window = drawn(source, range(2 * SEQUENCES))
    task = make_task(sequences=SEQUENCES)
    with pytest.raises(ValueError, match=r"a batch has 8 windows of `LSTMLanguageModel.sequences` = 4"):
        task.carry({**window, **task.loss(window, RNG).outputs}, RNG)
    with pytest.raises(DataError, match=r"`continued.sequences` is 13, but the source `long`.*has 12 windows"):
        continued(source.source, sequences=13)
    numbered = ArraySource({"tokens": np.zeros([4, 3], "int32"), "place": np.arange(4)}, name="numbered")
    with pytest.raises(DataError, match="source `numbered` has a feature `place`, which `continued` adds: rename it"):
        continued(numbered, sequences=2)


@pytest.mark.long
def test_command_trains_carried_states_and_resumes_them_to_the_bit(tmp_path):
    carried = [
        "Experiment.train_source = @continued()",
        "continued.source = @train/topics()",
        "continued.sequences = 16",
        "LSTMLanguageModel.sequences = 16",
        "LSTMLanguageModel.num_layers = 1",
        "LSTMLanguageModel.size = 8",
        "context = 16",
        "Trainer.steps = 2",
        "Trainer.chunk_steps = 1",  # the check trains eight chunks
        "Trainer.checkpoint_every = 2",
        "Trainer.hooks = []",
    ]
    flags = [f"--gin_file={CONFIGS / 'text_lstm.gin'}", *(f"--gin_param={x}" for x in carried)]
    forking = functools.partial(fork_server().run, before={"module": "tests.forked_resume_check", "arguments": {}})
    passed(*flags, "--mode=resume_check", "--workdir=run", cwd=tmp_path, run=forking)
    passed(*flags, "--workdir=run", cwd=tmp_path)
    passed(*flags, "--mode=sample", "--prompt=The", "--workdir=run", cwd=tmp_path)
    passed(*flags, "--mode=export", "--workdir=run", cwd=tmp_path)
