"""GPT-2's shape, made a second time in Flax: its weights, taken over by a map of paths, give the same logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from core.random import Rng
from models import Transformer

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


def test_a_model_of_gpt_2s_shape_gives_the_same_logits():
    tokens = np.random.RandomState(0).randint(0, VOCABULARY, [3, CONTEXT])
    peer = FlaxGpt2()
    given = peer.init(jax.random.PRNGKey(0), tokens)["params"]
    leaves, tree = jax.tree_util.tree_flatten(given)
    random = np.random.RandomState(1)
    # Larger than at the beginning, and no bias zero: all that is mapped matters.
    given = jax.tree_util.tree_unflatten(tree, [x + 0.2 * random.randn(*x.shape).astype("float32") for x in leaves])

    net = Transformer(
        vocabulary=VOCABULARY, context=CONTEXT, layers=LAYERS, size=SIZE, heads=HEADS, rng=Rng.from_seed(0)
    )
    assert PATHS.keys() == net.parameters().keys()
    for path, variable in net.parameters().items():
        its, third = PATHS[path]
        value = given
        for part in its.split("/"):
            value = value[part]
        variable.assign(value if third is None else np.split(np.asarray(value), 3, -1)[third])
    expected = np.asarray(peer.apply({"params": given}, tokens))
    np.testing.assert_allclose(net(tf.constant(tokens, tf.int32)), expected, atol=1e-4)
    assert expected.std() > 0.5
