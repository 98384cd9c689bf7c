"""T5: its equations and files of `transformers`, and the task that trains it.

`python -m tools.language_peer` compares it with `transformers` itself.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from core.data import ArraySource, number_words
from core.errors import CheckpointError, ConfigurationError, DataError
from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng, undrawn
from core.task.loss import means, weighted_sums
from core.testing import assert_task
from core.weights import begin_with
from models.language import T5, T5Config, TextToText, beam_search, t5_weights
from models.language.t5 import bucket_by_distance
from models.language.t5_weights import save_t5
from tests.models.language import numpy_t5
from trainers.export.program import Program
from trainers.hooks.texts import make_writer

RNG = Rng.from_seed(0)
VOCABULARY, END, EPSILON = 30, 1, 1e-3
SIZES = {
    "vocabulary": VOCABULARY, "num_layers": 2, "num_decoder_layers": 1, "size": 12, "num_heads": 3, "head_size": 5,
    "hidden": 20, "buckets": 8, "farthest": 12, "epsilon": EPSILON,
}  # fmt: skip
CONFIG = {
    "model_type": "t5", "vocab_size": VOCABULARY, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2,
    "num_decoder_layers": 1, "num_heads": 3, "relative_attention_num_buckets": 8, "layer_norm_epsilon": EPSILON,
    "relative_attention_max_distance": 12, "feed_forward_proj": "relu", "tie_word_embeddings": True,
}  # fmt: skip
LATER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # T5 1.1
OURS = {"feed_forward": "geglu", "tied": False}
SOURCE = np.random.RandomState(1).randint(1, VOCABULARY, [3, 17])
TARGET = np.random.RandomState(2).randint(1, VOCABULARY, [3, 15])
SEEN = np.arange(17) < [[17], [4], [9]]


def make_task(**settings):
    return TextToText(**{**SIZES, "optimizer": sgd(0.1), "rng": RNG, **settings})


def saved(folder, **changes):
    config = {**CONFIG, **changes}
    tensors = numpy_t5.tensors(config, np.random.RandomState(0))
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return config, tensors


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 60_506_624),
        ({"size": 768, "num_layers": 12, "num_heads": 12}, 222_903_552),
        pytest.param({"size": 1024, "num_layers": 24, "num_heads": 16}, 737_668_096, marks=pytest.mark.long),
    ],
)
def test_sizes_of_the_paper_have_its_parameter_counts(settings, count):
    with tf.Graph().as_default(), undrawn():
        net = T5(T5Config(**settings), rng=Rng.from_seed(0))
    assert sum(v.shape.num_elements() for v in named_variables(net).values()) == count  # as `transformers` has


@pytest.mark.parametrize("causal", [False, True])
def test_distances_have_the_papers_buckets(causal):
    found = bucket_by_distance(32, 128, causal=causal)
    assert found.tolist() == [numpy_t5.bucket(d, 32, 128, causal) for d in range(-128, 129)]
    assert set(found) == set(range(32)) - ({16} - {causal * 16})  # no key is after its query at distance 0


@pytest.mark.parametrize(("theirs", "ours"), [({}, {}), (LATER, OURS)], ids=["T5", "T5 1.1"])
def test_weights_from_files_compute_the_equations_and_come_back(theirs, ours, tmp_path):
    config, tensors = saved(tmp_path, **theirs)
    task = make_task(**ours)
    count = len(tensors)
    assert begin_with(t5_weights(str(tmp_path)), task).line == f"begins with `{tmp_path}`: {count} of {count} variables"
    source, inputs, seen = tf.constant(SOURCE, tf.int32), tf.constant(TARGET, tf.int32), tf.constant(SEEN)
    found = task.net(source, inputs, seen=seen)
    expected = numpy_t5.logits(config, tensors, SOURCE, TARGET, SEEN)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert expected.std() > 0.25
    writer = task.net.writer(source, seen=seen)
    _, caches = writer.decode(inputs[:, :6], writer.empty_caches(3, 15))
    decoded, _ = writer.decode(inputs[:, 6:], caches)
    np.testing.assert_allclose(decoded, expected[:, -1], atol=1e-4)
    assert save_t5(task.net, tmp_path / "back") == "t5"
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    for name, array in back.items():
        np.testing.assert_array_equal(array, tensors[name])
    again = make_task(**ours, rng=Rng.from_seed(1))
    begin_with(t5_weights(str(tmp_path / "back")), again)
    np.testing.assert_array_equal(again.net(source, inputs, seen=seen), found)


def test_head_that_was_saved_once_is_read_twice(tmp_path):
    _, tensors = saved(tmp_path, **LATER)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    later = {"tie_word_embeddings": True, "scale_decoder_outputs": False}  # as transformers 5 writes it
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **LATER, **later}))
    task = make_task(**OURS)
    begin_with(t5_weights(str(tmp_path)), task)
    np.testing.assert_array_equal(task.net.logits.w, tensors["shared.weight"].T)


def test_config_that_does_not_say_whether_the_head_is_tied_is_refused(tmp_path):
    saved(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": "yes"}))
    with pytest.raises(CheckpointError, match="`tie_word_embeddings` = 'yes', where true or false is needed: save the"):
        begin_with(t5_weights(str(tmp_path)), make_task())


def test_weights_that_do_not_fit_are_refused_before_any_is_assigned(tmp_path):
    _, tensors = saved(tmp_path)
    with pytest.raises(ConfigurationError, match="`farthest = 12`, not 64, `feed_forward = 'relu'`, not 'geglu'"):
        begin_with(t5_weights(str(tmp_path)), make_task(farthest=64, feed_forward="geglu"))
    wrong = "decoder.block.0.layer.1.EncDecAttention.k.weight"
    tensors[wrong] = np.ascontiguousarray(tensors[wrong].T)
    del tensors["encoder.block.1.layer.1.DenseReluDense.wo.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    task = make_task()
    before = task.net.tokens.w.numpy()
    with pytest.raises(CheckpointError) as error:
        begin_with(t5_weights(str(tmp_path)), task)
    for line in (
        r"missing    net/encoder/blocks/1/feed_forward/down/w  float32[20,12]  -",
        r"misshapen  net/decoder/blocks/0/cross/key/w          float32[12,15]  float32[15,12]",
    ):
        assert line in str(error.value)
    np.testing.assert_array_equal(task.net.tokens.w, before)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "umt5"}))
    with pytest.raises(CheckpointError, match="`model_type` = 'umt5', which no `TextToText` computes"):
        begin_with(t5_weights(str(tmp_path)), make_task())


# --- the task ---------------------------------------------------------------------------------------------------------


def pairs():
    """Returns pairs with padding at the end of each source but the first, and of the last target."""
    target = np.where(np.arange(15) < [[15], [15], [6]], TARGET, 0)
    return {
        "source": tf.constant(np.where(SEEN, SOURCE, 0), tf.int32),
        "target": tf.constant(target, tf.int32),
    }


@pytest.mark.long
def test_task_passes_all_checks_of_a_task():
    assert_task(make_task(num_layers=1), pairs(), padding="source")


def test_padding_of_any_length_and_number_changes_nothing():
    task, batch = make_task(), pairs()
    expected = means(weighted_sums(task.evaluate(batch))[1])
    longer = {name: tf.pad(tf.where(x > 0, x, -100), [[0, 0], [0, 3]], constant_values=-1) for name, x in batch.items()}
    assert means(weighted_sums(task.evaluate(longer))[1]) == pytest.approx(expected, rel=1e-5)


def test_exact_counts_the_targets_that_greedy_decoding_writes():
    task = make_task(answer_length=4)
    source, lengths = tf.constant(SOURCE[:, :9], tf.int32), tf.constant([9, 4, 7])
    answers = task.answer(RNG, source, lengths, end=END, vocabulary=VOCABULARY).numpy()
    padded = np.where(np.arange(10) < lengths[:, None], np.pad(source, [[0, 0], [0, 1]]), 0)
    padded[np.arange(3), lengths] = END
    target = np.where(np.cumsum(answers == END, -1) - (answers == END) > 0, 0, answers)
    found = task.evaluate({"source": tf.constant(padded, tf.int32), "target": tf.constant(target)})
    assert means(weighted_sums(found)[1])["exact"] == 1.0
    target[1, -1] = target[1, -1] % (VOCABULARY - 1) + 1
    found = task.evaluate({"source": tf.constant(padded, tf.int32), "target": tf.constant(target)})
    assert means(weighted_sums(found)[1])["exact"] == pytest.approx(2 / 3)


def test_search_over_more_beams_finds_answers_that_are_no_less_probable():
    greedy, wide = (make_task(answer_length=3, decoder=d) for d in (None, beam_search(3)))
    source, lengths = tf.constant(SOURCE, tf.int32), tf.constant([17, 4, 9])

    def log_probability(task):
        target = task.answer(RNG, source, lengths, end=END, vocabulary=VOCABULARY)
        seen = tf.sequence_mask(lengths + 1, 18)
        padded = tf.where(seen, tf.pad(source, [[0, 0], [0, 1]]), 0)
        padded = tf.where(tf.range(18) == lengths[:, None], END, padded)
        logits = greedy.net(padded, tf.pad(target[:, :-1], [[0, 0], [1, 0]]), seen=seen)
        each = -tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits).numpy()
        ended = np.cumsum(target.numpy() == END, -1) - (target.numpy() == END) > 0
        return np.where(ended, 0.0, each).sum(-1)

    assert (log_probability(wide) >= log_probability(greedy) - 1e-4).all()


def test_exported_functions_write_the_same_answers():
    task = make_task(num_layers=1, answer_length=5)
    source, lengths = tf.constant(SOURCE, tf.int32), tf.constant([17, 4, 9])
    expected = task.answer(RNG, source, lengths, end=END, vocabulary=VOCABULARY).numpy()
    rows = [[*row[:length], END] for row, length in zip(SOURCE.tolist(), lengths.numpy(), strict=True)]
    padded = tf.ragged.constant(rows, dtype=tf.int32).to_tensor()
    features = {name: tf.TensorSpec([n], tf.int32) for name, n in (("source", 17), ("target", 15))}
    served = Program(task, features).exported("float32")[1]
    state, token, answers = served["encode"](source=padded), tf.zeros([3, 1], tf.int32), []
    for _ in range(5):
        state = {**state, **served["decode"](tokens=token, **state)}
        token = tf.argmax(state.pop("logits"), -1, tf.int32)[:, tf.newaxis]
        answers.append(token[:, 0].numpy())
    written = np.stack(answers, 1)
    written[np.cumsum(written == END, -1) > 0] = END
    np.testing.assert_array_equal(written, expected)


def test_prompts_are_answered_in_a_new_line():
    source, task = number_words("test"), make_task(vocabulary=39, num_layers=1, answer_length=3)
    prompts = ["4072", "13"]
    together = make_writer(task, source, prompts, seed=0)()
    assert [text.split(b"\n")[0] for text in together] == [b"4072", b"13"]
    assert together == [make_writer(task, source, [prompt], seed=0)()[0] for prompt in prompts]
    tokens = tf.constant([source.tokenizer.encode(b"13")])
    answer = task.answer(RNG, tokens, tf.constant([2]), end=END, vocabulary=39)[0].numpy().tolist()
    assert together[1] == b"13\n" + source.tokenizer.decode(answer[: [*answer, END].index(END)])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"feed_forward": "swiglu"}, "`feed_forward` is 'swiglu'"),
        ({"head_size": None, "num_heads": 5}, "doesn't divide `size=12`"),
        ({"buckets": 5}, "`buckets` is 5, of which"),
        ({"farthest": 4}, "`farthest` is 4, but 4 distances"),
        ({"answer_length": 0}, "`answer_length` is 0"),
        ({"num_decoder_layers": 0}, "`num_decoder_layers` is 0"),
    ],
)
def test_settings_without_sense_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        make_task(**settings)


def test_tokens_outside_the_vocabulary_are_named():
    source = ArraySource({"source": SOURCE, "target": np.where(TARGET == 4, 30, TARGET)}, name="mine")
    with pytest.raises(DataError, match=r"`target` of example 1 of source `mine` is 30, but `TextToText\.vocabulary`"):
        make_task().check_source(source)
    source = ArraySource({"source": SOURCE / 2, "target": TARGET}, name="mine")
    with pytest.raises(DataError, match=r"`source` of source `mine` is float32 of shape \(17,\), but `TextToText`"):
        make_task().check_source(source)
