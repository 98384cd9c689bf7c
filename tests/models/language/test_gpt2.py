"""Logits equal those of a GPT-2 peer in Flax: with its weights, and from files of `transformers`.

`python -m tools.language_peer` has `transformers` itself make such files.
"""

import json

import jax
import numpy as np
import optax
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from core.errors import CheckpointError, ConfigurationError
from core.optimizers import adamw, chain, clip_by_global_norm, sgd
from core.random import Rng
from core.testing.plain import optimizers_of, plain_step
from core.weights import begin_with
from models import LanguageModel, Transformer, TransformerConfig
from models.language import gpt2_weights
from models.language.gpt2 import LAYOUT
from models.language.hugging_face import arrays
from tests.models.language.flax_gpt2 import FlaxGpt2, decays, take_over

CONTEXT, VOCABULARY = 10, 50
SIZES = {"vocabulary": VOCABULARY, "context": CONTEXT, "num_layers": 2, "size": 24, "num_heads": 4}
PEER = FlaxGpt2(**SIZES)
TOKENS = np.random.RandomState(0).randint(0, VOCABULARY, [3, CONTEXT])
ALONE = np.zeros([3, CONTEXT], np.int32)
PACKED = np.array([[0] * CONTEXT, [0] * 3 + [1] * 4 + [2] * 3, [0, 1, *[2] * 8]], np.int32)
CONFIG = {"model_type": "gpt2", "n_head": 4, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
THEIRS = {"scale": "weight", "embedding": "weight", "kernel": "weight", "bias": "bias"}
PARTS = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "mlp_c_proj": "mlp.c_proj"}


@pytest.fixture(scope="module")
def params():
    """Returns the peer's weights, with no zero bias and no unit scale: every mapping matters."""
    shapes = jax.eval_shape(PEER.init, jax.random.PRNGKey(0), TOKENS, ALONE)["params"]
    random = np.random.RandomState(1)
    return jax.tree_util.tree_map_with_path(
        lambda path, x: np.float32(0.2 * random.randn(*x.shape) + (path[-1].key == "scale")), shapes
    )


@pytest.fixture(scope="module")
def logits(params):
    """Returns the peer's logits by the documents of its tokens, one text or several packed ones."""
    apply = jax.jit(PEER.apply)
    return {name: np.asarray(apply({"params": params}, TOKENS, x)) for name, x in (("a", ALONE), ("p", PACKED))}


def test_gpt2_of_the_peers_weights_gives_the_same_logits(params, logits):
    net = Transformer(TransformerConfig(**SIZES), rng=Rng.from_seed(0))
    take_over(net, params)
    tokens = tf.constant(TOKENS, tf.int32)
    np.testing.assert_allclose(net(tokens), logits["a"], atol=1e-4)
    np.testing.assert_allclose(net(tokens, tf.constant(PACKED)), logits["p"], atol=1e-4)
    assert logits["a"].std() > 0.5
    assert abs(logits["p"][1:, 3:] - logits["a"][1:, 3:]).max() > 0.5


@pytest.mark.long
def test_gpt2_learns_as_its_peer_does(params):
    steps, rate, decay = 4, 1e-2, 0.1
    batches = np.random.RandomState(2).randint(0, VOCABULARY, [steps, 4, CONTEXT + 1])
    batches[:, :, 1::2] = batches[:, :, 0:-1:2] // 2  # every second token can be learnt

    def loss_of(params, tokens):
        logits = PEER.apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=decay, mask=decays))

    @jax.jit
    def step(params, state, tokens):
        loss, gradient = jax.value_and_grad(loss_of)(params, tokens)
        updates, state = rule.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    given, state, expected = params, rule.init(params), []
    for tokens in batches:
        given, state, loss = step(given, state, tokens)
        expected.append(float(loss))

    no_decay = ["b", "scale", "offset"]
    rule = chain(clip_by_global_norm(1.0), adamw(rate, weight_decay=decay, no_decay=no_decay))
    task = LanguageModel(**SIZES, rng=Rng.from_seed(0), optimizer=rule)
    take_over(task.net, params)
    optimizers, found = optimizers_of(task), []
    for i, tokens in enumerate(batches):
        batch = {"tokens": tf.constant(tokens, tf.int32), "document": tf.zeros(tokens.shape, tf.int32)}
        batch["bytes"] = tf.ones(tokens.shape, tf.int32)
        found.append(float(plain_step(task, optimizers, batch, Rng.from_seed(0), index=i)["net"]))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert expected[-1] < expected[0] - 0.1


# --- files of `transformers` ------------------------------------------------------------------------------------------


