"""The games that a step plays, without a trainer."""

import numpy as np
import tensorflow as tf
from nim import MOST, STICKS, Nim, games

from core.optimizers import adam
from core.random import Rng
from core.testing import Run, assemble, assert_accumulation_invariant, assert_replica_invariant, on_virtual_cpus

batch = games().gather(tf.range(240, dtype=tf.int64) % STICKS)


def make_task(rng=None):
    return Nim(rng=rng, optimizer=adam(0.05))


def test_games_are_played_by_the_rules():
    played, _ = make_task().play(batch, Rng.from_seed(0))
    found, taken = played["found"].numpy(), played["taken"].numpy()
    np.testing.assert_array_equal(found[:, 0], batch["sticks"])
    assert ((taken >= np.minimum(found, 1)) & (taken <= np.minimum(found, MOST))).all()
    between = found[:, :-1] - taken[:, :-1] - found[:, 1:]  # what the other player took
    assert ((between >= 0) & (between <= MOST)).all()
    last = (found > 0) & (found == taken)
    np.testing.assert_array_equal(played["reward"], np.where(last.any(axis=1), 1.0, -1.0))


def test_the_past_follows_the_player():
    task = make_task()
    task.player.w.assign_add(tf.ones_like(task.player.w))
    _, history = task.play(batch, Rng.from_seed(0))
    np.testing.assert_allclose(history[task.past.w.ref()], 0.1 * np.ones([STICKS + 1, MOST]))


def test_it_learns_to_leave_a_multiple_of_four():
    run = Run(assemble(make_task, on_virtual_cpus(1)), batch)
    figures = run.train(200).figures
    assert np.mean(figures["player/won"][-20:]) > np.mean(figures["player/won"][:20]) + 0.1


def test_replicas_and_microbatches_play_the_same_games():
    assert_replica_invariant(make_task, batch, replicas=(1, 2), steps=3)
    assert_accumulation_invariant(make_task, batch, (1, 2), steps=3)
