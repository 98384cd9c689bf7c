"""The loss of a language model: which tokens count, what they attend to, and independence of a step's splits."""

import numpy as np
import pytest
import tensorflow as tf
from language_lab import CONTEXT, END, VOCABULARY, batch, make_task, packed, source, windows

from core.data import digits
from core.errors import DataError
from core.optimizers import adam, adamw, groups
from core.random import Rng
from core.task.loss import means, weighted_sums
from core.testing import Run, assemble, assert_overfits, assert_task, on_virtual_cpus
from core.testing.plain import optimizers_of
from models.language import transformer

RNG = Rng.from_seed(0)
LLAMA = "rotary, RMSNorm, SwiGLU, grouped, without biases"
SHAPES = {
    "GPT-2's": {},
    LLAMA: {
        "positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "size": 16, "num_heads": 4, "num_kv_heads": 2,
        "bias": False,
    },
    "ALiBi, a window": {"positions": "alibi", "window": 3},
    "experts": {"experts": 3},
}  # fmt: skip


def rows_of(*examples):
    return {key: tf.constant(np.stack([example[key] for example in examples])) for key in examples[0]}


def test_loss_counts_tokens_that_follow_one_of_their_document():
    example = packed([1, 2, END], [3, END])
    loss = make_task(rng=RNG).loss(rows_of(example), None)
    np.testing.assert_array_equal(loss.weight, [[1, 1, 0, 1, 0, 0, 0, 0]])
    figures = means(weighted_sums(loss)[1])
    counted = loss.per_example.numpy()[0, [0, 1, 3]]
    assert figures["loss"] == pytest.approx(counted.mean())
    assert figures["perplexity"] == pytest.approx(np.exp(counted.mean()))
    assert example["bytes"][[1, 2, 4]].tolist() == [3, 0, 0]
    assert figures["bits_per_byte"] == pytest.approx(counted.sum() / np.log(2) / 3)


def test_positions_in_long_rows_are_counted_like_those_in_short_ones(monkeypatch):
    documents = tf.constant([[0, 0, 1, 1, 1, 2, -1, -1], [3, 0, 3, 3, 0, -1, 3, 7]])
    expected = [[0, 1, 0, 1, 2, 0, 0, 1], [0, 0, 1, 2, 1, 0, 3, 0]]
    np.testing.assert_array_equal(transformer.positions_in(documents), expected)
    monkeypatch.setattr(transformer, "LONG", 4)
    for compiled in (False, True):
        run = tf.function(transformer.positions_in, jit_compile=compiled, autograph=False)
        np.testing.assert_array_equal(run(documents), expected)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_document_costs_the_same_as_alone(shape):
    task = make_task(rng=RNG, **SHAPES[shape])
    one, two = [1, 7, 4, END], [3, 3, 5, 9, END]
    together, first, second = (
        task.loss(rows_of(packed(*texts)), None).per_example for texts in ((one, two), (one,), (two,))
    )
    np.testing.assert_allclose(together[0, :3], first[0, :3], atol=1e-5)
    np.testing.assert_allclose(together[0, 4:8], second[0, :4], atol=1e-5)
    assert np.ptp(together[0, :3]) > 1e-3  # nor are all the same


@pytest.mark.parametrize("shape", ["GPT-2's", pytest.param(LLAMA, marks=pytest.mark.long)])
def test_language_model_passes_all_checks_of_a_task(shape):
    task = make_task(rng=RNG, num_layers=1, dropout=0.1, **SHAPES[shape])
    assert_task(task, batch(3), causal="tokens", padding="document", except_for=["bytes"])


@pytest.mark.long
def test_language_model_in_tiles_passes_all_checks_of_a_task():
    task = make_task(rng=RNG, num_layers=1, dropout=0.1, positions="alibi", window=3)
    task.net.blocks[0].attention.chunk_size = 3
    assert_task(task, batch(3), causal="tokens", padding="document", except_for=["bytes"])


@pytest.mark.long
def test_tiles_train_the_same_on_replicas_and_in_microbatches():
    def tiled(*, rng):
        task = make_task(rng=rng, num_layers=1, dropout=0.1, window=3)
        task.net.blocks[0].attention.chunk_size = 3
        return task

    one = Run(assemble(tiled, on_virtual_cpus(1)), batch(4)).train(2)
    other = Run(assemble(tiled, on_virtual_cpus(2)), batch(4), microbatches=2).train(2)
    for name, value in one.variables.items():
        np.testing.assert_allclose(other.variables[name], value, atol=1e-6, err_msg=name)


