"""The task of a transformer that predicts the next token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.layers import RotaryScaling
from core.layers.attention import Cache
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Statistics
from core.weights import Lora
from models.language.config import TransformerConfig
from models.language.experts import ExpertLoad
from models.language.next_token import NextToken
from models.language.sampling import Decoder
from models.language.transformer import Transformer


@gin.configurable
class LanguageModel(NextToken):
    """Predicts each token of a text from earlier tokens, in windows of `context` tokens and their targets.

    By default, the network is like GPT-2. Alternatives are `positions="rotary"` or `"alibi"`, `norm="rms"`,
    `feed_forward="swiglu"`, fewer `num_kv_heads` than `num_heads`, and attention to the last `window` tokens only.
    With `experts`, feed-forward layers are mixtures of experts, and training reports their `load`.
    `TransformerConfig` describes all of them. With `base_width`, the network follows muP. `optimizer` is then a `mup`.
    `decoder` generates texts of `text_length` tokens (by default `context`), including the prompt.
    With `lora=Lora`, only low-rank changes of the network's matrices are trained.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        vocabulary: int = gin.REQUIRED,
        context: int = gin.REQUIRED,
        num_layers: int = gin.REQUIRED,
        size: int = gin.REQUIRED,
        num_heads: int = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        num_kv_heads: int | None = None,
        head_size: int | None = None,
        hidden: int | None = None,
        positions: str = "learned",
        rotary_base: float = 10000.0,
        rotary_scaling: RotaryScaling | None = None,
        window: int | None = None,
        norm: str = "layer",
        epsilon: float = 1e-5,
        qk_norm: bool = False,
        feed_forward: str = "gelu",
        experts: int | None = None,
        experts_per_token: int = 2,
        balance_rate: float = 1e-3,
        bias: bool = True,
        qkv_bias: bool | None = None,
        tied: bool = True,
        logit_cap: float | None = None,
        score_cap: float | None = None,
        dropout: float = 0.0,
        recompute: bool = False,
        base_width: int | None = None,
        decoder: Decoder | None = None,
        text_length: int | None = None,
        lora: Callable[..., Lora] | None = None,
    ):
        super().__init__(
            vocabulary=vocabulary, context=context, optimizer=optimizer, decoder=decoder, text_length=text_length
        )
        config = TransformerConfig(
            vocabulary=vocabulary,
            context=context,
            num_layers=num_layers,
            size=size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            hidden=hidden,
            positions=positions,
            rotary_base=rotary_base,
            rotary_scaling=rotary_scaling,
            window=window,
            norm=norm,
            epsilon=epsilon,
            qk_norm=qk_norm,
            feed_forward=feed_forward,
            experts=experts,
            experts_per_token=experts_per_token,
            balance_rate=balance_rate,
            bias=bias,
            qkv_bias=qkv_bias,
            tied=tied,
            logit_cap=logit_cap,
            score_cap=score_cap,
            dropout=dropout,
            recompute=recompute,
            base_width=base_width,
        )
        self.net = Transformer(config, rng=rng.fold("net"))
        self.lora = lora(self.net, rng=rng.fold("lora")) if lora else None
        self.frozen = ("net",) if lora else ()

    def trained(self) -> tf.Module:
        return self.lora or self.net

    def network(self) -> Transformer:
        """Returns the network to compute with: `net`, or a copy that the low-rank changes have changed."""
        return self.lora(self.net) if self.lora else self.net

    def compute(self, inputs: Batch, rng: Rng | None) -> tuple[tf.Tensor, Mapping[str, Any]]:
        if self.net.config.experts is None or rng is None:
            return super().compute(inputs, rng)
        statistics = Statistics()
        logits = self.network()(inputs["tokens"], inputs["document"], rng, statistics=statistics)
        return logits, {"statistics": statistics, "metrics": {"load": ExpertLoad.of(statistics)}}

    def kept(self) -> Mapping[str, tf.TensorSpec]:
        """Returns specs of the cache: `keys`, `values` and `position`."""
        attention = self.net.blocks[0].attention
        room = [None, len(self.net.blocks), self.text_length, attention.num_kv_heads, attention.head_size]
        position = tf.TensorSpec([], tf.int32)
        return {"keys": tf.TensorSpec(room), "values": tf.TensorSpec(room), "position": position}

    def tensors(self, caches: Sequence[Cache]) -> Batch:
        keys, values = (tf.stack(parts, 1) for parts in zip(*((c.keys, c.values) for c in caches), strict=True))
        return {"keys": keys, "values": values, "position": caches[0].length}

    def caches(self, batch: Batch) -> list[Cache]:
        keys, values = tf.unstack(batch["keys"], axis=1), tf.unstack(batch["values"], axis=1)
        return [Cache(k, v, batch["position"]) for k, v in zip(keys, values, strict=True)]
