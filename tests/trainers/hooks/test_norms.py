"""Norms by module: those of the following step, on any strategy, in an unchanged run."""

import numpy as np
import pytest
import tensorflow as tf

from core.distribution import mirrored
from core.errors import ConfigurationError
from core.optimizers import chain, clip_by_global_norm, frozen, groups, sgd
from core.parallel.mesh import mesh
from core.task import Update
from models.classifiers.mlp import Mlp
from tests.toys import Line, Pair, point_source
from tests.trainers.hooks.hooks_lab import watched
from tests.trainers.trainer_lab import Deep, make
from trainers.hooks import Norms
from trainers.hooks.norms import unlikely


class Clipped(Deep):
    optimizer = chain(clip_by_global_norm(0.5), sgd(0.1, momentum=0.9))


def size(*arrays):
    return np.sqrt(sum(np.sum(np.square(x.astype("float64"))) for x in arrays))


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": mirrored(replicas=2)},
        pytest.param({"compile": True}, marks=pytest.mark.long),
        pytest.param({"strategy": mesh(batch=2, model=1)}, marks=pytest.mark.long),
    ],
    ids=["two replicas", "compiled", "mesh"],
)
def test_norms_are_those_of_the_next_update(tmp_path, settings):
    file, _, values = watched(tmp_path, Norms(2), task=Clipped, microbatches=2, **settings)
    gradient_norms = {step: figures["gradient_norm"] for step, figures in file.of("train").items()}
    found = file.of("norms")
    assert list(found) == [2, 4, 6]
    for step in (2, 4):
        now, then = values[step], values[step + 1]
        of_gradients = []
        for layer in (0, 1):
            paths = [path for path in now if path.startswith(f"task/net/layers/{layer}/")]
            module = f"layers/{layer}"
            assert len(paths) == 2
            assert found[step][f"weight/{module}"] == pytest.approx(size(*(now[path] for path in paths)), rel=1e-5)
            moved = size(*(then[path] - now[path] for path in paths))
            assert found[step][f"update/{module}"] == pytest.approx(moved, rel=1e-3)
            of_gradients.append(np.float64(found[step][f"gradient/{module}"]))
        assert size(*of_gradients) == pytest.approx(gradient_norms[step + 1], rel=1e-4)


class PartlyFrozen(Pair):
    """Trains its second network in every third step, but never its first layer."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.second = Mlp([3, 2, 1], rng=rng.fold("mlp"))

    def phases(self):
        first, second = super().phases()
        rules = groups({"layers/0/*": frozen()}, otherwise=sgd(0.1))
        return [first, Update("second", loss=second.loss, trains=self.second, optimizer=rules, every=3)]


@pytest.mark.long
def test_norms_of_several_updates_go_by_phase_and_none_has_to_be_due(tmp_path):
    file, _, _ = watched(tmp_path, Norms(), task=PartlyFrozen, steps=4, chunk_steps=4, log_every=None)
    found = file.of("norms")[4]
    modules = {"first": ["w", "b"], "second": ["layers/0", "layers/1"]}
    kinds = ("gradient", "weight", "update")
    assert found.keys() == {f"{p}/{k}/{m}" for p, ms in modules.items() for k in kinds for m in ms}
    assert {name for name, x in found.items() if x == 0.0} == {"second/update/layers/0"}
    assert dict(unlikely(found)) == {}


class Exploding(Line):
    optimizer = sgd(lambda step: 0.1 * tf.pow(4.0, tf.cast(step, tf.float32)))

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.net = Mlp([3, 1], rng=rng)


def test_norms_that_are_suspicious_twice_are_warned_of_once(tmp_path):
    _, screen, _ = watched(tmp_path, Norms(1), task=Exploding, steps=4)
    (warning,) = [note for note in screen.notes if note.startswith("Warning") and "chunks of" not in note]
    assert "updates of `layers/0` explode" in warning
    assert {split for _, split, _ in screen.lines} == {"train"}  # a screen isn't filled with norms


def test_norms_with_local_steps_are_refused(tmp_path):
    settings = {"task": Line, "source": point_source(), "strategy": mirrored(replicas=2), "local_steps": 5}
    trainer = make(tmp_path, hooks=[Norms(10)], **settings)
    with pytest.raises(ConfigurationError, match=r"with `Trainer.local_steps` replicas take separate steps"):
        trainer.train()
