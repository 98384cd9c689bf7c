"""Inception V3: images as it takes them, pools at borders, and files of other networks refused by name.

`python -m tools.fid_peer` compares features with those of `pytorch-fid` itself.
"""

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from core.errors import CheckpointError
from core.module import named_variables
from core.weights import ArrayType, Weights
from models.classifiers.state_dicts import assign_all
from models.features import Inception, inception_arrays, load_inception
from models.features.images import in_colour, resized
from models.features.inception import AVERAGE, HALVE, MAX, layout_of

# Features 0, 700, 1500 and 2047 of the two images of `test_features_are_those_of_pytorch_fid`, by pytorch-fid 0.3.
GOLDEN = [
    [2.897986650466919, 0.39743879437446594, 3.4119603633880615, 0.24229788780212402],
    [2.996039390563965, 0.49595704674720764, 3.583958625793457, 0.20014406740665436],
]


class InMemory(Weights):
    """Arrays under the names that a file has."""

    def __init__(self, found):
        self.found = {name.replace(".", "/"): x for name, x in found.items()}
        super().__init__("`a.pth`", {name: ArrayType(x.dtype.name, x.shape) for name, x in self.found.items()}, {})

    def read(self, name):
        return self.found[name]


def bilinear(image, height, width):
    """Returns `image` [rows, columns] resized between the centres of pixels, pixel by pixel."""
    found = np.zeros([height, width])
    for i in range(height):
        for j in range(width):
            y = np.clip((i + 0.5) * image.shape[0] / height - 0.5, 0, image.shape[0] - 1)
            x = np.clip((j + 0.5) * image.shape[1] / width - 0.5, 0, image.shape[1] - 1)
            (a, b), down, right = (int(y), int(x)), y % 1, x % 1
            c, d = min(a + 1, image.shape[0] - 1), min(b + 1, image.shape[1] - 1)
            upper = (1 - right) * image[a, b] + right * image[a, d]
            lower = (1 - right) * image[c, b] + right * image[c, d]
            found[i, j] = (1 - down) * upper + down * lower
    return found


@pytest.mark.parametrize("size", [(7, 11), (3, 2)], ids=["larger", "smaller"])
def test_images_are_resized_between_centres_without_antialiasing(size):
    image = np.random.RandomState(0).rand(5, 6)
    found = resized(in_colour(tf.constant(image[np.newaxis, :, :, np.newaxis], tf.float32)), size)
    assert found.shape == [1, *size, 3]
    for channel in range(3):
        np.testing.assert_allclose(found[0, :, :, channel], bilinear(image, *size), atol=1e-6)


def test_images_of_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"`image` has shape \(1, 8, 8, 4\).* with 1 or 3 channels"):
        in_colour(tf.zeros([1, 8, 8, 4]))


def test_pools_dont_count_padding():
    x = -np.arange(1.0, 10.0, dtype=np.float32).reshape(1, 3, 3, 1)
    pooled = [pool(tf.constant(x)) for pool in (AVERAGE, MAX, HALVE)]
    assert pooled[0][0, 0, 0, 0] == -(1 + 2 + 4 + 5) / 4
    assert pooled[1][0, 2, 2, 0] == -5
    assert pooled[2].numpy().tolist() == [[[[-1.0]]]]


def test_other_files_are_refused_tensor_by_tensor():
    net = Inception()
    found = inception_arrays(net)
    assert len(found) == 94 * 5
    assert found["Mixed_6c.branch7x7dbl_4.conv.weight"].shape == (160, 160, 7, 1)
    assert found["Mixed_7c.branch3x3dbl_3b.bn.running_var"].shape == (384,)
    weight = found["Conv2d_1a_3x3.conv.weight"]
    found["Conv2d_1a_3x3.conv.weight"] = weight.transpose(2, 3, 1, 0)
    found["Mixed_7a.branch3x3_2.bn.bias"] = found["Mixed_7a.branch3x3_2.bn.bias"].astype(np.float16)
    found["AuxLogits.fc.bias"] = found.pop("Mixed_5b.branch_pool.bn.weight")
    found["Conv2d_2a_3x3.bn.bias"] = np.full([32], 7.0, np.float32)
    with pytest.raises(CheckpointError) as error:
        assign_all(net, InMemory(found), layout_of(net), "give another file")
    lines = [line.split() for line in str(error.value).splitlines()]
    assert ["missing", "Mixed_5b.branch_pool.bn.weight", "float32[32]", "-"] in lines
    assert ["unexpected", "AuxLogits.fc.bias", "-", "float32[32]"] in lines
    assert ["misshapen", "Conv2d_1a_3x3.conv.weight", "float32[32,3,3,3]", "float32[3,3,3,32]"] in lines
    assert ["misshapen", "Mixed_7a.branch3x3_2.bn.bias", "float32[320]", "float16[320]"] in lines
    assert len(lines) == 7
    assert lines[-1] == ["Give", "another", "file."]
    assert not net.units["Conv2d_2a_3x3"].norm.offset.numpy().any()  # nothing was assigned


@pytest.fixture(scope="module")
def weights():
    """Returns the arrays of a network whose values keep their size from layer to layer."""
    random, found = np.random.RandomState(0), {}
    net = Inception()
    for name, x in sorted(inception_arrays(net).items()):
        if x.ndim == 4:
            found[name] = (random.randn(*x.shape) * np.sqrt(2.0 / x[0].size)).astype(np.float32)
        else:
            near = 1.0 if name.endswith(("running_var", "bn.weight")) else 0.0
            found[name] = (near + 0.3 * random.rand(*x.shape)).astype(np.float32)
    return found


@pytest.mark.long
def test_features_are_those_of_pytorch_fid(weights, tmp_path):
    logits = {"fc.weight": np.zeros([1008, 2048], np.float32), "fc.bias": np.zeros([1008], np.float32)}
    save_file(weights | logits, tmp_path / "a.safetensors")
    net = load_inception(str(tmp_path / "a.safetensors"))
    image = np.random.RandomState(1).rand(2, 9, 12, 1).astype(np.float32)
    found = tf.function(net)(image).numpy()
    assert found.shape == (2, 2048)
    np.testing.assert_allclose(found[:, [0, 700, 1500, 2047]], GOLDEN, rtol=1e-4)
    assert len(named_variables(net)) == 94 * 6


@pytest.mark.long
def test_weights_of_torchvisions_own_network_are_refused(weights, tmp_path):
    save_file(weights | {"fc.weight": np.zeros([1000, 2048], np.float32)}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"`fc\.weight` of shape \[1000, 2048\].*pt_inception"):
        load_inception(str(tmp_path / "a.safetensors"))
