"""BERT: its equations and files of `transformers`, and the tokens that its task hides.

`python -m tools.language_peer` compares it with `transformers` itself.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from core.errors import CheckpointError, ConfigurationError
from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng, undrawn
from core.testing import assert_task
from core.weights import begin_with
from models import MaskedLanguageModel
from models.language import Bert, BertConfig, bert_weights
from models.language.bert_weights import save_bert
from tests.models.language import numpy_bert

RNG = Rng.from_seed(0)
CONTEXT, VOCABULARY, MASK, END = 10, 40, 39, 38
SIZES = {"vocabulary": VOCABULARY, "context": CONTEXT, "num_layers": 2, "size": 12, "num_heads": 3, "hidden": 20}
CONFIG = {
    "model_type": "bert", "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "num_hidden_layers": 2,
    "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20, "type_vocab_size": 2, "layer_norm_eps": 1e-3,
}  # fmt: skip
TENSORS = numpy_bert.tensors(CONFIG, np.random.RandomState(0))


def make_task(**settings):
    given = {**SIZES, "mask_token": MASK, "optimizer": sgd(0.1), "rng": RNG}
    return MaskedLanguageModel(**{**given, **settings})


@pytest.fixture
def folder(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_base_model_has_the_papers_110_million_parameters():
    with tf.Graph().as_default(), undrawn():
        net = Bert(BertConfig(), rng=Rng.from_seed(0))
        count = sum(v.shape.num_elements() for v in named_variables(net).values())
    assert count == 109_514_298  # as `BertForMaskedLM` has


def test_weights_from_files_compute_the_equations_with_padding_and_segments(folder):
    task, random = make_task(epsilon=1e-3), np.random.RandomState(1)
    assert begin_with(bert_weights(str(folder)), task).line == f"begins with `{folder}`: 42 of 42 variables"
    tokens, types = random.randint(0, VOCABULARY, [3, CONTEXT]), random.randint(0, 2, [3, CONTEXT])
    seen = np.arange(CONTEXT) < [[CONTEXT], [4], [7]]
    document = tf.constant(np.where(seen, 0, -1), tf.int32)
    found = task.net(tf.constant(tokens, tf.int32), document, types=tf.constant(types, tf.int32)).numpy()
    expected = numpy_bert.logits(CONFIG, TENSORS, tokens, types, seen)
    np.testing.assert_allclose(found[seen], expected[seen], atol=1e-4)
    assert expected.std() > 0.5
    save_bert(task.net, folder / "back")
    back = load_file(folder / "back" / "model.safetensors")
    assert back.keys() == TENSORS.keys()
    for name, array in back.items():
        np.testing.assert_array_equal(array, TENSORS[name])
    again = make_task(epsilon=1e-3, rng=Rng.from_seed(1))
    begin_with(bert_weights(str(folder / "back")), again)
    np.testing.assert_array_equal(again.net(tf.constant(tokens)), task.net(tf.constant(tokens)))


def test_files_with_the_names_of_older_versions_are_read(folder):
    older = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): x for name, x in TENSORS.items()
    }
    save_file(older, folder / "model.safetensors")
    task = make_task(epsilon=1e-3)
    begin_with(bert_weights(str(folder)), task)
    np.testing.assert_array_equal(task.net.norm.scale, TENSORS["bert.embeddings.LayerNorm.weight"])


def test_weights_that_do_not_fit_are_refused_before_any_is_assigned(folder):
    with pytest.raises(ConfigurationError, match=r"a `MaskedLanguageModel` with `epsilon = 0.001`, not 1e-12: bind"):
        begin_with(bert_weights(str(folder)), make_task())
    task = make_task(epsilon=1e-3, context=CONTEXT + 1)
    before = task.net.tokens.w.numpy()
    with pytest.raises(CheckpointError, match=r"misshapen  net/positions/w  float32\[11,12\]  float32\[10,12\]"):
        begin_with(bert_weights(str(folder)), task)
    np.testing.assert_array_equal(task.net.tokens.w, before)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_act": "relu"}))
    with pytest.raises(CheckpointError, match="`hidden_act` = 'relu', which no `MaskedLanguageModel` computes"):
        begin_with(bert_weights(str(folder)), make_task(epsilon=1e-3))


# --- the task ---------------------------------------------------------------------------------------------------------


def windows(rows=3):
    tokens = np.random.RandomState(2).randint(0, END, [rows, CONTEXT + 1])
    document = np.zeros_like(tokens)
    tokens[:, 4], document[:, 5:] = END, 1
    document[0, 8:] = -1
    return {"tokens": tf.constant(tokens, tf.int32), "document": tf.constant(document, tf.int32)}


def test_task_hides_the_papers_shares_of_tokens():
    rows, context = 400, 100
    tokens = np.random.RandomState(3).randint(0, END, [rows, context + 1])
    tokens[:, ::10] = END
    document = np.where(np.arange(context + 1) < 80, 0, -1) + np.zeros_like(tokens)
    batch = {"tokens": tf.constant(tokens, tf.int32), "document": tf.constant(document, tf.int32)}
    task = make_task(context=context, never_chosen=[END])
    made = task.hide(batch, Rng.from_seed(5)._replace(num_rows=rows))
    hidden, chosen, given = made["hidden"].numpy(), made["chosen"].numpy() > 0, tokens[:, :context]
    eligible = (document[:, :context] >= 0) & (given != END)
    assert not chosen[~eligible].any()
    np.testing.assert_array_equal(
        hidden[~chosen & (document[:, :context] >= 0)], given[~chosen & (document[:, :context] >= 0)]
    )
    count = chosen.sum()

    def near(found, total, share):
        return abs(found - share * total) < 5 * np.sqrt(total * share * (1 - share))

    assert near(count, eligible.sum(), 0.15)
    assert near((hidden[chosen] == MASK).sum(), count, 0.8 + 0.1 / VOCABULARY)
    assert near((hidden[chosen] == given[chosen]).sum(), count, 0.1 + 0.1 / VOCABULARY)
    assert len(set(hidden[chosen])) == VOCABULARY


def test_evaluation_hides_the_same_places_each_time_and_counts_only_these():
    task, batch = make_task(context=100, rate=0.3), windows()
    longer = {name: tf.concat([x] * 10, 1)[:, :101] for name, x in batch.items()}
    one, two = task.evaluate(longer), task.evaluate(longer)
    np.testing.assert_array_equal(one.weight, two.weight)
    np.testing.assert_array_equal(one.weight[1], one.weight[2])
    assert 15 < tf.reduce_sum(one.weight[1]) < 45


def test_no_dropout_may_be_a_whole_number():
    assert make_task(dropout=0).net.dropout.rate == 0


def test_masked_language_model_passes_all_checks_of_a_task():
    task = make_task(num_layers=1, rate=0.5)
    assert_task(task, windows(), padding="document")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mask_token": VOCABULARY}, "hold 40, but `vocabulary` is 40"),
        ({"rate": 1.0}, "`rate` is 1.0"),
        ({"num_heads": 5}, "doesn't divide `size=12`"),
        ({"num_layers": 0}, "`num_layers` is 0"),
        ({"hidden": 0}, "`hidden` is 0"),
    ],
)
def test_settings_without_sense_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        make_task(**settings)
