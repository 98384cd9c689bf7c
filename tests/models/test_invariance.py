"""A few corners of `python -m tools.invariance`, on tiny widths: the numbers of every shipped task are its own."""

import pytest

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
    """The plainest configuration of each task that ships: on the digits if there is one, and of the shortest name."""
    paths = sorted(CONFIGS.glob("*.gin"), key=lambda path: (not path.stem.startswith("digits"), len(path.stem)))
    return {task_name(path): path for path in reversed(paths)}


TASKS = one_of_each_task()
SLOW = TASKS.keys() - {"LinearClassifier", "MlpClassifier"}  # whose own tests look at each row alone


@pytest.mark.parametrize(
    ("task", "replicas", "microbatches"),
    [
        ("LinearClassifier", 4, 1),
        ("MlpClassifier", 2, 2),
        *(pytest.param(task, *CORNERS[i % 2], marks=pytest.mark.long) for i, task in enumerate(sorted(SLOW))),
    ],
)
def test_shipped_task_is_the_same_in_a_corner(task, replicas, microbatches, tmp_path):
    path = TASKS[task]
    row = measure(configured(path, tmp_path, TINY.get(path.stem, ())), [(replicas, microbatches)], steps=STEPS, tries=1)
    assert row.problems == []
    assert row.reductions
    assert all(counts == {1} for counts in row.reductions.values())


@pytest.mark.parametrize(
    ("name", "replicas", "microbatches"),
    [("ragged_dropout", 2, 2), pytest.param("batch_norm_sync", 4, 1, marks=pytest.mark.long)],
)
def test_ragged_weights_and_synchronised_layers_are_the_same_in_a_corner(name, replicas, microbatches, tmp_path):
    row = measure(subject(name, tmp_path), [(replicas, microbatches)], steps=STEPS, tries=1)
    assert row.problems == []
    assert row.reductions == {"net": {1}}
