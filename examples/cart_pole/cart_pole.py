"""Balances a pole by actor-critic: the environments are TensorFlow code, and their state is saved with the run."""

import gin
import numpy as np
import tensorflow as tf

from core import layers
from core.data import ArraySource
from core.metrics import Mean
from core.module import Module
from core.task import Compute, Loss, Task, Update

ACTIONS, LONGEST = 2, 500  # pushes to the left and to the right; steps of an episode
FIELDS = 5  # position and speed of the cart, angle and speed of the pole, steps of the episode


def moved(state, right):
    """Returns states [n, 5] after a push to the left or right, and which poles fell (Barto et al., 1983)."""
    x, speed, angle, turning, steps = tf.unstack(state, axis=1)
    cos, sin = tf.cos(angle), tf.sin(angle)
    push = (tf.where(right, 10.0, -10.0) + 0.05 * turning**2 * sin) / 1.1
    twist = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    faster = push - 0.05 * twist * cos / 1.1
    after = [x + 0.02 * speed, speed + 0.02 * faster, angle + 0.02 * turning, turning + 0.02 * twist, steps + 1.0]
    return tf.stack(after, 1), (tf.abs(after[0]) > 2.4) | (tf.abs(after[2]) > np.pi / 15.0)


class Environments(Module):
    def __init__(self, count):
        super().__init__()
        self.state = tf.Variable(tf.zeros([count, FIELDS]), trainable=False, name="state")


class ActorCritic(Module):
    def __init__(self, size, *, rng):
        super().__init__()
        self.actor, self.critic = (
            layers.Sequential(
                [layers.Linear(4, size, rng=rng.fold(i)), tf.tanh, layers.Linear(size, outputs, rng=rng.fold(i + 2))]
            )
            for i, outputs in enumerate((ACTIONS, 1))
        )

    def __call__(self, state):
        """Returns the logits of the actions, and the expected discounted reward, of states [n, 5]."""
        seen = state[:, :4]
        return self.actor(seen), self.critic(seen)[:, 0]


@gin.configurable
class CartPole(Task):
    """A row of the batch is an environment. Each step continues its episode by `horizon` moves."""

    def __init__(self, *, rng, optimizer=gin.REQUIRED, environments=32, horizon=32, size=64, discount=0.99, decay=0.99):
        super().__init__()
        self.net = ActorCritic(size, rng=rng.fold("net"))
        self.environments = Environments(environments)
        self.horizon, self.discount, self.decay, self.optimizer = horizon, discount, decay, optimizer

    def phases(self):
        play = Compute("play", self.play, state=self.environments)  # once per step, for all rows together
        return [play, Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def play(self, batch, rng):
        """Returns moves with their advantages, and the environments' states after them."""
        state = tf.gather(self.environments.state, batch["environment"])
        chance = tf.reshape(rng.rows.uniform(state.shape[0], self.horizon * 5), [-1, self.horizon, 5])
        states, actions, falls, ends, values, lengths = [], [], [], [], [], []
        for t in range(self.horizon):
            logits, value = self.net(state)
            right = chance[:, t, 0] < tf.nn.softmax(logits)[:, 1]
            after, fell = moved(state, right)
            ended = fell | (after[:, 4] >= LONGEST)
            states, actions, values = [*states, state], [*actions, tf.cast(right, tf.int32)], [*values, value]
            falls, ends = [*falls, fell], [*ends, ended]
            lengths = [*lengths, tf.where(ended, after[:, 4], 0.0)]
            # A new episode begins near the middle.
            fresh = tf.pad(0.1 * chance[:, t, 1:] - 0.05, [[0, 0], [0, 1]])
            state = tf.where(ended[:, None], fresh, after)
        advantages = self.advantages(values, falls, ends, self.net(state)[1])
        came = tf.tensor_scatter_nd_update(self.environments.state, batch["environment"][:, None], state)
        advantages, values = tf.stack(advantages, 1), tf.stack(values, 1)
        outputs = {
            "states": tf.stack(states, 1),
            "actions": tf.stack(actions, 1),
            # All rows are here, so that their mean and spread don't depend on replicas.
            "advantages": (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-6),
            "returns": advantages + values,
            "ended": tf.add_n([tf.cast(end, tf.float32) for end in ends]),
            "length": tf.add_n(lengths),
        }
        return outputs, {self.environments.state.ref(): came}

    def advantages(self, values, falls, ends, last):
        """Returns the generalised advantages of each time (Schulman et al., 2016).

        Every move earns 1 - discount, so that values are at most 1.
        """
        found, advantage, following = [], tf.zeros_like(last), last
        for value, fell, ended in reversed([*zip(values, falls, ends, strict=True)]):
            error = 1.0 - self.discount + self.discount * tf.where(fell, 0.0, following) - value
            advantage = error + self.discount * self.decay * tf.where(ended, 0.0, advantage)
            found, following = [advantage, *found], value
        return found

    def loss(self, batch, rng):
        """Makes moves better than expected more likely, and expects their rewards (Mnih et al., 2016)."""
        rows = tf.shape(batch["actions"])[0]
        logits, value = self.net(tf.reshape(batch["states"], [-1, FIELDS]))
        shares = tf.nn.log_softmax(logits)
        chosen = tf.gather(shares, tf.reshape(batch["actions"], [-1]), batch_dims=1)
        entropy = -tf.reduce_sum(tf.exp(shares) * shares, axis=1)
        actor = -chosen * tf.reshape(batch["advantages"], [-1]) - 0.01 * entropy
        critic = 0.5 * (tf.reshape(batch["returns"], [-1]) - value) ** 2
        each = tf.reduce_mean(tf.reshape(actor + 0.5 * critic, [rows, self.horizon]), axis=1)
        return Loss(each, metrics={"length": Mean(tf.reduce_sum(batch["length"]), tf.reduce_sum(batch["ended"]))})

    def evaluate(self, batch):
        """Plays the more likely action until the pole falls."""

        def move(state, alive, steps):
            logits, _ = self.net(state)
            after, fell = moved(state, logits[:, 1] > logits[:, 0])
            alive &= ~fell
            return after, alive, steps + tf.cast(alive, tf.float32)

        state = tf.pad(batch["start"], [[0, 0], [0, 1]])
        rows = tf.shape(state)[0]
        begun = (state, tf.ones([rows], tf.bool), tf.zeros([rows]))
        _, _, steps = tf.while_loop(lambda *_: True, move, begun, maximum_iterations=LONGEST)
        return Loss(-steps, metrics={"length": steps})


@gin.configurable
def environments(count=32):
    """Returns the numbers of the environments: a batch of `count` has each of them once."""
    return ArraySource({"environment": np.arange(count)}, name="environments")


@gin.configurable
def starts(count=20):
    """Returns first states of episodes, for the evaluation."""
    states = np.random.RandomState(0).uniform(-0.05, 0.05, [count, 4])
    return ArraySource({"start": states.astype(np.float32)}, name="starts")
