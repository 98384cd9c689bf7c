"""The task of a masked language model: restoring hidden tokens (Devlin et al., 2019)."""

from collections.abc import Mapping, Sequence

import gin
import tensorflow as tf

from core import losses, metrics
from core.arguments import check_fraction
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Compute, Feature, Loss, Phase, Served, Task, Tokens, Update
from models.language.bert import Bert, BertConfig


@gin.configurable
class MaskedLanguageModel(Task):
    """Restores hidden tokens of a text from those on both sides, in windows of `context` tokens.

    A share `rate` of the tokens is chosen. A chosen token becomes `mask_token` with 80 % probability, a random token
    with 10 %, and else stays. Tokens in `never_chosen`, such as separators, aren't chosen. An evaluation chooses the
    same places in each window.
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
        mask_token: int = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        never_chosen: Sequence[int] = (),
        rate: float = 0.15,
        hidden: int | None = None,
        types: int = 2,
        epsilon: float = 1e-12,
        dropout: float = 0.1,
    ):
        super().__init__()
        config = BertConfig(
            vocabulary=vocabulary,
            context=context,
            num_layers=num_layers,
            size=size,
            num_heads=num_heads,
            hidden=hidden,
            types=types,
            epsilon=epsilon,
            dropout=dropout,
        )
        check_fraction(rate=rate)
        for token in (mask_token, *never_chosen):
            if not 0 <= token < vocabulary:
                raise ValueError(
                    f"`mask_token` and `never_chosen` hold {token}, but `vocabulary` is {vocabulary}: tokens are 0 to "
                    f"{vocabulary - 1}."
                )
        self.mask_token, self.never_chosen, self.rate = mask_token, tuple(never_chosen), rate
        self.optimizer = optimizer
        self.net = Bert(config, rng=rng.fold("net"))

    def phases(self) -> list[Phase]:
        hide = Compute("hide", self.hide)
        return [hide, Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def hide(self, batch: Batch, rng: Rng) -> Batch:
        """Returns the tokens after hiding some, and which were chosen: `hidden` and `chosen` [rows, context]."""
        inputs = self._inputs(batch)
        rows, context = inputs["tokens"].shape
        draws = tf.reshape(rng.wide.rows.uniform(rows, 3 * context), [-1, context, 3])
        return self._hidden(inputs, draws)

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns the cross-entropy of each chosen token, from the batch of `hide`."""
        inputs = self._inputs(batch)
        logits = self.net(batch["hidden"], inputs["document"], rng)
        cross_entropy = losses.softmax_cross_entropy(logits, inputs["tokens"])
        figures = {
            "accuracy": metrics.accuracy(logits, inputs["tokens"]),
            "perplexity": metrics.Perplexity.of(cross_entropy, batch["chosen"]),
        }
        return Loss(cross_entropy, weight=batch["chosen"], metrics=figures)

    def evaluate(self, batch: Batch) -> Loss:
        draws = Rng.from_seed(0).wide.uniform([1, self.net.config.context, 3])
        return self.loss({**batch, **self._hidden(self._inputs(batch), draws)}, rng=None)

    def _inputs(self, batch: Batch) -> Batch:
        """Returns `tokens` and `document` without a window's last token, which the next window begins with."""
        document = batch["document"][:, : self.net.config.context]
        tokens = tf.where(document < 0, 0, batch["tokens"][:, : self.net.config.context])  # padding may hold anything
        return {"tokens": tokens, "document": document}

    def _hidden(self, inputs: Batch, draws: tf.Tensor) -> Batch:
        """Hides tokens by `draws` [rows, context, 3] from 0 to 1: which are chosen, how they are hidden, new tokens."""
        tokens, (chance, kind, other) = inputs["tokens"], tf.unstack(draws, axis=2)
        eligible = inputs["document"] >= 0
        for token in self.never_chosen:
            eligible &= tokens != token
        chosen = eligible & (chance < self.rate)
        random = tf.cast(other * self.net.config.vocabulary, tf.int32)
        hidden = tf.where(kind < 0.8, self.mask_token, tf.where(kind < 0.9, random, tokens))
        return {"hidden": tf.where(chosen, hidden, tokens), "chosen": tf.cast(chosen, tf.float32)}

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        spec = tf.TensorSpec([None, self.net.config.context], tf.int32)
        inputs = {"tokens": spec, "document": spec}
        return {"predict": Served(self.predict, inputs, examples=self._inputs, scores=["logits"])}

    def predict(self, batch: Batch) -> Batch:
        """Returns the `logits` of each position's token; `document` is -1 for padding."""
        return {"logits": self.net(batch["tokens"], batch["document"])}

    def reads(self) -> dict[str, Feature]:
        context = self.net.config.context
        return {"tokens": Tokens(context, vocabulary=self.net.config.vocabulary), "document": Tokens(context)}
