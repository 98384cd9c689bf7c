"""Text generation: cached as uncached, alone as in a batch, and the guarantees of each sampling method."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from language_lab import CONTEXT, END, VOCABULARY, make_task
from test_language_model import SHAPES

from core.random import Rng, RowRng
from models import beam_search, greedy, sampled
from models.language.sampling import keep_nucleus, keep_top_k
from trainers.export.program import Program

RNG = Rng.from_seed(0)
PROMPTS, LENGTHS = [[1, 2, 3, 4], [5, 0, 0, 0], [7, 8, 0, 0]], [4, 1, 2]


def lively(**settings):
    """Returns a task whose predictions depend on everything before: weights far larger than initially."""
    task = make_task(**{"rng": RNG, "num_layers": 1, **settings})
    for i, variable in enumerate(task.net.parameters().values()):
        variable.assign(variable + 0.4 * Rng.from_seed(i).normal(variable.shape))
    return task


def write(task, prompts=PROMPTS, lengths=LENGTHS, rng=RNG):
    return task.write(
        rng, tf.constant(prompts), tf.constant(lengths), end=END, vocabulary=task.net.config.vocabulary
    ).numpy()


def log_p(task, tokens):
    """Returns the log-probability of each next token, from the network without a cache."""
    return tf.nn.log_softmax(task.net(tf.constant(tokens))).numpy()


def greedily(task, text, length):
    """Returns `greedy`'s continuation after so many tokens of a single text: the network sees all of it at once."""
    best = np.argmax(log_p(task, [text])[0], -1)
    return [END if END in text[length:i] else best[i - 1] for i in range(length, len(text))]


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_cached_logits_are_those_without(shape):
    net = lively(**SHAPES[shape]).net
    tokens = tf.constant(np.random.RandomState(0).randint(0, VOCABULARY, [3, CONTEXT]), tf.int32)
    whole = net(tokens)
    for first in (1, 3):  # all later ones one by one
        logits, caches = net.decode(tokens[:, :first], net.empty_caches(3, CONTEXT))
        for i in range(first, CONTEXT):
            np.testing.assert_allclose(logits, whole[:, i - 1], atol=1e-5)
            logits, caches = net.decode(tokens[:, i : i + 1], caches)
        np.testing.assert_allclose(logits, whole[:, -1], atol=1e-5)


