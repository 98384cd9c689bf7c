"""Llama, Mistral and Qwen from files of `transformers` compute what a transcription in NumPy does."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from core.errors import CheckpointError, ConfigurationError
from core.layers import RotaryScaling
from core.optimizers import sgd
from core.random import Rng
from core.weights import begin_with
from models import LanguageModel
from models.language import llama_weights
from models.language.hugging_face import arrays
from models.language.llama import LAYOUT
from tests.models.language import numpy_llama

CONFIG = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
}  # fmt: skip
SETTINGS = {
    "vocabulary": 50, "context": 12, "num_layers": 2, "size": 24, "hidden": 40, "num_heads": 4, "num_kv_heads": 2,
    "positions": "rotary", "rotary_base": 500.0, "norm": "rms", "feed_forward": "swiglu", "bias": False, "tied": False,
}  # fmt: skip
SCALES = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0.1, "high_freq_factor": 0.5}
SCALES["original_max_position_embeddings"] = 8  # of three pairs, one turns as before, one between and one slowly
FAMILIES = {
    "llama": ({}, {}),
    "llama 3.1": ({"rope_scaling": SCALES}, {"rotary_scaling": RotaryScaling(4.0, 8, low=0.1, high=0.5)}),
    "mistral": ({"model_type": "mistral", "sliding_window": 5}, {"window": 5}),
    "qwen2": ({"model_type": "qwen2", "tie_word_embeddings": True}, {"qkv_bias": True, "tied": True}),
    "qwen3": ({"model_type": "qwen3", "head_dim": 10}, {"qk_norm": True, "head_size": 10}),
    "table": ({"rope_theta": None, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}, {}),
}
TOKENS = np.random.RandomState(0).randint(0, 50, [3, 12])


def model(**settings):
    return LanguageModel(**{**SETTINGS, **settings}, optimizer=sgd(0.1), rng=Rng.from_seed(0))


def saved(folder, **changes):
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = numpy_llama.tensors({**config, "rope_theta": 500.0}, np.random.RandomState(1))
    save_file(tensors, folder / "model.safetensors")
    return {**config, "rope_theta": 500.0}, tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_from_files_compute_what_the_transcription_does(family, tmp_path):
    changes, settings = FAMILIES[family]
    config, tensors = saved(tmp_path, **changes)
    task = model(**settings)
    begun = begin_with(llama_weights(str(tmp_path)), task)
    assert begun.line == f"begins with `{tmp_path}`: {len(task.trainable_variables)} of {len(task.variables)} variables"
    expected = numpy_llama.logits(config, tensors, TOKENS)
    np.testing.assert_allclose(task.net(tf.constant(TOKENS, tf.int32)), expected, atol=1e-4)
    assert expected.std() > 0.5
    caches = task.net.empty_caches(3, 12)
    _, caches = task.net.decode(tf.constant(TOKENS[:, :7], tf.int32), caches)
    decoded, _ = task.net.decode(tf.constant(TOKENS[:, 7:], tf.int32), caches)
    np.testing.assert_allclose(decoded, expected[:, -1], atol=1e-4)
    back = arrays(task.net, LAYOUT)
    assert set(back) == set(tensors)
    for name, array in back.items():
        np.testing.assert_array_equal(array, tensors[name])


def test_weights_in_bfloat16_are_widened(tmp_path):
    config, tensors = saved(tmp_path)
    narrow = {name: x.astype(tf.bfloat16.as_numpy_dtype) for name, x in tensors.items()}
    save_file(narrow, tmp_path / "model.safetensors")
    task = model()
    assert "widened from bfloat16" in begin_with(llama_weights(str(tmp_path)), task).line
    expected = numpy_llama.logits(config, {name: x.astype(np.float32) for name, x in narrow.items()}, TOKENS)
    np.testing.assert_allclose(task.net(tf.constant(TOKENS, tf.int32)), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rotary_base": 1e4, "num_heads": 2}, "with `num_heads = 4`, not 2, `head_size = 6`, not 12, `rotary_base"),
        ({"epsilon": 1e-6, "qk_norm": True}, "`epsilon = 1e-05`, not 1e-06, `qk_norm = False`, not True: bind these"),
        ({"tied": True, "window": 4, "logit_cap": 30.0}, "`window = None`, not 4, `tied = False`, not True, `logit_"),
    ],
)
def test_networks_of_another_kind_are_refused(settings, message, tmp_path):
    saved(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        begin_with(llama_weights(str(tmp_path)), model(**settings))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma"}, "`model_type` = 'gemma', which no `LanguageModel` computes: only 'llama', 'mistral'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "scales its rotary positions by 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has `original_max_position_embeddings` = None"),
        ({"rope_scaling": {**SCALES, "low_freq_factor": 2}}, "`low` of `RotaryScaling` is 2, not below `high`, 0.5"),
        ({"rope_scaling": [1]}, "scales its rotary positions by"),
        ({"attention_bias": True}, "`attention_bias` = True"),
        ({"num_attention_heads": "4"}, "has `num_attention_heads` = '4', where a number above 0"),
        ({"intermediate_size": -1}, "has `intermediate_size` = -1"),
        ({"hidden_size": math.nan}, "has `hidden_size` = nan"),
        ({"rope_theta": math.inf}, "has `rope_theta` = inf"),
    ],
)
def test_models_that_no_network_computes_are_refused(changes, message, tmp_path):
    saved(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    with pytest.raises(CheckpointError, match=message):
        begin_with(llama_weights(str(tmp_path)), model())


def test_missing_tensor_is_named(tmp_path):
    _, tensors = saved(tmp_path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing  *net/blocks/1/feed_forward/up/w"):
        begin_with(llama_weights(str(tmp_path)), model())


def test_a_cap_reaches_the_scores_of_each_block(tmp_path):
    saved(tmp_path)
    task, flat = model(), model(score_cap=1e-9)
    for block in task.net.blocks:
        block.attention.query.w.assign(tf.zeros_like(block.attention.query.w))  # all scores are zero
    tokens = tf.constant(TOKENS, tf.int32)
    np.testing.assert_allclose(flat.net(tokens), task.net(tokens), atol=1e-6)


def test_capped_logits_stay_below_their_cap(tmp_path):
    saved(tmp_path)
    task, capped = model(), model(logit_cap=0.01)
    logits, bounded = (x.net(tf.constant(TOKENS, tf.int32)).numpy() for x in (task, capped))
    np.testing.assert_allclose(bounded, 0.01 * np.tanh(logits / 0.01), atol=1e-7)
    assert abs(bounded).max() <= 0.01
