"""GPT-2's shape, made a second time in Flax: with its weights ours gives the same logits, and learns the same."""

import jax
import numpy as np
import optax
import pytest
import tensorflow as tf

from core.optimizers import adamw, chain, clip_by_global_norm
from core.random import Rng
from core.testing.plain import optimizers_of, plain_step
from models import LanguageModel, Transformer
from tests.models.language.flax_gpt2 import FlaxGpt2, decays, take_over

LAYERS, SIZE, HEADS, CONTEXT, VOCABULARY = 3, 24, 4, 10, 50


SIZES = {"vocabulary": VOCABULARY, "context": CONTEXT, "num_layers": LAYERS, "size": SIZE, "num_heads": HEADS}
PEER = FlaxGpt2(**SIZES)


def begun(tokens):
    """The peer's weights as it begins, larger, and no bias zero: all that is mapped matters."""
    given = jax.jit(PEER.init)(jax.random.PRNGKey(0), tokens)["params"]
    leaves, tree = jax.tree_util.tree_flatten(given)
    random = np.random.RandomState(1)
    return jax.tree_util.tree_unflatten(tree, [x + 0.2 * random.randn(*x.shape).astype("float32") for x in leaves])


def test_a_model_of_gpt_2s_shape_gives_the_same_logits():
    tokens = np.random.RandomState(0).randint(0, VOCABULARY, [3, CONTEXT])
    given = begun(tokens)
    net = Transformer(**SIZES, rng=Rng.from_seed(0))
    take_over(net, given)
    logits = jax.jit(PEER.apply)
    expected = np.asarray(logits({"params": given}, tokens))
    np.testing.assert_allclose(net(tf.constant(tokens, tf.int32)), expected, atol=1e-4)
    assert expected.std() > 0.5
    document = np.array([[0] * CONTEXT, [0] * 3 + [1] * 4 + [2] * 3, [0, 1, *[2] * 8]], np.int32)
    packed = np.asarray(logits({"params": given}, tokens, document))
    np.testing.assert_allclose(net(tf.constant(tokens, tf.int32), tf.constant(document)), packed, atol=1e-4)
    assert abs(packed[1:, 3:] - expected[1:, 3:]).max() > 0.5


@pytest.mark.long
def test_it_learns_as_its_peer_does():
    steps, rate, decay = 12, 3e-3, 0.1
    batches = np.random.RandomState(2).randint(0, VOCABULARY, [steps, 4, CONTEXT + 1])
    batches[:, :, 1::2] = batches[:, :, 0:-1:2] // 2  # every second token can be learnt
    given = begun(batches[0, :, :-1])

    def loss_of(params, tokens):
        logits = PEER.apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=decay, mask=decays))
    value_and_gradient, params, state, expected = jax.jit(jax.value_and_grad(loss_of)), given, rule.init(given), []
    for tokens in batches:
        loss, gradient = value_and_gradient(params, tokens)
        updates, state = rule.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        expected.append(float(loss))

    no_decay = ["b", "scale", "offset"]
    rule = chain(clip_by_global_norm(1.0), adamw(rate, weight_decay=decay, no_decay=no_decay))
    task = LanguageModel(**SIZES, rng=Rng.from_seed(0), optimizer=rule)
    take_over(task.net, given)
    optimizers, found = optimizers_of(task), []
    for i, tokens in enumerate(batches):
        batch = {"tokens": tf.constant(tokens, tf.int32), "document": tf.zeros(tokens.shape, tf.int32)}
        batch["bytes"] = tf.ones(tokens.shape, tf.int32)
        found.append(float(plain_step(task, optimizers, batch, Rng.from_seed(0), index=i)["net"]))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert expected[-1] < expected[0] - 0.1