def test_served_parts_continue_a_text_as_the_whole_network_does():
    task = lively(num_layers=2)
    tokens = tf.constant(np.random.RandomState(0).randint(0, VOCABULARY, [2, task.text_length]), tf.int32)
    whole, half = task.net(tokens), task.text_length // 2
    served = task.serve({})
    begun = served["decode"].examples({"tokens": tokens})
    np.testing.assert_array_equal(begun["tokens"], tokens[:, half : half + 1])
    assert {name: x.shape[1:] for name, x in begun.items() if name in ("keys", "values")} == {
        name: spec.shape[1:] for name, spec in task.kept().items() if name != "position"
    }
    made = served["prefill"](served["prefill"].inputs_of({"tokens": tokens}))
    for i in range(half, task.text_length):
        np.testing.assert_allclose(made["logits"], whole[:, i - 1], atol=1e-5)
        made = task.decode({**made, "tokens": tokens[:, i : i + 1]})
    np.testing.assert_allclose(made["logits"], whole[:, -1], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_is_the_argmax_of_the_whole_network(shape):
    task = lively(**SHAPES[shape], decoder=greedy())
    for row, prompt, length in zip(write(task), PROMPTS, LENGTHS, strict=True):
        np.testing.assert_array_equal(row, [*prompt[:length], *greedily(task, row, length)])


@pytest.mark.long
def test_exported_program_writes_the_same_text():
    task = lively(decoder=greedy())
    served = Program(task, {"tokens": tf.TensorSpec([CONTEXT], tf.int32)}).exported("float32")[1]
    for row, prompt, length in list(zip(write(task), PROMPTS, LENGTHS, strict=True))[:2]:
        made = served["prefill"](tokens=tf.constant([prompt[:length]]))
        text = prompt[:length]
        while len(text) < CONTEXT:
            text.append(int(np.argmax(made["logits"][0])) if END not in text[length:] else END)
            cache = {name: made[name] for name in ("keys", "values", "position")}
            made = served["decode"](tokens=tf.constant([text[-1:]]), **cache) if len(text) < CONTEXT else made
        np.testing.assert_array_equal(row, text)


@pytest.mark.long
def test_beam_search_of_a_prompt_alone_is_that_among_others():
    task = lively(decoder=beam_search(3), text_length=6)
    for row, prompt, length in list(zip(write(task), PROMPTS, LENGTHS, strict=True))[1:]:
        np.testing.assert_array_equal(write(task, [prompt[:length]], [length])[0], row)


def test_beam_search_of_all_texts_finds_the_most_probable():
    task = lively(vocabulary=4, context=5, decoder=beam_search(4**3))
    end, prompt = 3, [1, 2]
    found = task.write(RNG, tf.constant([prompt]), tf.constant([2]), end=end, vocabulary=4).numpy()[0]
    texts = list(itertools.product(range(4), repeat=3))
    steps = log_p(task, [[*prompt, *text] for text in texts])[:, len(prompt) - 1 :]

    def score(i):
        """Returns the text's log-probability up to its end; None if anything follows the end."""
        text = texts[i]
        last = text.index(end) if end in text else len(text) - 1
        if any(token != end for token in text[last:]) and end in text:
            return -np.inf
        return sum(steps[i, place, text[place]] for place in range(last + 1))

    np.testing.assert_array_equal(found, [*prompt, *texts[max(range(len(texts)), key=score)]])


@pytest.mark.long
def test_wider_beam_finds_no_less_probable_text():
    def score(task):
        text = write(task, [[1, 2]], [2])[0]
        ended = np.argmax(text == END) if END in text else CONTEXT - 1
        steps = log_p(task, [text])[0]
        return sum(steps[i - 1, text[i]] for i in range(2, ended + 1))

    assert score(lively(decoder=beam_search(1))) == pytest.approx(score(lively(decoder=greedy())), rel=1e-5)
    assert score(lively(decoder=beam_search(64))) >= score(lively(decoder=greedy())) - 1e-5


def test_sampled_tokens_have_the_probabilities_of_the_network():
    task = lively(text_length=2)
    count = 4000
    drawn = write(task, [[3]] * count, [1] * count)[:, 1]
    expected = np.exp(log_p(task, [[3]])[0, -1])
    found = np.bincount(drawn, minlength=VOCABULARY) / count
    assert np.all(np.abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / count) + 1e-9)
    assert len(set(write(lively(text_length=2, decoder=sampled(top_k=2)), [[3]] * 200, [1] * 200)[:, 1])) == 2
    for narrow in (sampled(1e-3), sampled(top_p=1e-3)):
        almost = write(lively(text_length=2, decoder=narrow), [[3]] * 50, [1] * 50)[:, 1]
        assert set(almost) == {int(np.argmax(expected))}


