"""Learns to write down sounds of unknown timing: a bidirectional GRU, and CTC (Graves et al., 2006)."""

import gin
import numpy as np
import tensorflow as tf

from core import layers, losses
from core.data import ArraySource
from core.metrics import Mean
from core.module import Module
from core.task import Label, Loss, Task, Update

BLANK, SYMBOLS, BANDS = 0, 6, 12  # symbols are 1 to 6
LONGEST, FRAMES = 6, 48  # labels, and frames, of an utterance


class Listener(Module):
    """Maps sounds [rows, frames, bands] to logits of the blank and the symbols, from both directions of time."""

    def __init__(self, size, *, rng):
        super().__init__()
        self.ahead = layers.GRU(BANDS, size, rng=rng.fold("ahead"))
        self.back = layers.GRU(BANDS, size, rng=rng.fold("back"))
        self.logits = layers.Linear(2 * size, 1 + SYMBOLS, rng=rng.fold("logits"))

    def __call__(self, sound, frames):
        ahead, _ = layers.unroll(self.ahead, sound, lengths=frames)
        back, _ = layers.unroll(self.back, turned(sound, frames), lengths=frames)
        return self.logits(tf.concat([ahead, turned(back, frames)], -1))


def turned(x, frames):
    return tf.reverse_sequence(x, frames, seq_axis=1)


def written(logits, frames):
    """Returns the labels of the most likely frames: repetitions count once, and blanks not at all. A ragged tensor."""
    best = tf.argmax(logits, -1, tf.int32)
    before = tf.pad(best[:, :-1], [(0, 0), (1, 0)], constant_values=BLANK)
    kept = (best != before) & (best != BLANK) & tf.sequence_mask(frames, tf.shape(best)[1])
    return tf.ragged.boolean_mask(best, kept)


def mistakes(found, labels, length):
    """Returns for each row the least number of insertions, deletions and changes from `found` to its labels."""
    truth = tf.RaggedTensor.from_tensor(labels, lengths=length)
    return tf.edit_distance(found.to_sparse(), truth.to_sparse(), normalize=False)


@gin.configurable
class Speech(Task):
    def __init__(self, *, rng, size=48, optimizer=gin.REQUIRED):
        super().__init__()
        self.net, self.optimizer = Listener(size, rng=rng), optimizer

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        logits = self.net(batch["sound"], batch["frames"])
        loss = losses.ctc(
            logits, batch["labels"], logit_lengths=batch["frames"], label_lengths=batch["length"], blank=BLANK
        )
        return Loss(loss)

    def evaluate(self, batch):
        """Adds the metric `label_errors`: mistakes for each label of the truth."""
        found = written(self.net(batch["sound"], batch["frames"]), batch["frames"])
        wrong = mistakes(found, batch["labels"], batch["length"])
        rate = Mean(tf.reduce_sum(wrong), tf.cast(tf.reduce_sum(batch["length"]), tf.float32))
        return self.loss(batch, rng=None)._replace(metrics={"label_errors": rate})

    def reads(self):
        return {"labels": Label(1 + SYMBOLS)}


@gin.configurable
def utterances(count=4096, noise=0.8, seed=0):
    """Returns utterances of 2 to 6 symbols. A symbol sounds for 2 to 5 frames, with pauses of up to 2 frames."""
    sounds = np.random.RandomState(0).normal(size=[1 + SYMBOLS, BANDS])  # the same for every seed; the first is a pause
    random = np.random.RandomState(1 + seed)
    sound = np.zeros([count, FRAMES, BANDS])
    labels, lengths, frames = np.zeros([count, LONGEST]), random.randint(2, LONGEST + 1, count), np.zeros(count)
    for i, length in enumerate(lengths):
        labels[i, :length] = random.randint(1, 1 + SYMBOLS, length)
        said, last = [], BLANK
        for symbol in labels[i, :length].astype(int):
            pause = random.randint(symbol == last, 3)  # at least one frame between equal symbols
            said += [BLANK] * pause + [symbol] * random.randint(2, 6)
            last = symbol
        frames[i] = len(said)
        clean = np.pad(sounds[said], [(1, 1), (0, 0)], mode="edge")
        sound[i, : len(said)] = (clean[:-2] + 2.0 * clean[1:-1] + clean[2:]) / 4.0  # one sound passes into the next
        sound[i, : len(said)] += noise * random.normal(size=[len(said), BANDS])
    arrays = {"frames": frames, "labels": labels, "length": lengths}
    return ArraySource({"sound": sound, **{k: x.astype("int32") for k, x in arrays.items()}}, name="utterances")
