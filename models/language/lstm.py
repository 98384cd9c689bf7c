"""A language model of stacked LSTMs (Zaremba, Sutskever and Vinyals, 2014), and the task that trains it."""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_fraction, check_size
from core.data import Examples
from core.errors import DataError
from core.layers import LSTM, Dropout, Embedding, unroll
from core.layers.recurrent import LSTMState
from core.module import Module
from core.optimizers import Transform
from core.precision import compute_dtype
from core.random import Rng
from core.task import Batch, Compute, Phase
from core.task.statistics import Values
from models.language.next_token import NextToken
from models.language.sampling import Decoder


class StackedLSTM(Module):
    """Maps `tokens` [rows, time] to logits [rows, time, vocabulary] of each position's next token.

    Each layer reads the outputs of the layer below. Dropout is applied to inputs and outputs of layers, not to their
    states, as in the paper. The output layer reuses the embedding table (Press and Wolf, 2017).
    """

    most_positions = None  # the state of any number of tokens has one size

    def __init__(self, *, vocabulary: int, num_layers: int, size: int, dropout: float = 0.0, rng: Rng):
        super().__init__()
        check_size(vocabulary=vocabulary, num_layers=num_layers, size=size)
        check_fraction(dropout=dropout)
        self.size = size
        self.tokens = Embedding(vocabulary, size, rng=rng.fold("tokens"))
        self.layers = [LSTM(size, size, rng=rng.fold(i)) for i in range(num_layers)]
        self.dropout = Dropout(dropout)

    def __call__(self, tokens: tf.Tensor, document: tf.Tensor | None = None, rng: Rng | None = None) -> tf.Tensor:
        """Returns logits; with `document` ids [rows, time], the state begins anew with each document."""
        return self.read(tokens, self.empty_caches(tf.shape(tokens)[0]), document, rng)[0]

    def empty_caches(self, rows: int | tf.Tensor, room: int | None = None) -> list[LSTMState]:
        """Returns the state of each layer before the first token. Any number of tokens has `room`."""
        return [layer.initial_state(rows, compute_dtype()) for layer in self.layers]

    def decode(self, tokens: tf.Tensor, caches: Sequence[LSTMState]) -> tuple[tf.Tensor, list[LSTMState]]:
        """Returns logits [rows, vocabulary] of the token after `tokens`, and the states after them.

        `tokens` [rows, time] continue the texts whose states are `caches`.
        """
        logits, after = self.read(tokens, caches)
        return logits[:, -1], after

    def read(
        self,
        tokens: tf.Tensor,
        states: Sequence[LSTMState],
        document: tf.Tensor | None = None,
        rng: Rng | None = None,
    ) -> tuple[tf.Tensor, list[LSTMState]]:
        """Returns the logits of a call for texts that continue from `states`, and the layers' states after them."""
        resets = None
        if document is not None:
            resets = tf.pad(document[:, 1:] != document[:, :-1], [[0, 0], [1, 0]])
        x = self.dropout(self.tokens(tokens), rng and rng.fold("tokens"))
        after = []
        for i, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            x, last = unroll(layer, x, state, resets=resets)
            x = self.dropout(x, rng and rng.fold(i))
            after.append(last)
        return self.tokens.logits(x), after


class CarriedStates(Module):
    """The layers' states of `sequences` long texts between two steps."""

    def __init__(self, sequences: int, num_layers: int, size: int):
        super().__init__()
        check_size(sequences=sequences)
        zeros = tf.zeros([sequences, num_layers, size])
        self.hidden = tf.Variable(zeros, trainable=False, name="hidden")
        self.cell = tf.Variable(zeros, trainable=False, name="cell")

    def states(self) -> dict[str, tf.Variable]:
        return {"hidden": self.hidden, "cell": self.cell}


