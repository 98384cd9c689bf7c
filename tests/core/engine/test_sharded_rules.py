"""Rules with `sharded=True` on replicas: the results are those without it, and the work is split."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import DATA, train

from core.errors import ConfigurationError
from core.optimizers import Optimizer, cautious, chain, clip_by_global_norm, muon, psgd_kron, soap
from core.optimizers.sharing import Sharing, in_shares, sharing
from core.parallel.local_steps.backend import check_local_steps
from core.parallel.parameter_server.backend import ServedBackend
from core.task import Loss, Task, Update
from core.testing import assemble, on_virtual_cpus, on_virtual_mesh
from models.classifiers.mlp import Mlp

RULES = {
    "muon": lambda sharded: chain(clip_by_global_norm(1.0), cautious(muon(0.05, neuron_beta=0.9, sharded=sharded))),
    "soap": functools.partial(soap, 0.05, basis_every=2),
    "psgd_kron": functools.partial(psgd_kron, 0.05, factor_share=0.6),
}


class Deep(Task):
    """Has weights in its second batch alone: rows of weight zero skip an update."""

    def __init__(self, rule, *, rng):
        super().__init__()
        self.net, self.rule = Mlp([3, 8, 1], rng=rng), rule

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.rule)]

    def loss(self, batch, rng):
        weight = tf.cast(rng.step != 1, tf.float32)
        error = (self.net(batch["x"])[:, 0] - batch["y"]) ** 2
        return Loss(error, weight=weight + 0.0 * batch["y"])


@pytest.mark.long
@pytest.mark.parametrize(("rule", "replicas"), [("muon", 2), ("soap", 2), ("psgd_kron", 2)])
def test_results_are_those_of_whole_work(rule, replicas):
    """The second of four steps has no weight, so it writes nothing."""
    tasks = (functools.partial(Deep, RULES[rule](sharded=sharded)) for sharded in (False, True))
    whole, shared = (train(task, DATA, replicas, 1, steps=4) for task in tasks)
    for path, value in whole[0].variables.items():
        np.testing.assert_allclose(shared[0].variables[path], value, rtol=1e-5, atol=1e-6, err_msg=path)
    kinds = [{entry.what for entry in outcome.collectives} for outcome, _ in (whole, shared)]
    assert kinds == [{"gradients"}, {"gradients", "preconditioners"}]


def test_each_replica_computes_its_share():
    costs, parts = {"a": 5.0, "b": 3.0, "c": 3.0, "d": 1.0}, []
    for number in range(2):
        with sharing(Sharing(number, 2, lambda found: found)):
            parts.append(in_shares(lambda own: dict.fromkeys(own, 1.0), costs, dict.fromkeys(costs, 0.0), sharded=True))
    assert [{key for key, x in part.items() if x == 1.0} for part in parts] == [{"a", "d"}, {"b", "c"}]


def test_one_program_for_all_replicas_is_refused():
    with sharing(Sharing(None, 2, lambda found: found)), pytest.raises(ValueError, match="but TPUs share one"):
        in_shares(lambda own: {}, {"a": 1.0}, {"a": 0.0}, sharded=True)


def test_strategies_without_common_steps_are_refused():
    task = functools.partial(Deep, muon(0.1, sharded=True))
    with pytest.raises(ConfigurationError, match=r"`muon\.sharded` splits an update over .* On a mesh"):
        assemble(task, on_virtual_mesh(2, 1))
    made = assemble(task, on_virtual_cpus(2))
    with pytest.raises(ConfigurationError, match=r"`muon\.sharded` splits .* or leave `Trainer.local_steps` out"):
        check_local_steps(made, global_batch_size=16)
    optimizers: list[Optimizer] = [*made.optimizers.values()]
    with pytest.raises(ConfigurationError, match=r"`muon\.sharded` splits .* By parameter servers"):
        ServedBackend(None).check_optimizers(made.task, optimizers)
