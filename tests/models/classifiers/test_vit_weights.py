"""ViTs and ConvNeXts under the names of `transformers`, `timm` and `torchvision`: read, written, and refused.

`python -m tools.vision_peer` compares logits with those of the libraries themselves.
"""

import functools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from core.errors import CheckpointError, ConfigurationError
from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng
from core.weights import begin_with
from models import ConvNeXtClassifier, ViTClassifier
from models.classifiers import convnext_weights, vit_weights
from trainers.weights.__main__ import WRITERS

# Names and shapes in torchvision 0.29, timm 1.0 and transformers 5.24; timm's ConvNeXt has four stages, here are two.
TIMM_VIT = """
cls_token 1,1,6  pos_embed 1,5,6  patch_embed.proj.weight 6,3,4,4  patch_embed.proj.bias 6
blocks.0.norm1.weight 6  blocks.0.norm1.bias 6  blocks.0.attn.qkv.weight 18,6  blocks.0.attn.qkv.bias 18
blocks.0.attn.proj.weight 6,6  blocks.0.attn.proj.bias 6  blocks.0.norm2.weight 6  blocks.0.norm2.bias 6
blocks.0.mlp.fc1.weight 24,6  blocks.0.mlp.fc1.bias 24  blocks.0.mlp.fc2.weight 6,24  blocks.0.mlp.fc2.bias 6
norm.weight 6  norm.bias 6  head.weight 5,6  head.bias 5
"""
TORCHVISION_VIT = """
class_token 1,1,6  conv_proj.weight 6,3,4,4  conv_proj.bias 6  encoder.pos_embedding 1,5,6
encoder.layers.encoder_layer_0.ln_1.weight 6  encoder.layers.encoder_layer_0.ln_1.bias 6
encoder.layers.encoder_layer_0.self_attention.in_proj_weight 18,6
encoder.layers.encoder_layer_0.self_attention.in_proj_bias 18
encoder.layers.encoder_layer_0.self_attention.out_proj.weight 6,6
encoder.layers.encoder_layer_0.self_attention.out_proj.bias 6
encoder.layers.encoder_layer_0.ln_2.weight 6  encoder.layers.encoder_layer_0.ln_2.bias 6
encoder.layers.encoder_layer_0.mlp.0.weight 24,6  encoder.layers.encoder_layer_0.mlp.0.bias 24
encoder.layers.encoder_layer_0.mlp.3.weight 6,24  encoder.layers.encoder_layer_0.mlp.3.bias 6
encoder.ln.weight 6  encoder.ln.bias 6  heads.head.weight 5,6  heads.head.bias 5
"""
TRANSFORMERS_VIT = """
vit.embeddings.cls_token 1,1,6  vit.embeddings.position_embeddings 1,5,6
vit.embeddings.patch_embeddings.projection.weight 6,3,4,4  vit.embeddings.patch_embeddings.projection.bias 6
vit.encoder.layer.0.attention.attention.query.weight 6,6  vit.encoder.layer.0.attention.attention.query.bias 6
vit.encoder.layer.0.attention.attention.key.weight 6,6  vit.encoder.layer.0.attention.attention.key.bias 6
vit.encoder.layer.0.attention.attention.value.weight 6,6  vit.encoder.layer.0.attention.attention.value.bias 6
vit.encoder.layer.0.attention.output.dense.weight 6,6  vit.encoder.layer.0.attention.output.dense.bias 6
vit.encoder.layer.0.intermediate.dense.weight 24,6  vit.encoder.layer.0.intermediate.dense.bias 24
vit.encoder.layer.0.output.dense.weight 6,24  vit.encoder.layer.0.output.dense.bias 6
vit.encoder.layer.0.layernorm_before.weight 6  vit.encoder.layer.0.layernorm_before.bias 6
vit.encoder.layer.0.layernorm_after.weight 6  vit.encoder.layer.0.layernorm_after.bias 6
vit.layernorm.weight 6  vit.layernorm.bias 6  classifier.weight 5,6  classifier.bias 5
"""
TIMM_CONVNEXT = """
stem.0.weight 4,3,4,4  stem.0.bias 4  stem.1.weight 4  stem.1.bias 4
stages.0.blocks.0.gamma 4  stages.0.blocks.0.conv_dw.weight 4,1,7,7  stages.0.blocks.0.conv_dw.bias 4
stages.0.blocks.0.norm.weight 4  stages.0.blocks.0.norm.bias 4
stages.0.blocks.0.mlp.fc1.weight 16,4  stages.0.blocks.0.mlp.fc1.bias 16
stages.0.blocks.0.mlp.fc2.weight 4,16  stages.0.blocks.0.mlp.fc2.bias 4
stages.1.downsample.0.weight 4  stages.1.downsample.0.bias 4
stages.1.downsample.1.weight 6,4,2,2  stages.1.downsample.1.bias 6
stages.1.blocks.0.gamma 6  stages.1.blocks.0.conv_dw.weight 6,1,7,7  stages.1.blocks.0.conv_dw.bias 6
stages.1.blocks.0.norm.weight 6  stages.1.blocks.0.norm.bias 6
stages.1.blocks.0.mlp.fc1.weight 24,6  stages.1.blocks.0.mlp.fc1.bias 24
stages.1.blocks.0.mlp.fc2.weight 6,24  stages.1.blocks.0.mlp.fc2.bias 6
head.norm.weight 6  head.norm.bias 6  head.fc.weight 5,6  head.fc.bias 5
"""
TORCHVISION_CONVNEXT = """
features.0.0.weight 4,3,4,4  features.0.0.bias 4  features.0.1.weight 4  features.0.1.bias 4
features.1.0.layer_scale 4,1,1  features.1.0.block.0.weight 4,1,7,7  features.1.0.block.0.bias 4
features.1.0.block.2.weight 4  features.1.0.block.2.bias 4
features.1.0.block.3.weight 16,4  features.1.0.block.3.bias 16
features.1.0.block.5.weight 4,16  features.1.0.block.5.bias 4
features.2.0.weight 4  features.2.0.bias 4  features.2.1.weight 6,4,2,2  features.2.1.bias 6
features.3.0.layer_scale 6,1,1  features.3.0.block.0.weight 6,1,7,7  features.3.0.block.0.bias 6
features.3.0.block.2.weight 6  features.3.0.block.2.bias 6
features.3.0.block.3.weight 24,6  features.3.0.block.3.bias 24
features.3.0.block.5.weight 6,24  features.3.0.block.5.bias 6
classifier.0.weight 6  classifier.0.bias 6  classifier.2.weight 5,6  classifier.2.bias 5
"""
VIT = {"image_shape": [8, 8, 3], "patch": 4, "size": 6, "num_layers": 1, "num_heads": 2, "num_classes": 5}
CONVNEXT = {"image_shape": [8, 8, 3], "channels": [4, 6], "blocks": [1, 1], "num_classes": 5}