def named_as_theirs(params):
    """Returns the peer's arrays under the names of `transformers`, with the masks that earlier versions kept."""
    found = {"transformer.h.0.attn.bias": np.tril(np.ones([1, 1, 10, 10], np.float32))}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        *parts, last = (key.key for key in keys)
        name = ".".join(PARTS.get(part, part.replace("h_", "h.")) for part in parts)
        found[f"transformer.{name}.{THEIRS[last]}"] = np.asarray(leaf)
    return found


@pytest.fixture
def folder(params, tmp_path):
    save_file(named_as_theirs(params), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def model(**settings):
    return LanguageModel(**{**SIZES, "optimizer": sgd(0.1), "rng": Rng.from_seed(0), **settings})


def test_gpt2_weights_from_files_compute_what_the_peer_does(folder, logits):
    task = model()
    begun = begin_with(gpt2_weights(str(folder)), task)
    np.testing.assert_allclose(task.net(tf.constant(TOKENS, tf.int32)), logits["a"], atol=1e-4)
    assert begun.line == f"begins with `{folder}`: 36 of 36 variables"
    assert begun.record["path"] == str(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 2}, r"a `LanguageModel` with `num_heads = 4`, not 2, `num_kv_heads = 4`, not 2: bind these"),
        ({"num_kv_heads": 2}, "with `num_kv_heads = 4`, not 2"),
        ({"positions": "rotary", "norm": "rms"}, "with `positions = 'learned'`, not 'rotary', `norm = 'layer'`, not"),
        ({"bias": False}, "with `bias = True`, not False"),
    ],
)
def test_gpt2_weights_refuse_a_network_of_another_kind(settings, message, folder):
    with pytest.raises(ConfigurationError, match=message):
        begin_with(gpt2_weights(str(folder)), model(**settings))


def test_gpt2_weights_refuse_other_sizes_with_a_table(folder):
    with pytest.raises(CheckpointError, match=r"misshapen  net/tokens/w  float32\[60,24\]  float32\[50,24\]"):
        begin_with(gpt2_weights(str(folder)), model(vocabulary=60))
    shallow = model(num_layers=1)
    assert "not taken: `net/blocks/1/" in begin_with(gpt2_weights(str(folder)), shallow).line


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**CONFIG, "activation_function": "relu"},
            "`activation_function` = 'relu', which no `LanguageModel` computes",
        ),
        ({**CONFIG, "model_type": "llama"}, "`model_type` = 'llama'"),
        ({**CONFIG, "n_head": None}, "has `n_head` = None, where a number above 0 should be"),
        ([], "holds no settings by name"),
        ("{", "it isn't JSON"),
        (None, "No such file"),
    ],
)
def test_gpt2_weights_name_another_model_and_a_bad_folder(config, message, folder):
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        begin_with(gpt2_weights(str(folder)), model())


@pytest.mark.parametrize("shape", [[24, 71], []])
def test_gpt2_weights_name_an_array_that_has_no_three_parts(shape, params, folder):
    whole = named_as_theirs(params)
    save_file({**whole, "transformer.h.1.attn.c_attn.weight": np.ones(shape, np.float32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"`transformer/h/1/attn/c_attn/weight` of .* keeps 3 equal parts"):
        begin_with(gpt2_weights(str(folder)), model())


def test_gpt2_in_several_files_computes_the_same(params, logits, folder):
    (folder / "model.safetensors").unlink()
    theirs = named_as_theirs(params)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(theirs)}
    for file in set(files.values()):
        save_file({name: array for name, array in theirs.items() if files[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    task = model()
    begin_with(gpt2_weights(str(folder)), task)
    np.testing.assert_allclose(task.net(tf.constant(TOKENS, tf.int32)), logits["a"], atol=1e-4)
    for text, message in (
        ("{}", "can't be read as the index"),
        (json.dumps({"weight_map": {**files, "more": "model-00001-of-00002.safetensors"}}), "says that `more` is in"),
        (json.dumps({"weight_map": {"more": "../other.safetensors"}}), "all files are in the folder"),
        (json.dumps({"weight_map": {"more": "third.safetensors"}}), "third.safetensors` can.t be read: No such file"),
    ):
        index.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            begin_with(gpt2_weights(str(folder)), model())


def test_gpt2_arrays_are_those_that_were_read(params, folder):
    task = model()
    begin_with(gpt2_weights(str(folder)), task)
    found, theirs = arrays(task.net, LAYOUT), named_as_theirs(params)
    assert set(found) == {name for name in theirs if name != "transformer.h.0.attn.bias"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, theirs[name])
