"""Windows of tokens in a run: on replicas as on one device, and a file's fault ends it as one."""

import numpy as np
import pytest
import tensorflow as tf
from trainer_lab import make, train

from core import losses
from core.data import byte_tokens, markov, token_file, topics
from core.data.token_files import Header
from core.distribution import mirrored
from core.errors import DataError
from core.optimizers import adam
from core.task import Loss, Task, Update


class Bigrams(Task):
    """Guesses each token by the one before it."""

    def __init__(self, *, rng, vocabulary):
        super().__init__()
        self.logits = tf.Variable(tf.zeros([vocabulary, vocabulary]), name="logits")

    def phases(self):
        return [Update("net", loss=self.loss, trains=self, optimizer=adam(0.3))]

    def loss(self, batch, rng):
        tokens, document = batch["tokens"], batch["document"]
        per_token = losses.softmax_cross_entropy(tf.gather(self.logits, tokens[:, :-1]), tokens[:, 1:])
        counts = (document[:, 1:] == document[:, :-1]) & (document[:, 1:] >= 0)
        return Loss(per_token, weight=tf.cast(counts, tf.float32))

    def evaluate(self, batch):
        return self.loss(batch, None)


def bigrams(vocabulary=257):
    return lambda *, rng: Bigrams(rng=rng, vocabulary=vocabulary)


def test_the_losses_are_the_same_on_one_device_and_two_replicas(tmp_path):
    lines = {}
    for replicas, microbatches in ((1, 1), (2, 2)):
        strategy = mirrored(replicas=replicas) if replicas > 1 else None
        name = f"{replicas} {microbatches}"
        source = topics("train", 32)
        settings = {"microbatches": microbatches, "steps": 8, "chunk_steps": 4, "log_every": 4}
        trainer = make(tmp_path, name, task=bigrams(), source=source, strategy=strategy, **settings)
        lines[name] = [figures["loss"] for _, _, figures in train(trainer)]
    assert len(lines["1 1"]) > 1
    for found in lines.values():
        np.testing.assert_allclose(found, lines["1 1"], rtol=1e-5)


def test_who_sees_one_symbol_loses_what_one_symbol_leaves_open(tmp_path):
    """H(b | a) of the chain, held out: more than its entropy, which two symbols are needed for."""
    trainer = make(
        tmp_path, task=bigrams(9), source=markov("train", 32), eval_source=markov("test", 32),
        steps=300, global_batch_size=64, chunk_steps=50, log_every=300,
    )  # fmt: skip
    train(trainer)
    pairs = markov("test", 32).pairs
    one_symbol = -(pairs * np.log(pairs / pairs.sum(axis=1, keepdims=True))).sum()
    np.testing.assert_allclose(trainer.evaluate()["loss"], one_symbol, rtol=0.01)


def test_a_token_beyond_the_vocabulary_ends_the_run_by_the_name_of_its_file(tmp_path):
    tokens = np.zeros(400, "<u2")
    tokens[333] = 999
    path = tmp_path / "x.tokens"
    path.write_bytes(Header(257, 256, "bytes", 400, 1).packed() + tokens.tobytes())
    trainer = make(tmp_path, task=bigrams(), source=token_file(str(path), 32, tokenizer=byte_tokens()))
    with pytest.raises(DataError, match=rf"{path} holds the token 999 at position 333") as error:
        train(trainer)
    assert error.value.exit_code == 4