@gin.configurable
class LSTMLanguageModel(NextToken):
    """Predicts each token of a text with a `StackedLSTM`, in windows of `context` tokens and their targets.

    `decoder` generates texts of `text_length` tokens (by default `context`), including the prompt.

    With `sequences`, a training window begins with the state after the previous window of its sequence: the source
    `continued` orders them. The gradient stops at the window's beginning, as in truncated backpropagation through time
    (Williams and Peng, 1990). An evaluated window begins with an empty state.
    """

    def __init__(
        self,
        *,
        rng: Rng,
        vocabulary: int = gin.REQUIRED,
        context: int = gin.REQUIRED,
        num_layers: int = gin.REQUIRED,
        size: int = gin.REQUIRED,
        optimizer: Transform = gin.REQUIRED,
        dropout: float = 0.0,
        sequences: int | None = None,
        decoder: Decoder | None = None,
        text_length: int | None = None,
    ):
        super().__init__(
            vocabulary=vocabulary, context=context, optimizer=optimizer, decoder=decoder, text_length=text_length
        )
        self.net = StackedLSTM(
            vocabulary=vocabulary, num_layers=num_layers, size=size, dropout=dropout, rng=rng.fold("net")
        )
        self.carried = None if sequences is None else CarriedStates(sequences, num_layers, size)

    def phases(self) -> list[Phase]:
        carry = [] if self.carried is None else [Compute("carry", self.carry, state=self.carried)]
        return [*super().phases(), *carry]

    def compute(self, inputs: Batch, rng: Rng | None) -> tuple[tf.Tensor, Mapping[str, Any]]:
        if self.carried is None or rng is None:
            return super().compute(inputs, rng)
        first = (inputs["place"] == 0)[:, tf.newaxis, tf.newaxis]
        begun = {
            name: tf.cast(tf.where(first, 0.0, tf.gather(states, inputs["sequence"])), compute_dtype())
            for name, states in self.carried.states().items()
        }
        logits, after = self.net.read(inputs["tokens"], self.caches(begun), inputs["document"], rng)
        return logits, {"outputs": {name: tf.stop_gradient(x) for name, x in self.tensors(after).items()}}

    def carry(self, batch: Batch, rng: Rng) -> tuple[Batch, Values]:
        """Keeps the states that `net` has reached. A document's end in the last place empties them."""
        assert self.carried is not None
        document, sequence = batch["document"], batch["sequence"]
        after: Values = {}
        for name, states in self.carried.states().items():
            if document.shape[0] > states.shape[0]:
                raise ValueError(
                    f"a batch has {document.shape[0]} windows of `LSTMLanguageModel.sequences` = {states.shape[0]}, so "
                    "several of one sequence: set `Trainer.global_batch_size` to that number."
                )
            continues = (document[:, -1] == document[:, -2]) & (document[:, -1] >= 0)
            state = tf.where(continues[:, tf.newaxis, tf.newaxis], tf.cast(batch[name], tf.float32), 0.0)
            after[states.ref()] = tf.tensor_scatter_nd_update(states, sequence[:, tf.newaxis], state)
        return {}, after

    def check_source(self, source: Examples) -> None:
        super().check_source(source)
        extremes = source.extremes("sequence") if "sequence" in source.spec else None
        sequences = None if self.carried is None else self.carried.hidden.shape[0]
        if sequences and extremes and extremes[1] >= sequences:
            raise DataError(
                f"source `{source.name}` has {extremes[1] + 1} sequences, but `LSTMLanguageModel.sequences` is "
                f"{sequences}: give both the same number."
            )

    def kept(self) -> Mapping[str, tf.TensorSpec]:
        """Returns specs of the states: `hidden` and `cell`."""
        state = tf.TensorSpec([None, len(self.net.layers), self.net.size])
        return {"hidden": state, "cell": state}

    def tensors(self, caches: Sequence[LSTMState]) -> Batch:
        hidden, cell = (tf.stack(parts, 1) for parts in zip(*caches, strict=True))
        return {"hidden": hidden, "cell": cell}

    def caches(self, batch: Batch) -> list[LSTMState]:
        hidden, cell = tf.unstack(batch["hidden"], axis=1), tf.unstack(batch["cell"], axis=1)
        return [LSTMState(h, c) for h, c in zip(hidden, cell, strict=True)]
