"""A second implementation of GPT-2 in Flax: the peer of `LanguageModel`, without shared code."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

STDDEV = 0.02

# From the project's paths to the peer's; if its array holds three of the project's, which of them.
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
OUTSIDE = {
    "tokens/w": ("wte/embedding", None),
    "positions/w": ("wpe/embedding", None),
    "norm/scale": ("ln_f/scale", None),
    "norm/offset": ("ln_f/bias", None),
}


class FlaxBlock(nn.Module):
    size: int
    num_heads: int
    num_layers: int
    dropout: float

    @nn.compact
    def __call__(self, x, mask):
        def dropped(x):
            return nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(x)

        normal = nn.initializers.normal(STDDEV)
        at_the_end = nn.initializers.normal(STDDEV / (2 * self.num_layers) ** 0.5)
        y = nn.LayerNorm(epsilon=1e-5, name="ln_1")(x)
        y = nn.Dense(3 * self.size, kernel_init=normal, name="c_attn")(y)
        q, k, v = (a.reshape(*a.shape[:2], self.num_heads, -1) for a in jnp.split(y, 3, -1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(self.size // self.num_heads)
        weights = dropped(jax.nn.softmax(jnp.where(mask[:, None], scores, -jnp.inf)))
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x += dropped(nn.Dense(self.size, kernel_init=at_the_end, name="c_proj")(y))
        y = nn.Dense(4 * self.size, kernel_init=normal, name="c_fc")(nn.LayerNorm(epsilon=1e-5, name="ln_2")(x))
        y = nn.gelu(y, approximate=True)
        return x + dropped(nn.Dense(self.size, kernel_init=at_the_end, name="mlp_c_proj")(y))


class FlaxGpt2(nn.Module):
    """Computes logits; a token sees those before it in its `document`, whose first one has position 0."""

    vocabulary: int
    context: int
    num_layers: int
    size: int
    num_heads: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, tokens, document=None):
        document = jnp.zeros_like(tokens) if document is None else document
        time = jnp.arange(tokens.shape[1])
        same = document[:, :, None] == document[:, None]
        seen = same & (time[:, None] >= time)
        position = time - jnp.argmax(same, -1)  # from where its document begins
        normal = nn.initializers.normal(STDDEV)
        wte = nn.Embed(self.vocabulary, self.size, embedding_init=normal, name="wte")
        wpe = nn.Embed(self.context, self.size, embedding_init=normal, name="wpe")
        x = wte(tokens) + wpe(position)
        x = nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(x)
        for i in range(self.num_layers):
            x = FlaxBlock(self.size, self.num_heads, self.num_layers, self.dropout, name=f"h_{i}")(x, seen)
        return wte.attend(nn.LayerNorm(epsilon=1e-5, name="ln_f")(x))


def decays(params):
    """Tells for each parameter whether it decays: matrices and tables do, biases and norms' parameters don't."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in ("kernel", "embedding"), params)


def take_over(net, given):
    """Writes the peer's weights into `net`; none may be missing."""
    paths = OUTSIDE | {
        f"blocks/{i}/{own}": (f"h_{i}/{its}", third)
        for i in range(len(net.blocks))
        for own, (its, third) in IN_A_BLOCK.items()
    }
    assert paths.keys() == net.parameters().keys()
    for path, variable in net.parameters().items():
        its, third = paths[path]
        value = given
        for part in its.split("/"):
            value = value[part]
        variable.assign(value if third is None else np.split(np.asarray(value), 3, -1)[third])
