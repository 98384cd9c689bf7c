"""GPT-2's shape, made a second time in Flax: with its weights ours gives the same logits, and learns the same."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorflow as tf

from core.optimizers import adamw, chain, clip_by_global_norm
from core.random import Rng
from core.testing.plain import optimizers_of, plain_step
from models import LanguageModel, Transformer

LAYERS, SIZE, HEADS, CONTEXT, VOCABULARY = 3, 24, 4, 10, 50


class FlaxBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        time = x.shape[1]
        y = nn.LayerNorm(epsilon=1e-5, name="ln_1")(x)
        q, k, v = (a.reshape(*a.shape[:2], HEADS, -1) for a in jnp.split(nn.Dense(3 * SIZE, name="c_attn")(y), 3, -1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(SIZE // HEADS)
        scores = jnp.where(jnp.tril(jnp.ones([time, time], bool)), scores, -jnp.inf)
        y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x += nn.Dense(SIZE, name="c_proj")(y)
        y = nn.gelu(nn.Dense(4 * SIZE, name="c_fc")(nn.LayerNorm(epsilon=1e-5, name="ln_2")(x)), approximate=True)
        return x + nn.Dense(SIZE, name="mlp_c_proj")(y)


class FlaxGpt2(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        wte, wpe = nn.Embed(VOCABULARY, SIZE, name="wte"), nn.Embed(CONTEXT, SIZE, name="wpe")
        x = wte(tokens) + wpe(jnp.arange(tokens.shape[1]))
        for i in range(LAYERS):
            x = FlaxBlock(name=f"h_{i}")(x)
        return wte.attend(nn.LayerNorm(epsilon=1e-5, name="ln_f")(x))


# From a path of ours to the peer's, and, where its array holds three of ours, which of them.
IN_A_BLOCK = {
    "norm_1/scale": ("ln_1/scale", None),
    "norm_1/offset": ("ln_1/bias", None),
    "attention/query/w": ("c_attn/kernel", 0),
    "attention/query/b": ("c_attn/bias", 0),
    "attention/key/w": ("c_attn/kernel", 1),
    "attention/key/b": ("c_attn/bias", 1),
    "attention/value/w": ("c_attn/kernel", 2),
    "attention/value/b": ("c_attn/bias", 2),
    "attention/out/w": ("c_proj/kernel", None),
    "attention/out/b": ("c_proj/bias", None),
    "norm_2/scale": ("ln_2/scale", None),
    "norm_2/offset": ("ln_2/bias", None),
    "feed_forward/up/w": ("c_fc/kernel", None),
    "feed_forward/up/b": ("c_fc/bias", None),
    "feed_forward/down/w": ("mlp_c_proj/kernel", None),
    "feed_forward/down/b": ("mlp_c_proj/bias", None),
}
PATHS = {
    "tokens/w": ("wte/embedding", None),
    "positions/w": ("wpe/embedding", None),
    "norm/scale": ("ln_f/scale", None),
    "norm/offset": ("ln_f/bias", None),
    **{f"blocks/{i}/{own}": (f"h_{i}/{its}", third) for i in range(LAYERS) for own, (its, third) in IN_A_BLOCK.items()},
}


def take_over(net, given):
    """Writes the peer's weights into `net`, of which none may be left out."""
    assert PATHS.keys() == net.parameters().keys()
    for path, variable in net.parameters().items():
        its, third = PATHS[path]
        value = given
        for part in its.split("/"):
            value = value[part]
        variable.assign(value if third is None else np.split(np.asarray(value), 3, -1)[third])


def begun(tokens):
    """The peer's weights as it begins, larger, and no bias zero: all that is mapped matters."""
    given = FlaxGpt2().init(jax.random.PRNGKey(0), tokens)["params"]
    leaves, tree = jax.tree_util.tree_flatten(given)
    random = np.random.RandomState(1)
    return jax.tree_util.tree_unflatten(tree, [x + 0.2 * random.randn(*x.shape).astype("float32") for x in leaves])


SIZES = {"vocabulary": VOCABULARY, "context": CONTEXT, "layers": LAYERS, "size": SIZE, "heads": HEADS}


def test_a_model_of_gpt_2s_shape_gives_the_same_logits():
    tokens = np.random.RandomState(0).randint(0, VOCABULARY, [3, CONTEXT])
    given = begun(tokens)
    net = Transformer(**SIZES, rng=Rng.from_seed(0))
    take_over(net, given)
    expected = np.asarray(FlaxGpt2().apply({"params": given}, tokens))
    np.testing.assert_allclose(net(tf.constant(tokens, tf.int32)), expected, atol=1e-4)
    assert expected.std() > 0.5


@pytest.mark.long
def test_it_learns_as_its_peer_does():
    steps, rate, decay = 12, 3e-3, 0.1
    batches = np.random.RandomState(2).randint(0, VOCABULARY, [steps, 4, CONTEXT + 1])
    batches[:, :, 1::2] = batches[:, :, 0:-1:2] // 2  # every second token can be learnt
    given = begun(batches[0, :, :-1])

    def loss_of(params, tokens):
        logits = FlaxGpt2().apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def decays(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in ("kernel", "embedding"), params)

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
