"""A few corners of `python -m tools.invariance` at tiny widths, for every shipped task."""

import pytest
import tensorflow as tf

from core.engine import TrainStep
from core.engine.inspect_phase import describe_outputs
from core.testing import on_virtual_cpus
from models.translation.task import Translation
from tests.commands import CONFIGS
from tools.invariance.campaign import measure
from tools.invariance.subjects import CHANGES, configured, subject, task_name

CORNERS = [(2, 2), (4, 1)]  # replicas, microbatches
STEPS = 6
TINY = {
    "digits_convnet": ("ConvNetClassifier.channels = [4, 4]", "ConvNetClassifier.hidden = 8"),
    "digits_ddpm": ("Ddpm.channels = 8",),
    "digits_gan": ("Gan.latent_size = 4", "mlp_networks.g_hidden = [8]", "mlp_networks.d_hidden = [8]"),
    "digits_simclr": ("SimClr.channels = [8, 8]", "SimClr.hidden = 8", "SimClr.projection = 4"),
    "digits_vae": ("Vae.hidden = [8]", "Vae.latent_size = 4"),
    "digits_mlp": ("MlpClassifier.sizes = [64, 8, 10]",),
    **CHANGES,
}


def one_of_each_task():
    """Returns the simplest configuration of each shipped task: on digits if possible, with the shortest name."""
    paths = sorted(CONFIGS.glob("*.gin"), key=lambda path: (not path.stem.startswith("digits"), len(path.stem)))
    return {task_name(path): path for path in reversed(paths)}


TASKS = one_of_each_task()
SLOW = TASKS.keys() - {"LinearClassifier", "MlpClassifier"}  # whose own tests check each row alone


@pytest.mark.parametrize(
    ("task", "replicas", "microbatches"),
    [
        ("MlpClassifier", 2, 2),
        pytest.param("LinearClassifier", 4, 1, marks=pytest.mark.long),
        *(pytest.param(task, *CORNERS[i % 2], marks=pytest.mark.long) for i, task in enumerate(sorted(SLOW))),
    ],
)
def test_shipped_task_is_the_same_in_a_corner(task, replicas, microbatches, tmp_path):
    path = TASKS[task]
    row = measure(configured(path, tmp_path, TINY.get(path.stem, ())), [(replicas, microbatches)], steps=STEPS, tries=1)
    assert row.problems == []
    assert row.reductions
    assert all(counts == {1} for counts in row.reductions.values())


@pytest.mark.parametrize("task", [pytest.param(t, marks=[pytest.mark.long] * (t in SLOW)) for t in sorted(TASKS)])
def test_shipped_task_with_dropout_gives_a_run_nothing_to_remark(task, tmp_path):
    path = TASKS[task]
    made = configured(path, tmp_path, TINY.get(path.stem, ()))
    specs = {key: tf.TensorSpec([1, *x.shape], x.dtype) for key, x in made.batch.items()}
    assert TrainStep(made.make(on_virtual_cpus(1)), specs, seed=0, steps=10).remarks == []


def test_paired_crops_draw_the_same_numbers_on_purpose():
    task = Translation([8, 8, 1], multiple=4, why="", crop_and_flip=True, paired=True)
    batch = {key: tf.TensorSpec([4, 12, 12, 1]) for key in ("a", "b")}
    assert describe_outputs(task.cut, batch, "crop", held={})[1].draws == ()


@pytest.mark.parametrize(
    ("name", "replicas", "microbatches"),
    [("ragged_dropout", 2, 2), ("batch_norm_sync", 4, 1)],
)
@pytest.mark.long  # the engine's own tests check both without models
def test_ragged_weights_and_synchronised_layers_are_the_same_in_a_corner(name, replicas, microbatches, tmp_path):
    row = measure(subject(name, tmp_path), [(replicas, microbatches)], steps=STEPS, tries=1)
    assert row.problems == []
    assert row.reductions == {"net": {1}}
