"""The task of a language model: predicting the next token at each position of a window."""

from collections.abc import Callable, Mapping, Sequence

import gin
import tensorflow as tf

from core import losses, metrics
from core.layers import RotaryScaling
from core.layers.attention import Cache
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Loss, Served, Task, Tokens, Update
from core.weights import Lora
from models.language.config import TransformerConfig
from models.language.sampling import Decoder, sampled
from models.language.transformer import Transformer


@gin.configurable
class LanguageModel(Task):
    """Predicts each token of a text from earlier tokens, in windows of `context` tokens and their targets.

    By default, the network is like GPT-2. Alternatives are `positions="rotary"` or `"alibi"`, `norm="rms"`,
    `feed_forward="swiglu"`, fewer `num_kv_heads` than `num_heads`, and attention to the last `window` tokens only.
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
        bias: bool = True,
        qkv_bias: bool | None = None,
        tied: bool = True,
        logit_cap: float | None = None,
        dropout: float = 0.0,
        recompute: bool = False,
        base_width: int | None = None,
        decoder: Decoder | None = None,
        text_length: int | None = None,
        lora: Callable[..., Lora] | None = None,
    ):
        super().__init__()
        if text_length is not None and not 2 <= text_length <= context:
            raise ValueError(f"`LanguageModel.text_length` is {text_length}; give 2 to `context` = {context}.")
        self.optimizer, self.decoder = optimizer, decoder or sampled()
        self.text_length = text_length or context
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
            bias=bias,
            qkv_bias=qkv_bias,
            tied=tied,
            logit_cap=logit_cap,
            dropout=dropout,
            recompute=recompute,
            base_width=base_width,
        )
        self.net = Transformer(config, rng=rng.fold("net"))
        self.lora = lora(self.net, rng=rng.fold("lora")) if lora else None
        self.frozen = ("net",) if lora else ()

    def phases(self) -> list[Update]:
        trained = self.lora or self.net
        return [Update("net", loss=self.loss, trains=trained, optimizer=self.optimizer, sampled_loss=self.sampled_loss)]

    def network(self) -> Transformer:
        """Returns the network to compute with: `net`, or a copy that the low-rank changes have changed."""
        return self.lora(self.net) if self.lora else self.net

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns each token's cross-entropy, given earlier tokens of its document. `rng=None` means evaluation."""
        logits, tokens, weight = self._predicted(batch, rng)
        cross_entropy = losses.softmax_cross_entropy(logits, tokens)
        figures = {
            "perplexity": metrics.Perplexity.of(cross_entropy, weight),
            "bits_per_byte": metrics.BitsPerByte.of(cross_entropy, batch["bytes"][:, 1:], weight),
        }
        return Loss(cross_entropy, weight=weight, metrics=figures)

    def sampled_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the cross-entropy of tokens drawn from the network's own probabilities."""
        logits, _, weight = self._predicted(batch, rng)
        return Loss(losses.softmax_cross_entropy(logits, rng.fold("labels").rows.categorical(logits)), weight=weight)

    def _predicted(self, batch: Batch, rng: Rng | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns logits [rows, time, vocabulary], the tokens [rows, time] that they predict, and their weights."""
        document = batch["document"]
        tokens = tf.where(document < 0, 0, batch["tokens"])  # padding may hold anything
        follows = (document[:, 1:] == document[:, :-1]) & (document[:, 1:] >= 0)
        logits = self.network()(tokens[:, :-1], document[:, :-1], rng)
        return logits, tokens[:, 1:], tf.cast(follows, tf.float32)

    def evaluate(self, batch: Batch) -> Loss:
        return self.loss(batch, rng=None)

    def write(self, rng: Rng, prompts: tf.Tensor, lengths: tf.Tensor, *, end: int, vocabulary: int) -> tf.Tensor:
        """Returns texts [rows, text_length] that begin with the first `lengths[row]` tokens of `prompts` [rows, time].

        All tokens are below `vocabulary`. After the first generated token `end`, the row is filled with `end`.
        """
        length = self.text_length
        return self.decoder(self.network(), prompts, lengths, length=length, end=end, vocabulary=vocabulary, rng=rng)

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        tokens, position = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32)
        attention = self.net.blocks[0].attention
        room = [None, len(self.net.blocks), self.text_length, attention.num_kv_heads, attention.head_size]
        cache = {"keys": tf.TensorSpec(room), "values": tf.TensorSpec(room), "position": position}
        return {
            "prefill": Served(self.prefill, {"tokens": tokens}, examples=self._beginnings, scores=["logits"]),
            "decode": Served(self.decode, {"tokens": tokens, **cache}, examples=self._begun, scores=["logits"]),
        }

    def prefill(self, batch: Batch) -> Batch:
        """Returns `logits` of the token after `batch["tokens"]`, and the cache: `keys`, `values` and `position`."""
        tokens = batch["tokens"]
        return self._decoded(tokens, self.net.empty_caches(tf.shape(tokens)[0], self.text_length))

    def decode(self, batch: Batch) -> Batch:
        """Returns the same as `prefill` for `batch["tokens"]` that continue the text in the cache of `batch`."""
        keys, values = tf.unstack(batch["keys"], axis=1), tf.unstack(batch["values"], axis=1)
        caches = [Cache(k, v, batch["position"]) for k, v in zip(keys, values, strict=True)]
        return self._decoded(batch["tokens"], caches)

    def _decoded(self, tokens: tf.Tensor, caches: Sequence[Cache]) -> Batch:
        logits, caches = self.network().decode(tokens, caches)
        keys, values = (tf.stack(parts, 1) for parts in zip(*((c.keys, c.values) for c in caches), strict=True))
        return {"logits": logits, "keys": keys, "values": values, "position": caches[0].length}

    def _beginnings(self, batch: Batch) -> Batch:
        return {"tokens": batch["tokens"][:, : self.text_length // 2]}

    def _begun(self, batch: Batch) -> Batch:
        begun = self.prefill(self._beginnings(batch))
        return {**begun, "tokens": batch["tokens"][:, self.text_length // 2 :][:, :1]}

    def reads(self) -> dict[str, Feature]:
        context = self.net.config.context
        return {
            "tokens": Tokens(context, vocabulary=self.net.config.vocabulary),
            "document": Tokens(context),
            "bytes": Tokens(context),
        }
