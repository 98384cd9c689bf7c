"""Games in Python continue from the states that the run keeps, without a trainer."""

import functools

import numpy as np
import tensorflow as tf
from catch import HEIGHT, WIDTH, Catch, Game, games

from core.optimizers import adam
from core.random import Rng
from core.testing import Run, assemble, assert_accumulation_invariant, assert_replica_invariant, on_virtual_cpus

batch = games().gather(tf.range(32, dtype=tf.int64))


def make_task(rng=None, **settings):
    return Catch(rng=rng or Rng.from_seed(0), optimizer=adam(0.01), **settings)


def played(task, seed):
    outputs, after = task.play(batch, Rng.from_seed(seed))
    task.states.now.assign(after[task.states.now.ref()])
    return {name: x.numpy() for name, x in outputs.items()}


def test_a_ball_falls_until_it_is_caught_or_lost():
    game = Game(WIDTH - 1)
    rewards = [game.move(2) for _ in range(HEIGHT - 1)]
    assert rewards == [(0.0, False)] * (HEIGHT - 2) + [(1.0, True)]
    assert game.state() == [HEIGHT - 1, WIDTH - 1, WIDTH - 1]


def test_games_continue_in_the_next_step():
    task = make_task(moves=5)
    one, two = played(task, 1), played(task, 2)
    np.testing.assert_array_equal(two["state"][:, 0], one["after"][:, -1])
    rows = np.concatenate([one["state"], two["state"]], 1)[:, :, 0]
    np.testing.assert_array_equal(rows, np.tile(np.arange(10) % (HEIGHT - 1), [32, 1]))
    assert (two["ended"].sum(1) == 1).all()
    assert (np.abs(two["reward"]) == two["ended"]).all()


def test_new_games_have_the_states_that_the_run_kept():
    """The Python objects of a resumed run are new, and their variables are read from a checkpoint."""
    task, resumed, forgetful = make_task(moves=5), make_task(moves=5), make_task(moves=5, restored=False)
    played(task, 1)
    for other in (resumed, forgetful):
        other.states.now.assign(task.states.now)
    expected, found, lost = played(task, 2), played(resumed, 2), played(forgetful, 2)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    assert (lost["after"] != expected["after"]).any()


def test_it_learns_to_catch():
    caught = Run(assemble(make_task, on_virtual_cpus(1)), batch).train(60).figures["net/caught"]
    assert np.nanmean(caught[-10:]) > 1.5 * np.nanmean(caught[:10])


def test_replicas_and_microbatches_play_the_same_games():
    short = functools.partial(make_task, moves=3)
    assert_replica_invariant(short, batch, replicas=(1, 2), steps=2)
    assert_accumulation_invariant(short, batch, (1, 2), steps=2)
