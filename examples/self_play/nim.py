"""Learns a game by playing against its own past: a step generates its examples."""

import gin
import numpy as np
import tensorflow as tf

from core.data import ArraySource
from core.module import Module
from core.task import Compute, Loss, Task, Update

STICKS, MOST = 12, 3  # on the table, and the most to take in one move; whoever takes the last stick wins


class Player(Module):
    def __init__(self, *, trainable=True):
        super().__init__()
        self.w = tf.Variable(tf.zeros([STICKS + 1, MOST]), trainable=trainable, name="w")

    def __call__(self, sticks):
        """Returns the log-probabilities of taking one, two or three sticks; missing sticks can't be taken."""
        allowed = tf.range(1, MOST + 1) <= sticks[:, None]
        return tf.nn.log_softmax(tf.where(allowed, tf.gather(self.w, sticks), -1e9))


@gin.configurable
class Nim(Task):
    """A row of the batch is a game's initial number of sticks; the learning player moves first."""

    def __init__(self, *, rng, follow=0.1, optimizer=gin.REQUIRED):
        super().__init__()
        self.player, self.past = Player(), Player(trainable=False)
        self.follow, self.optimizer = follow, optimizer

    def phases(self):
        play = Compute("play", self.play, state=self.past)  # once per step, for all rows together
        return [play, Update("player", loss=self.loss, trains=self.player, optimizer=self.optimizer)]

    def play(self, batch, rng):
        """Plays the games to their ends; then moves `past` a little towards the current `player`."""
        left, reward = batch["sticks"], tf.zeros(batch["sticks"].shape)
        chance = rng.rows.uniform(left.shape[0], STICKS)
        found, taken = [], []
        for turn in range(STICKS):
            who = self.player if turn % 2 == 0 else self.past
            shares = tf.cumsum(tf.exp(who(left)), axis=1)[:, : MOST - 1]
            wanted = 1 + tf.reduce_sum(tf.cast(chance[:, turn, None] > shares, tf.int32), axis=1)
            move = tf.minimum(wanted, left)
            if who is self.player:
                found, taken = [*found, left], [*taken, move]
            ends = (left > 0) & (move == left)
            reward = tf.where(ends, 1.0 if who is self.player else -1.0, reward)
            left = left - move
        came = self.past.w + self.follow * (self.player.w - self.past.w)
        return {"found": tf.stack(found, 1), "taken": tf.stack(taken, 1), "reward": reward}, {self.past.w.ref(): came}

    def loss(self, batch, rng):
        """Makes moves of won games more likely, and those of lost ones less (Williams, 1992)."""
        moves = tf.reshape(self.player(tf.reshape(batch["found"], [-1])), [*batch["found"].shape, MOST])
        chosen = tf.gather(moves, tf.maximum(batch["taken"] - 1, 0), batch_dims=2)
        played = tf.where(batch["taken"] > 0, chosen, 0.0)
        reward = tf.cast(batch["reward"], tf.float32)
        won = tf.cast(reward > 0.0, tf.float32)
        return Loss(-reward * tf.reduce_sum(played, axis=1), metrics={"won": won})

    def evaluate(self, batch):
        """Checks for the best move, which leaves a multiple of four; from four or eight sticks there is none."""
        best = batch["sticks"] % (MOST + 1)
        moves = self.player(batch["sticks"])
        right = tf.gather(moves, tf.maximum(best - 1, 0), batch_dims=1)
        accuracy = tf.cast(tf.argmax(moves, axis=1, output_type=tf.int32) == best - 1, tf.float32)
        return Loss(-right, weight=tf.cast(best > 0, tf.float32), metrics={"accuracy": accuracy})


@gin.configurable
def games():
    """Returns the initial numbers of sticks; everything else in a game is chance or the players' choice."""
    return ArraySource({"sticks": np.arange(1, STICKS + 1)}, name="games")