def vit(seed=0, **settings):
    return ViTClassifier(**{**VIT, **settings}, optimizer=sgd(0.1), rng=Rng.from_seed(seed))


def convnext(seed=0, **settings):
    return ConvNeXtClassifier(**{**CONVNEXT, **settings}, optimizer=sgd(0.1), rng=Rng.from_seed(seed))


def randomised(task):
    """Returns `task` with no variable as initialised: every name matters."""
    random = np.random.RandomState(1)
    for variable in named_variables(task.net).values():
        variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return task


def written(task, program, folder):
    """Returns the path from which the written weights are read, and their arrays."""
    WRITERS[program](task, folder)
    file = folder / "model.safetensors"
    return str(folder if program == "hf" else file), load_file(file)


KINDS = [
    pytest.param("timm", vit, vit_weights, TIMM_VIT, id="ViT of timm"),
    pytest.param("torchvision", vit, vit_weights, TORCHVISION_VIT, id="ViT of torchvision"),
    pytest.param("hf", vit, vit_weights, TRANSFORMERS_VIT, id="ViT of transformers"),
    pytest.param("timm", convnext, convnext_weights, TIMM_CONVNEXT, id="ConvNeXt of timm"),
    pytest.param("torchvision", convnext, convnext_weights, TORCHVISION_CONVNEXT, id="ConvNeXt of torchvision"),
]


@pytest.mark.parametrize(("program", "make", "weights", "recorded"), KINDS)
def test_network_has_the_names_and_shapes_of_a_library_and_returns_bit_for_bit(
    program, make, weights, recorded, tmp_path
):
    task = randomised(make())
    path, arrays = written(task, program, tmp_path / "written")
    words = recorded.split()
    shapes = {name: tuple(map(int, sizes.split(","))) for name, sizes in zip(words[::2], words[1::2], strict=True)}
    assert {name: x.shape for name, x in arrays.items()} == shapes
    other = make(seed=1)
    begin_with(weights(path), other)
    expected = named_variables(task)
    for name, variable in named_variables(other).items():
        assert variable.numpy().tobytes() == expected[name].numpy().tobytes(), name