def test_padding_may_hold_what_is_no_token():
    rows, other = windows(), windows()
    other["tokens"][rows["document"] < 0] = 1 << 20
    task = make_task(rng=RNG)
    one, two = (task.loss({key: tf.constant(x) for key, x in each.items()}, None) for each in (rows, other))
    np.testing.assert_array_equal(one.per_example[one.weight > 0], two.per_example[two.weight > 0])


@pytest.mark.long
def test_language_model_overfits_one_batch():
    assert_overfits(make_task(rng=RNG, num_layers=1, optimizer=adam(3e-2)), batch(), steps=25, to=0.7)


@pytest.mark.long
def test_recompute_computes_blocks_again_and_changes_no_number_and_no_name():
    def traced(**settings):
        task = make_task(rng=RNG, num_layers=1, dropout=0.2, **settings)

        @tf.function(autograph=False)
        def gradients():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(task.loss(batch(), RNG).per_example)
            return {path: tf.convert_to_tensor(x) for path, x in tape.gradient(loss, task.parameters()).items()}

        operations = gradients.get_concrete_function().graph.get_operations()
        return gradients(), sum(op.type == "MatMul" for op in operations)

    (kept, products), (again, more) = traced(), traced(recompute=True)
    assert more == products + 6  # of a block: query, key, value, out, up, down
    assert kept.keys() == again.keys()
    for path in kept:
        np.testing.assert_allclose(kept[path], again[path], rtol=1e-5, atol=1e-6, err_msg=path)


def test_initial_weights_spread_as_those_of_gpt2():
    task = make_task(rng=RNG, size=96, num_layers=2)
    spreads = {path: float(tf.math.reduce_std(v)) for path, v in task.net.parameters().items()}
    for path, spread in spreads.items():
        if path.endswith("/w"):
            ends = path.endswith(("out/w", "down/w"))
            assert spread == pytest.approx(0.02 / np.sqrt(4) if ends else 0.02, rel=0.1), path


@pytest.mark.parametrize(
    "optimizer",
    [
        adamw(0.1, weight_decay=0.5, no_decay=["b", "scale", "offset"]),
        groups({"w": adamw(0.1, weight_decay=0.5)}, otherwise=adam(0.1)),
    ],
)
def test_matrices_decay_and_norms_and_biases_do_not(optimizer):
    task = make_task(rng=RNG, optimizer=optimizer)
    before = {path: v.numpy() for path, v in task.net.parameters().items()}
    optimizers_of(task)["net"].apply({path: tf.zeros_like(v) for path, v in before.items()})
    for path, v in task.net.parameters().items():
        np.testing.assert_allclose(v, before[path] * (0.95 if path.endswith("w") else 1.0), rtol=1e-6, err_msg=path)
    assert {path.split("/")[-1] for path in before} == {"w", "b", "scale", "offset"}


def test_source_that_does_not_fit_is_refused():
    make_task(rng=RNG).check_source(source())
    for settings, says in (({"context": 9}, "`LanguageModel.context` is 9"), ({"vocabulary": 10}, "vocabulary` is 10")):
        with pytest.raises(DataError, match=says):
            make_task(rng=RNG, **settings).check_source(source())
    with pytest.raises(DataError, match="`digits` has no feature `tokens`"):
        make_task(rng=RNG).check_source(digits())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"positions": "sinusoidal"}, "give one of 'learned', 'rotary'"),
        ({"window": 0}, "`window` is 0; give a whole number"),
        ({"norm": "batch"}, "give one of 'layer', 'rms'"),
        ({"feed_forward": "relu"}, "give one of 'gelu', 'swiglu'"),
        ({"num_heads": 5}, "doesn't divide `size=12`"),
        ({"dropout": 1.0}, "give a fraction"),
        ({"num_layers": 0}, "`num_layers` is 0"),
        ({"text_length": CONTEXT + 1}, "`LanguageModel.text_length` is 9; give 2 to `context` = 8"),
    ],
)
def test_language_model_refuses_settings_without_sense(settings, says):
    with pytest.raises(ValueError, match=says):
        make_task(rng=RNG, **settings)


def test_window_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="at most `context=8` tokens"):
        make_task(rng=RNG).net(tf.zeros([1, CONTEXT + 1], tf.int32))
    assert make_task(rng=RNG).net(tf.zeros([1, 3], tf.int32)).shape == [1, 3, VOCABULARY]
