"""The common part of language models: predicting the next token at each position of a window."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core import losses, metrics
from core.optimizers import Transform
from core.random import Rng
from core.task import Batch, Feature, Loss, Phase, Served, Task, Tokens, Update
from models.language.sampling import Decoder, sampled


class NextToken(Task):
    """Predicts each token of a text from earlier tokens, in windows of `context` tokens and their targets.

    A subclass makes the network `net`, a `sampling.Network` whose calls return logits. `decoder` generates texts of
    `text_length` tokens (by default `context`), including the prompt.
    """

    net: Any

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        optimizer: Transform,
        decoder: Decoder | None,
        text_length: int | None,
    ):
        super().__init__()
        if text_length is not None and not 2 <= text_length <= context:
            name = type(self).__name__
            raise ValueError(f"`{name}.text_length` is {text_length}; give 2 to `context` = {context}.")
        self.vocabulary, self.context = vocabulary, context
        self.optimizer, self.decoder = optimizer, decoder or sampled()
        self.text_length = text_length or context

    def phases(self) -> list[Phase]:
        trains = self.trained()
        return [Update("net", loss=self.loss, trains=trains, optimizer=self.optimizer, sampled_loss=self.sampled_loss)]

    def trained(self) -> tf.Module:
        """Returns the module to train."""
        module: tf.Module = self.net
        return module

    def network(self) -> Any:
        """Returns the network to compute with."""
        return self.net

    def compute(self, inputs: Batch, rng: Rng | None) -> tuple[tf.Tensor, Mapping[str, Any]]:
        """Returns the logits of the token after each of `inputs`, and further fields of the `Loss`."""
        return self.network()(inputs["tokens"], inputs["document"], rng), {}

    def loss(self, batch: Batch, rng: Rng | None) -> Loss:
        """Returns each token's cross-entropy, given earlier tokens of its document. `rng=None` means evaluation."""
        logits, tokens, weight, more = self._predicted(batch, rng)
        cross_entropy = losses.softmax_cross_entropy(logits, tokens)
        figures = {
            "perplexity": metrics.Perplexity.of(cross_entropy, weight),
            "bits_per_byte": metrics.BitsPerByte.of(cross_entropy, batch["bytes"][:, 1:], weight),
        }
        more = {**more, "metrics": {**figures, **more.get("metrics", {})}}
        return Loss(cross_entropy, weight=weight, **more)

    def sampled_loss(self, batch: Batch, rng: Rng) -> Loss:
        """Returns the cross-entropy of tokens drawn from the network's own probabilities."""
        logits, _, weight, _ = self._predicted(batch, rng)
        return Loss(losses.softmax_cross_entropy(logits, rng.fold("labels").rows.categorical(logits)), weight=weight)

    def _predicted(self, batch: Batch, rng: Rng | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Mapping[str, Any]]:
        """Returns logits [rows, time, vocabulary], the tokens [rows, time] that they predict, and their weights.

        The last value is that of `compute`.
        """
        document = batch["document"]
        tokens = tf.where(document < 0, 0, batch["tokens"])  # padding may hold anything
        follows = (document[:, 1:] == document[:, :-1]) & (document[:, 1:] >= 0)
        logits, more = self.compute({**batch, "tokens": tokens[:, :-1], "document": document[:, :-1]}, rng)
        return logits, tokens[:, 1:], tf.cast(follows, tf.float32), more

    def evaluate(self, batch: Batch) -> Loss:
        return self.loss(batch, rng=None)

    def write(self, rng: Rng, prompts: tf.Tensor, lengths: tf.Tensor, *, end: int, vocabulary: int) -> tf.Tensor:
        """Returns texts [rows, text_length] that begin with the first `lengths[row]` tokens of `prompts` [rows, time].

        All tokens are below `vocabulary`. After the first generated token `end`, the row is filled with `end`.
        """
        length = self.text_length
        return self.decoder(self.network(), prompts, lengths, length=length, end=end, vocabulary=vocabulary, rng=rng)

    def serve(self, features: Mapping[str, tf.TensorSpec]) -> dict[str, Served]:
        tokens = {"tokens": tf.TensorSpec([None, None], tf.int32)}
        return {
            "prefill": Served(self.prefill, tokens, examples=self._beginnings, scores=["logits"]),
            "decode": Served(self.decode, {**tokens, **self.kept()}, examples=self._begun, scores=["logits"]),
        }

    def kept(self) -> Mapping[str, tf.TensorSpec]:
        """Returns specs of the tensors that continue a text: `prefill` returns them, and `decode` takes them."""
        raise NotImplementedError

    def tensors(self, caches: Any) -> Batch:
        """Returns the network's `caches` as the tensors of `kept`."""
        raise NotImplementedError

    def caches(self, batch: Batch) -> Any:
        """Returns the network's caches from the tensors of `kept` in `batch`."""
        raise NotImplementedError

    def prefill(self, batch: Batch) -> Batch:
        """Returns `logits` of the token after `batch["tokens"]`, and the tensors of `kept`."""
        tokens = batch["tokens"]
        return self._continued(tokens, self.net.empty_caches(tf.shape(tokens)[0], self.text_length))

    def decode(self, batch: Batch) -> Batch:
        """Returns the same as `prefill` for `batch["tokens"]` that continue a text, whose tensors are in `batch`."""
        return self._continued(batch["tokens"], self.caches(batch))

    def _continued(self, tokens: tf.Tensor, caches: Any) -> Batch:
        logits, caches = self.network().decode(tokens, caches)
        return {"logits": logits, **self.tensors(caches)}

    def _beginnings(self, batch: Batch) -> Batch:
        return {"tokens": batch["tokens"][:, : self.text_length // 2]}

    def _begun(self, batch: Batch) -> Batch:
        begun = self.prefill(self._beginnings(batch))
        return {**begun, "tokens": batch["tokens"][:, self.text_length // 2 :][:, :1]}

    def reads(self) -> dict[str, Feature]:
        return {
            "tokens": Tokens(self.context, vocabulary=self.vocabulary),
            "document": Tokens(self.context),
            "bytes": Tokens(self.context),
        }
