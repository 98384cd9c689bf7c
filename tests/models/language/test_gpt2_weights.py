"""A GPT-2 in the files of `transformers` becomes a `LanguageModel` that computes what its peer in Flax does.

`python -m tools.gpt2_peer` has `transformers` itself make such files.
"""

import json

import jax
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from core.errors import CheckpointError, ConfigurationError
from core.optimizers import sgd
from core.random import Rng
from core.weights import begin_with
from models import LanguageModel
from models.language import gpt2_weights
from tests.models.language.flax_gpt2 import FlaxGpt2

SIZES = {"vocabulary": 50, "context": 10, "num_layers": 3, "size": 24, "num_heads": 4}
PEER = FlaxGpt2(**SIZES)
TOKENS = np.random.RandomState(0).randint(0, 50, [3, 10])
CONFIG = {"model_type": "gpt2", "n_head": 4, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
THEIRS = {"scale": "weight", "embedding": "weight", "kernel": "weight", "bias": "bias"}
PARTS = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "mlp_c_proj": "mlp.c_proj"}


def named_as_theirs(params):
    """The peer's arrays as `transformers` calls them, with the masks that earlier versions kept."""
    found = {"transformer.h.0.attn.bias": np.tril(np.ones([1, 1, 10, 10], np.float32))}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        *parts, last = (key.key for key in keys)
        name = ".".join(PARTS.get(part, part.replace("h_", "h.")) for part in parts)
        found[f"transformer.{name}.{THEIRS[last]}"] = np.asarray(leaf)
    return found


@pytest.fixture(scope="module")
def params():
    given = jax.jit(PEER.init)(jax.random.PRNGKey(0), TOKENS)["params"]
    leaves, tree = jax.tree_util.tree_flatten(given)
    random = np.random.RandomState(1)
    return jax.tree_util.tree_unflatten(tree, [x + 0.2 * random.randn(*x.shape).astype("float32") for x in leaves])


@pytest.fixture
def folder(params, tmp_path):
    save_file(named_as_theirs(params), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def model(**settings):
    return LanguageModel(**{**SIZES, "optimizer": sgd(0.1), "rng": Rng.from_seed(0), **settings})


def test_it_computes_what_the_peer_does(folder, params):
    task = model()
    begun = begin_with(gpt2_weights(str(folder)), task)
    expected = np.asarray(jax.jit(PEER.apply)({"params": params}, TOKENS))
    np.testing.assert_allclose(task.net(tf.constant(TOKENS, tf.int32)), expected, atol=1e-4)
    assert expected.std() > 0.5
    assert begun.line == f"begins with `{folder}`: 52 of 52 variables"
    assert begun.record["path"] == str(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 2}, r"a `LanguageModel` with `num_heads = 4`, not 2, `num_kv_heads = 4`, not 2: bind it so"),
        ({"num_kv_heads": 2}, "with `num_kv_heads = 4`, not 2"),
        ({"positions": "rotary", "norm": "rms"}, "with `positions = 'learned'`, not 'rotary', `norm = 'layer'`, not"),
        ({"bias": False}, "with `bias = True`, not False"),
    ],
)
def test_a_network_of_another_kind_is_refused(settings, message, folder):
    with pytest.raises(ConfigurationError, match=message):
        begin_with(gpt2_weights(str(folder)), model(**settings))


def test_a_network_of_other_sizes_is_refused_with_a_table(folder):
    with pytest.raises(CheckpointError, match=r"misshapen  net/tokens/w  float32\[60,24\]  float32\[50,24\]"):
        begin_with(gpt2_weights(str(folder)), model(vocabulary=60))
    shallow = model(num_layers=2)
    assert "not taken: `net/blocks/2/" in begin_with(gpt2_weights(str(folder)), shallow).line


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**CONFIG, "activation_function": "relu"},
            "`activation_function` = 'relu', which no `LanguageModel` computes",
        ),
        ({**CONFIG, "model_type": "llama"}, "`model_type` = 'llama'"),
        ({**CONFIG, "n_head": None}, "says of no `n_head`"),
        ([], "says of no `n_head`"),
        ("{", "it is no JSON"),
        (None, "No such file"),
    ],
)
def test_another_model_and_a_bad_folder_are_named(config, message, folder):
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        begin_with(gpt2_weights(str(folder)), model())


@pytest.mark.parametrize("shape", [[24, 71], []])
def test_what_cant_be_cut_into_its_parts_is_named(shape, params, folder):
    whole = named_as_theirs(params)
    save_file({**whole, "transformer.h.1.attn.c_attn.weight": np.ones(shape, np.float32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"`transformer/h/1/attn/c_attn/weight` of .* keeps 3 equal parts"):
        begin_with(gpt2_weights(str(folder)), model())


def test_a_model_in_several_files_is_to_be_saved_as_one(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"in several files: .*max_shard_size"):
        begin_with(gpt2_weights(str(folder)), model())
