"""A few corners of `python -m tools.invariance` at tiny widths, for every shipped task."""

import pytest
import tensorflow as tf

from core.engine.inspect_phase import describe_outputs
from models.classifiers import resnet
from models.translation.task import Translation
from tests.commands import CONFIGS
from tools.invariance.campaign import measure
from tools.invariance.subjects import CHANGES, configured, task_name

STEPS = 4
TINY = {
    "digits_convnet": ("ConvNetClassifier.channels = [4, 4]", "ConvNetClassifier.hidden = 8"),
    # A bias before a norm has a gradient of rounding size only, which a small epsilon turns into full steps.
    "digits_ddpm": ("Ddpm.channels = 8", "adam.epsilon = 1e-3"),
    "digits_edm": ("diffusion_mlp.size = 8", "diffusion_mlp.blocks = 1", "adam.epsilon = 1e-3"),
    "digits_gan": ("Gan.latent_size = 4", "mlp_networks.g_hidden = [8]", "mlp_networks.d_hidden = [8]"),
    "digits_resnet": ("ResNetClassifier.width = 4",),
    "digits_simclr": ("SimClr.channels = [8, 8]", "SimClr.hidden = 8", "SimClr.projection = 4"),
    "digits_vae": ("Vae.hidden = [8]", "Vae.latent_size = 4"),
    "digits_vqvae": ("VqVae.channels = [8]", "vector_quantizer.num_codes = 8", "adamw.epsilon = 1e-3"),
    "digits_vit": ("ViTClassifier.size = 8", "ViTClassifier.num_layers = 1", "ViTClassifier.num_heads = 2"),
    "digits_mlp": ("MlpClassifier.sizes = [64, 8, 10]",),
    **CHANGES,
    # One layer of each kind: whatever depends on the number of rows shows in it.
    "digits_cyclegan": (*CHANGES["digits_cyclegan"], "CycleGan.discriminator_channels = [4]"),
    "digits_stylegan2": (*CHANGES["digits_stylegan2"], "StyleGan2.mapping_layers = 1"),
    "text_lstm": (*CHANGES["text_lstm"], "LSTMLanguageModel.num_layers = 1"),
    "text_70b": (*CHANGES["text_70b"], "LanguageModel.num_layers = 1"),
    "text_tiny": (*CHANGES["text_tiny"], "LanguageModel.num_layers = 1"),
}


def one_of_each_task():
    """Returns the simplest configuration of each shipped task: on digits if possible, with the shortest name."""
    paths = sorted(CONFIGS.glob("*.gin"), key=lambda path: (not path.stem.startswith("digits"), len(path.stem)))
    return {task_name(path): path for path in reversed(paths)}


# test_cyclegan_replicas.py compares one run with these corners and with placements, test_stylegan2.py with two of each.
ELSEWHERE = {"CycleGan", "StyleGan2"}
TASKS = {name: path for name, path in one_of_each_task().items() if name not in ELSEWHERE}
# Replicas and microbatches, if not two of each. Tasks that mix rows are compared at equal microbatches; SimCLR, one of
# them, has two.
CORNERS = {
    "AirbenchClassifier": (2, 1),
    "Ddpm": (2, 1),
    "Diffusion": (2, 1),
    "Gan": (4, 1),
    "LSTMLanguageModel": (2, 1),  # test_lstm.py divides its batches
    "LanguageModel": (2, 1),  # as test_language_model.py does
    "LinearClassifier": (4, 1),
    "Pix2Pix": (2, 1),
    "ResNetClassifier": (2, 1),
    "Vae": (4, 1),
    "ViTClassifier": (2, 1),
}
PLAIN = {"MlpClassifier"}


@pytest.mark.parametrize("task", [pytest.param(t, marks=[pytest.mark.long] * (t not in PLAIN)) for t in sorted(TASKS)])
def test_shipped_task_is_the_same_in_a_corner(task, tmp_path, monkeypatch):
    """With dropout, and no remark about its step functions."""
    for depth in resnet.BLOCKS:  # one block whose shortcut is the identity, one whose shortcut is a convolution
        monkeypatch.setitem(resnet.BLOCKS, depth, (1, 1))
    path, corner = TASKS[task], CORNERS.get(task, (2, 2))
    row = measure(configured(path, tmp_path, TINY.get(path.stem, ())), [corner], steps=STEPS, tries=1)
    assert row.problems == row.remarks == []
    assert row.reductions
    assert all(counts == {1} for counts in row.reductions.values())


def test_paired_crops_draw_the_same_numbers_on_purpose():
    task = Translation([8, 8, 1], multiple=4, why="", crop_and_flip=True, paired=True)
    batch = {key: tf.TensorSpec([4, 12, 12, 1]) for key in ("a", "b")}
    assert describe_outputs(task.cut, batch, "crop", held={})[1].draws == ()
