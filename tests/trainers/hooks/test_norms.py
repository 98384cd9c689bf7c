"""Norms by module: those of the step that follows, on any strategy, and nothing of the run is another for them."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import digits
from core.distribution import mesh, mirrored
from core.errors import ConfigurationError
from core.optimizers import adamw, chain, clip_by_global_norm, frozen, groups, sgd
from core.task import Loss, Task, Update
from core.telemetry import Telemetry
from models.classifiers.mlp import MlpClassifier
from tests.trainers.trainer_lab import Lines, hashes, make
from trainers.hooks import Hook, Norms
from trainers.hooks.norms import unlikely


class Saves(Hook):
    """Saves at each of its steps."""

    def __call__(self, run):
        self.kept = getattr(self, "kept", {})
        self.kept[run.step] = {path: v.numpy() for path, v in run.experiment.variables.items()}


def clipped_mlp(*, rng):
    rule = chain(clip_by_global_norm(0.5), adamw(3e-3))
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], dropout=0.1, optimizer=rule)


def norms_of(trainer):
    lines = Lines()
    trainer.train(Telemetry([lines]))
    return {step: figures for step, split, figures in lines.lines if split == "norms"}, lines.lines


def size(*arrays):
    return np.sqrt(sum(np.sum(np.square(x.astype("float64"))) for x in arrays))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"microbatches": 2, "compile": True},
        {"strategy": mirrored(replicas=2)},
        {"strategy": mesh(batch=2, model=1)},
    ],
    ids=["one device", "compiled", "two replicas", "mesh"],
)
def test_they_are_those_of_the_next_update(tmp_path, settings):
    saves = Saves(1)
    trainer = make(tmp_path, task=clipped_mlp, steps=6, chunk_steps=1, log_every=1, hooks=[saves, Norms(2)], **settings)
    found, lines = norms_of(trainer)
    gradient_norms = {step: figures["gradient_norm"] for step, split, figures in lines if split == "train"}
    assert list(found) == [2, 4, 6]
    for step in (2, 4):
        now, then = saves.kept[step], saves.kept[step + 1]
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


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_run_is_the_same_with_them(tmp_path, replicas):
    strategy = mirrored(replicas=replicas)
    plain = make(tmp_path, name="plain", task=clipped_mlp, strategy=strategy)
    _, without = norms_of(plain)
    looked = make(tmp_path, name="looked", task=clipped_mlp, strategy=strategy, hooks=[Norms(10)])
    found, lines = norms_of(looked)
    assert list(found) == [10, 20, 30, 40]
    assert [line for line in lines if line[1] != "norms"] == without
    assert hashes(looked) == hashes(plain)


class Two(Task):
    """Two networks, of which the second is trained in every third step."""

    def __init__(self, *, rng):
        self.a = MlpClassifier(rng=rng.fold("a"), sizes=[64, 10], optimizer=sgd(0.1))
        rules = groups({"layers/0/*": frozen()}, otherwise=sgd(0.1))
        self.b = MlpClassifier(rng=rng.fold("b"), sizes=[64, 8, 10], optimizer=rules)

    def phases(self):
        (a,), (b,) = self.a.phases(), self.b.phases()
        return [
            Update("a", loss=a.loss, trains=a.trains, optimizer=a.optimizer),
            Update("b", loss=b.loss, trains=b.trains, optimizer=b.optimizer, every=3),
        ]

    def evaluate(self, batch) -> Loss:
        return self.a.evaluate(batch)


def test_of_several_updates_they_go_by_phase_and_none_has_to_be_due(tmp_path):
    trainer = make(tmp_path, task=Two, source=digits("train"), steps=10, log_every=None, hooks=[Norms()])
    found, _ = norms_of(trainer)
    of_phases = {"a": ["layers/0"], "b": ["layers/0", "layers/1"]}
    names = {f"{p}/{kind}/{m}" for p, ms in of_phases.items() for m in ms for kind in ("gradient", "weight", "update")}
    assert found[10].keys() == names
    frozen_norms = {name for name, x in found[10].items() if x == 0.0}
    assert frozen_norms == {"b/update/layers/0"}
    assert dict(unlikely(found[10])) == {}


class Notes(Lines):
    live = False

    def __init__(self):
        super().__init__()
        self.notes = []

    def progress(self, step, figures=None):
        pass

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (lambda step: 0.1 * tf.pow(2.0, tf.cast(step, tf.float32)), "explode"),
        (1e-10, "float32 rounds them away"),
        (0.0, None),
        (0.1, None),
    ],
)
def test_what_it_sees_twice_it_warns_of_once(tmp_path, rate, says):
    def mlp(*, rng):
        return MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(rate))

    trainer, notes = make(tmp_path, task=mlp, steps=20, chunk_steps=5, hooks=[Norms(5)]), Notes()
    trainer.train(Telemetry([notes]))
    warnings = [note for note in notes.notes if note.startswith("Warning") and "chunks of" not in note]
    assert len(warnings) == (1 if says else 0)
    assert all("`layers/0`" in warning and says in warning for warning in warnings)
    assert {split for _, split, _ in notes.lines} == {"train"}  # a screen isn't filled with norms


def test_a_network_that_is_cut_off_is_named(tmp_path):
    class Dead(MlpClassifier):
        def __init__(self, *, rng):
            super().__init__(rng=rng, sizes=[64, 8, 10], optimizer=sgd(0.1))
            self.net.layers[0].b.assign(tf.fill([8], -1e3))

    trainer, notes = make(tmp_path, task=Dead, steps=20, hooks=[Norms(10)]), Notes()
    trainer.train(Telemetry([notes]))
    (warning,) = [note for note in notes.notes if "gradients" in note]
    assert "`layers/0` are zero" in warning


def test_local_steps_are_refused(tmp_path):
    strategy = mirrored(replicas=2)
    trainer = make(tmp_path, task=clipped_mlp, strategy=strategy, local_steps=5, hooks=[Norms(10)])
    with pytest.raises(ConfigurationError, match=r"`Trainer.local_steps` has each replica take steps of their own"):
        trainer.train()