def test_sampled_texts_repeat_by_seed_and_differ_by_row():
    task = lively(text_length=4)
    one, same, other = (write(task, [[1]] * 8, [1] * 8, rng=Rng.from_seed(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert len({tuple(row) for row in one}) > 4


def test_top_k_and_nucleus_keep_the_most_probable_tokens():
    logits = tf.math.log([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]])
    np.testing.assert_array_equal(np.isfinite(keep_top_k(logits, 2)), [[1, 1, 0, 0], [0, 0, 1, 1]])
    np.testing.assert_array_equal(np.isfinite(keep_top_k(logits, 9)), np.ones([2, 4]))
    np.testing.assert_array_equal(np.isfinite(keep_nucleus(logits, 0.75)), [[1, 1, 0, 0], [0, 1, 1, 1]])
    np.testing.assert_array_equal(np.isfinite(keep_nucleus(logits, 0.01)), [[1, 0, 0, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(np.isfinite(keep_nucleus(logits, 1.0)), np.ones([2, 4]))
    np.testing.assert_array_equal(np.isfinite(keep_top_k(tf.zeros([1, 5]), 2)), [[1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(np.isfinite(keep_nucleus(tf.zeros([1, 5]), 0.3)), [[1, 1, 0, 0, 0]])


def test_sampling_by_a_uniform_zero_draws_no_token_left_out(monkeypatch):
    monkeypatch.setattr(RowRng, "uniform", lambda self, *shape: tf.zeros(shape))
    task = lively(text_length=2, decoder=sampled(top_k=1))
    assert write(task, [[3]], [1])[0, 1] == np.argmax(log_p(task, [[3]])[0, -1]) != 0


@pytest.mark.long
@pytest.mark.parametrize("decoder", [greedy(), sampled(), beam_search(3)])
def test_decoders_write_only_tokens_of_the_tokenizer(decoder):
    task = lively(decoder=decoder, text_length=4)
    prompts, lengths = tf.constant([[1]] * 8), tf.constant([1] * 8)
    texts = task.write(RNG, prompts, lengths, end=1, vocabulary=2).numpy()
    assert set(texts.flat) <= {0, 1}
    assert write(task, [[1]] * 8, [1] * 8).max() > 1


def test_decoder_refuses_logits_that_are_not_finite():
    task = lively(decoder=greedy())
    task.net.tokens.w.assign(task.net.tokens.w * float("inf"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the logits of what comes next : Tensor had"):
        write(task)


def test_text_after_its_end_is_the_end():
    texts = write(lively(decoder=sampled(5.0)), [[1, END]] * 64, [2] * 64)  # an end in the prompt doesn't count
    ended = [np.flatnonzero(text[2:] == END) for text in texts]
    assert sum(len(places) > 1 for places in ended) > 5
    assert any(len(places) == 0 for places in ended)
    for text, places in zip(texts, ended, strict=True):
        assert not len(places) or np.all(text[2 + places[0] :] == END)


@pytest.mark.long
def test_decoder_runs_one_position_a_new_token():
    task = lively(decoder=greedy())
    seen = []
    embed = task.net.tokens.__class__.__call__

    def watched(layer, ids, **settings):
        if layer is task.net.tokens:
            seen.append(ids.shape.as_list())
        return embed(layer, ids, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task.net.tokens.__class__, "__call__", watched)
        function = tf.function(task.write, autograph=False).get_concrete_function(
            RNG, tf.TensorSpec([3, 4], tf.int32), tf.TensorSpec([3], tf.int32), end=END, vocabulary=VOCABULARY
        )
    assert seen == [[3, None], [3, 1]]  # the prompts' common part at once, and then one position per round
    (loop,) = [op for op in function.graph.get_operations() if op.type in ("While", "StatelessWhile")]
    body = function.graph._get_function(loop.get_attr("body").name).graph
    products = [op.outputs[0].shape for op in body.get_operations() if op.type == "MatMul"]
    assert len(products) == 6 + 1  # of the block: query, key, value, out, up, down; then the logits
    assert {shape[0] for shape in products} == {3}
    traced = function(RNG.seed, tf.constant(PROMPTS), tf.constant(LENGTHS))
    np.testing.assert_array_equal(traced, write(task))


def test_prompt_that_leaves_no_room_is_refused():
    with pytest.raises(ValueError, match="a prompt has 8 tokens, but a text has 8, including its prompt"):
        write(lively(), [[1] * 8], [8])


def test_prompt_lengths_out_of_range_are_refused():
    for length, says in ((0, "holds zero"), (3, "holds more than `prompts` has tokens")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=says):
            write(lively(), [[1, 2]], [length])
    task = lively()
    with pytest.raises(ValueError, match="`length` is 12, but the network has learnt `context=8` positions"):
        task.decoder(task.net, tf.constant([[1]]), tf.constant([1]), length=12, end=END, vocabulary=11, rng=RNG)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sampled(0.0), "`temperature` is 0.0"),
        (lambda: sampled(top_k=0), "`top_k` is 0"),
        (lambda: sampled(top_p=1.5), "`top_p` is 1.5"),
        (lambda: beam_search(0), "`width` is 0"),
    ],
)
def test_decoders_refuse_settings_without_sense(make, says):
    with pytest.raises(ValueError, match=says):
        make()
