"""The episodes that a step continues, and what it learns from them, without a trainer."""

import functools

import numpy as np
import tensorflow as tf
from cart_pole import CartPole, environments, moved

from core.optimizers import adam
from core.random import Rng
from core.testing import Run, assemble, assert_accumulation_invariant, assert_replica_invariant, on_virtual_cpus

batch = environments().gather(tf.range(32, dtype=tf.int64))


def make_task(rng=None, **settings):
    return CartPole(rng=rng or Rng.from_seed(0), optimizer=adam(5e-4), **settings)


def played(task, rng):
    outputs, after = task.play(batch, rng)
    task.environments.state.assign(after[task.environments.state.ref()])
    return {name: x.numpy() for name, x in outputs.items()}


def test_poles_move_by_newtons_laws():
    """Two equations of motion hold: that of cart and pole along the track, and that of the pole around its joint."""
    state = np.random.RandomState(0).uniform(-0.2, 0.2, [8, 5]).astype("float32")
    right = np.arange(8) % 2 == 0
    after, fell = moved(tf.constant(state), tf.constant(right))
    faster, twist = ((after.numpy() - state)[:, i].astype("float64") / 0.02 for i in (1, 3))
    angle, turning = state[:, 2], state[:, 3]
    along = 1.1 * faster + 0.05 * (twist * np.cos(angle) - turning**2 * np.sin(angle))
    np.testing.assert_allclose(along, np.where(right, 10.0, -10.0), atol=1e-3)
    around = 4.0 / 3.0 * 0.5 * twist + np.cos(angle) * faster
    np.testing.assert_allclose(around, 9.8 * np.sin(angle), atol=1e-3)
    assert not fell.numpy().any()


def test_an_episode_continues_in_the_next_step_until_its_pole_falls():
    task = make_task()
    one, two = played(task, Rng.from_seed(1)), played(task, Rng.from_seed(2))
    steps = np.concatenate([one["states"], two["states"]], 1)[:, :, 4]
    begins = steps[:, 1:] == 0.0
    np.testing.assert_array_equal(steps[:, 1:], np.where(begins, 0.0, steps[:, :-1] + 1.0))
    np.testing.assert_array_equal(
        begins.sum(1) + (task.environments.state.numpy()[:, 4] == 0.0), one["ended"] + two["ended"]
    )
    assert begins.any()
    assert np.abs(two["states"][two["states"][:, :, 4] == 0.0]).max() <= 0.05


def test_advantages_are_discounted_sums_of_errors():
    task, random = make_task(), np.random.RandomState(0)
    values, last = random.randn(6, 3).astype("float32"), random.randn(3).astype("float32")
    falls = random.rand(6, 3) < 0.3
    ends = falls | (random.rand(6, 3) < 0.2)
    found = task.advantages([*values], [*falls], [*ends], tf.constant(last))
    following = np.concatenate([values[1:], last[None]])
    errors = 0.01 + 0.99 * np.where(falls, 0.0, following) - values
    for t in range(6):
        lasts = np.cumprod(np.concatenate([np.ones([1, 3]), ~ends[t:-1]]), 0)
        expected = sum((0.99 * 0.99) ** k * lasts[k] * errors[t + k] for k in range(6 - t))
        np.testing.assert_allclose(found[t], expected, rtol=1e-4, atol=1e-5)


def test_it_learns_to_balance():
    lengths = Run(assemble(make_task, on_virtual_cpus(1)), batch).train(80).figures["net/length"]
    assert np.nanmean(lengths[-20:]) > 2.0 * np.nanmean(lengths[:20])


def test_replicas_and_microbatches_play_the_same_episodes():
    short = functools.partial(make_task, horizon=3)
    assert_replica_invariant(short, batch, replicas=(1, 2), steps=2)
    assert_accumulation_invariant(short, batch, (1, 2), steps=2)