def test_axes_are_those_of_pytorch(tmp_path):
    net = randomised(vit()).net
    _, arrays = written(randomised(vit()), "timm", tmp_path / "timm")
    np.testing.assert_array_equal(arrays["patch_embed.proj.weight"][2, 1, 3, 0], net.patches.w[3, 0, 1, 2])
    np.testing.assert_array_equal(arrays["blocks.0.attn.qkv.weight"][6 + 2, 4], net.blocks[0].attention.key.w[4, 2])
    np.testing.assert_array_equal(arrays["blocks.0.attn.qkv.bias"][12:], net.blocks[0].attention.value.b)
    np.testing.assert_array_equal(arrays["pos_embed"][0, 3], net.positions[3])
    last = randomised(convnext()).net.stages[1][0]
    _, arrays = written(randomised(convnext()), "torchvision", tmp_path / "torchvision")
    np.testing.assert_array_equal(arrays["features.3.0.block.0.weight"][5, 0, 1, 2], last.conv.w[1, 2, 0, 5])
    np.testing.assert_array_equal(arrays["features.3.0.layer_scale"][:, 0, 0], last.scale)


@pytest.fixture
def folder(tmp_path):
    written(randomised(vit()), "hf", tmp_path / "hf")
    return tmp_path / "hf"


def changed(folder, change):
    """Writes the tensors in `folder` again, after `change`."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, folder / "model.safetensors")


def transpose(tensors, name="vit.encoder.layer.0.output.dense.weight"):
    tensors[name] = tensors[name].T


def deepen(tensors, name="vit.encoder.layer.0.output.dense.bias"):
    tensors[name.replace("0", "1")] = tensors[name]


@pytest.mark.parametrize(
    ("settings", "change", "says"),
    [
        ({"num_heads": 3}, None, r"needs a `ViTClassifier` with `num_heads = 2`, not 3: bind these"),
        ({"epsilon": 1e-12}, None, r"`epsilon = 1e-06`, not 1e-12"),
        ({"pool": "mean"}, None, r"`pool = 'token'`, not 'mean'"),
        ({"registers": 2}, None, r"missing +\S* *net/registers"),
        ({"image_shape": [12, 8, 3]}, None, r"misshapen +\S* *net/positions .*\[7,6\].*\[5,6\]"),
        ({}, transpose, r"misshapen +\S* *net/blocks/0/feed_forward/down/w .*\[24,6\].*\[6,24\]"),
        ({}, lambda tensors: tensors.pop("vit.layernorm.bias"), r"missing +\S* *net/norm/offset"),
        ({}, deepen, r"has `vit/encoder/layer/1/output/dense/bias`, which the task's ViT lacks"),
    ],
)
def test_other_network_is_refused_by_name_and_nothing_is_read(settings, change, says, folder):
    if change is not None:
        changed(folder, change)
    task = vit(seed=1, **settings)
    before = [v.numpy() for v in task.variables]
    with pytest.raises((CheckpointError, ConfigurationError), match=says):
        begin_with(vit_weights(str(folder)), task)
    for x, variable in zip(before, task.variables, strict=True):
        np.testing.assert_array_equal(variable, x)


def test_model_without_its_last_layer_is_read_with_take(folder):
    def strip(tensors):
        for name in list(tensors):
            x = tensors.pop(name)
            if not name.startswith("classifier"):
                tensors[name.removeprefix("vit.")] = x
        tensors["pooler.dense.bias"] = np.zeros(6, np.float32)

    changed(folder, strip)
    with pytest.raises(CheckpointError, match="net/logits/w"):
        begin_with(vit_weights(str(folder)), vit(seed=1))
    task = vit(seed=1, num_classes=3)
    begun = begin_with(vit_weights(str(folder), take=["net/[!l]*"]), task)
    assert "as initialised: `net/logits/b`, `net/logits/w`" in begun.line
    np.testing.assert_array_equal(task.net.norm.offset, randomised(vit()).net.norm.offset)


def test_config_with_another_activation_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    with pytest.raises(CheckpointError, match="`hidden_act` = 'relu', which no `ViTClassifier` computes"):
        begin_with(vit_weights(str(folder)), vit())


@pytest.mark.parametrize(
    ("make", "program", "says"),
    [
        (functools.partial(vit, pool="mean"), "torchvision", "a ViT of torchvision needs `token`"),
        (functools.partial(vit, pool="mean"), "hf", "a ViT of transformers needs `token`"),
        (functools.partial(vit, registers=2), "timm", "timm has no name for `registers`, which this ViT has"),
        (convnext, "hf", "`--to=hf` writes a `Transformer` or `Bert` or `T5` or `ViT`"),
    ],
)
def test_network_that_a_library_cannot_compute_is_not_written(make, program, says, tmp_path):
    with pytest.raises(ConfigurationError, match=says):
        WRITERS[program](make(), tmp_path / "written")
    assert not (tmp_path / "written").exists()


def test_file_of_another_network_is_refused(tmp_path):
    path, _ = written(convnext(), "timm", tmp_path / "written")
    with pytest.raises(CheckpointError, match="has no array of a ViT of `timm` or `torchvision`, but `head/fc"):
        begin_with(vit_weights(path), vit())
