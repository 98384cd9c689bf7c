"""Learns to catch balls by actor-critic, in games that are Python objects; their states are saved with the run."""

import gin
import numpy as np
import tensorflow as tf

from core import layers
from core.data import ArraySource
from core.metrics import Mean
from core.module import Module
from core.task import Compute, Loss, Task, Update

HEIGHT, WIDTH, ACTIONS = 6, 5, 3


class Game:
    """A ball falls by a row a move. The player below it moves to the left, stays, or moves to the right."""

    def __init__(self, column):
        self.row, self.ball, self.player = 0, column, WIDTH // 2

    def reset(self, seed):
        self.__init__(int(np.random.RandomState(seed).randint(WIDTH)))

    def move(self, action):
        """Returns the reward, and whether the ball has arrived."""
        self.row, self.player = self.row + 1, int(np.clip(self.player + action - 1, 0, WIDTH - 1))
        arrived = self.row == HEIGHT - 1
        return (1.0 if self.player == self.ball else -1.0) if arrived else 0.0, arrived

    def state(self):
        return [self.row, self.ball, self.player]

    def set_state(self, state):
        self.row, self.ball, self.player = map(int, state)


class States(Module):
    def __init__(self, games):
        super().__init__()
        self.now = tf.Variable([game.state() for game in games], dtype=tf.int32, trainable=False, name="now")


class ActorCritic(Module):
    def __init__(self, size, *, rng):
        super().__init__()
        self.hidden = layers.Linear(HEIGHT + 2 * WIDTH, size, rng=rng.fold("hidden"))
        self.actor = layers.Linear(size, ACTIONS, rng=rng.fold("actor"))
        self.critic = layers.Linear(size, 1, rng=rng.fold("critic"))

    def __call__(self, state):
        """Returns the logits of the actions, and the expected reward, of states [..., 3]."""
        seen = [tf.one_hot(state[..., i], size) for i, size in enumerate((HEIGHT, WIDTH, WIDTH))]
        x = tf.nn.relu(self.hidden(tf.concat(seen, -1)))
        return self.actor(x), self.critic(x)[..., 0]


@gin.configurable
class Catch(Task):
    """A row of the batch is a game. Each step continues it by `moves` moves.

    Without `restored`, games don't get their states from the run, as environments that can't be set.
    """

    def __init__(self, *, rng, optimizer=gin.REQUIRED, games=32, moves=8, size=64, restored=True):
        super().__init__()
        self.net = ActorCritic(size, rng=rng.fold("net"))
        self.games = [Game(i % WIDTH) for i in range(games)]
        self.states = States(self.games)
        self.moves, self.restored, self.optimizer = moves, restored, optimizer

    def phases(self):
        play = Compute("play", self.play, state=self.states)  # once per step, for all rows together
        return [play, Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def play(self, batch, rng):
        """Returns states before and after each move, actions and rewards; and the states of all games afterwards."""
        index = batch["game"]
        state = tf.gather(self.states.now, index)
        chance = tf.reshape(rng.rows.uniform(state.shape[0], 2 * self.moves), [-1, self.moves, 2])
        seeds = tf.cast(2.0**24 * chance[..., 1], tf.int32)  # of the games that begin
        found = []
        for t in range(self.moves):
            shares = tf.cumsum(tf.nn.softmax(self.net(state)[0]), axis=1)
            action = tf.reduce_sum(tf.cast(chance[:, t, :1] >= shares[:, :-1], tf.int32), axis=1)
            after, reward, ended = tf.numpy_function(
                self.moved, [index, state, action, seeds[:, t]], [tf.int32, tf.float32, tf.bool]
            )
            after = tf.ensure_shape(after, state.shape)  # Python's results have none
            reward, ended = (tf.ensure_shape(x, state.shape[:1]) for x in (reward, ended))
            found.append((state, action, reward, ended, after))
            state = after
        names = ("state", "action", "reward", "ended", "after")
        outputs = {name: tf.stack(x, 1) for name, x in zip(names, zip(*found, strict=True), strict=True)}
        return outputs, {self.states.now.ref(): tf.tensor_scatter_nd_update(self.states.now, index[:, None], state)}

    def moved(self, index, states, actions, seeds):
        """Moves each game, in Python. A game that has ended begins anew."""
        states, rewards, ends = states.copy(), [], []
        for i, row in enumerate(index):
            game = self.games[row]
            if self.restored:
                game.set_state(states[i])
            reward, ended = game.move(actions[i])
            if ended:
                game.reset(seeds[i])
            states[i] = game.state()
            rewards.append(reward)
            ends.append(ended)
        return states, np.float32(rewards), np.array(ends)

    def loss(self, batch, rng):
        """Makes actions more likely that led to more than was expected (Sutton and Barto, 2018, section 13.5)."""
        logits, value = self.net(batch["state"])
        following = tf.where(batch["ended"], 0.0, self.net(batch["after"])[1])
        error = tf.stop_gradient(tf.cast(batch["reward"], value.dtype) + following) - value
        shares = tf.nn.log_softmax(logits)
        chosen = tf.gather(shares, batch["action"], batch_dims=2)
        entropy = -tf.reduce_sum(tf.exp(shares) * shares, axis=-1)
        each = 0.5 * error**2 - tf.stop_gradient(error) * chosen - 0.01 * entropy
        ended = tf.reduce_sum(tf.cast(batch["ended"], tf.float32))
        caught = tf.reduce_sum(tf.cast(batch["reward"] > 0.0, tf.float32))
        return Loss(tf.reduce_mean(each, axis=1), metrics={"caught": Mean(caught, ended)})

    def evaluate(self, batch):
        """Plays the most likely actions, one game for each column of the ball."""
        player = tf.fill(tf.shape(batch["ball"]), WIDTH // 2)
        for row in range(HEIGHT - 1):
            logits, _ = self.net(tf.stack([tf.fill(tf.shape(player), row), batch["ball"], player], 1))
            player = tf.clip_by_value(player + tf.argmax(logits, 1, tf.int32) - 1, 0, WIDTH - 1)
        caught = tf.cast(player == batch["ball"], tf.float32)
        return Loss(-caught, metrics={"caught": caught})


@gin.configurable
def games(count=32):
    """Returns the numbers of the games: a batch of `count` has each of them once."""
    return ArraySource({"game": np.arange(count)}, name="games")


@gin.configurable
def balls():
    """Returns a column for each game of the evaluation."""
    return ArraySource({"ball": np.arange(WIDTH)}, name="balls")
