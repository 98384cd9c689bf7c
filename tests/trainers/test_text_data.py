"""Runs on tokens: on replicas as on one device, with one tokenizer alone, and errors that name the file."""

import numpy as np
import pytest
import tensorflow as tf
from trainer_lab import make, newest, train

from core import losses
from core.data import byte_tokens, markov, text_files, token_file, topics
from core.data.token_files import Header
from core.data.tokenizers import ByteTokenizer
from core.distribution import mirrored
from core.errors import ConfigurationError, DataError
from core.optimizers import adam
from core.task import Loss, Task, Update


class Bigrams(Task):
    """Predicts each token from the one before it."""

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


@pytest.mark.long
def test_losses_are_the_same_on_one_device_and_two_replicas(tmp_path):
    losses = []
    for replicas in (1, 2):
        strategy = mirrored(replicas=replicas) if replicas > 1 else None
        settings = {"microbatches": replicas, "steps": 8, "chunk_steps": 4, "log_every": 4, "strategy": strategy}
        trainer = make(tmp_path, str(replicas), task=bigrams(), source=topics("train", 32), **settings)
        losses.append([figures["loss"] for _, _, figures in train(trainer)])
    assert len(losses[0]) > 1
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.long
def test_bigrams_learn_the_entropy_given_one_symbol(tmp_path):
    """That is H(b | a) of the chain, on held-out text: more than its entropy, which needs two symbols."""
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


class Turned(ByteTokenizer):
    """Numbers bytes in the opposite order."""

    def __init__(self):
        super().__init__()
        self._texts[:256] = self._texts[255::-1]
        self.identity = "bytes turned"

    def encode(self, text):
        return [255 - value for value in text]


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"all work and no play " * 30)
    return lambda tokenizer=None: text_files(str(tmp_path / "a.txt"), 8, tokenizer=tokenizer)


def test_evaluation_with_another_tokenizer_is_refused(tmp_path, texts):
    with pytest.raises(ConfigurationError, match=r"`Experiment.eval_source` has tokens of 'bytes turned', but those"):
        make(tmp_path, task=bigrams(), source=texts(), eval_source=texts(Turned()))


def test_checkpoint_resumes_with_its_own_tokenizer_alone(tmp_path, texts):
    trainer = make(tmp_path, task=bigrams(), source=texts())
    trainer.save()
    saved = newest(trainer)
    trainer.state.restore(saved)
    other = make(tmp_path, task=bigrams(), source=texts(Turned()))
    with pytest.raises(
        ConfigurationError, match=r"step-000000000 was trained on tokens of 'bytes', but .* has tokens of 'bytes t"
    ):
        other.state.restore(saved)
