"""LPIPS: the paper's formula on activations, and files of other networks refused by name.

`python -m tools.fid_peer` compares distances with those of the package `lpips` itself.
"""

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from core.errors import CheckpointError
from models.features import load_lpips
from models.features.lpips import SCALE, SHIFT, STAGES


@pytest.fixture(scope="module")
def arrays():
    """Returns arrays of AlexNet, with its classifier, and heads, under the names of `torchvision` and `lpips`."""
    random, channels, network = np.random.RandomState(0), 3, {"classifier.6.bias": np.zeros([10], np.float32)}
    for ((number, size, window, *_),) in STAGES["alex"]:
        scale = np.sqrt(2.0 / (channels * window**2))
        network[f"features.{number}.weight"] = (scale * random.randn(size, channels, window, window)).astype(np.float32)
        network[f"features.{number}.bias"] = random.rand(size).astype(np.float32)
        channels = size
    heads = {
        f"lin{i}.model.1.weight": random.rand(1, s.channels, 1, 1).astype(np.float32)
        for i, (s,) in enumerate(STAGES["alex"])
    }
    return network, heads


def test_the_distance_is_the_papers(arrays, tmp_path):
    for name, found in zip(("network", "heads"), arrays, strict=True):
        save_file(found, tmp_path / f"{name}.safetensors")
    net = load_lpips(str(tmp_path / "network.safetensors"), str(tmp_path / "heads.safetensors"))
    images = np.random.RandomState(1).uniform(-1.0, 1.0, [2, 3, 40, 35, 3]).astype(np.float32)
    found = net(*map(tf.constant, images)).numpy()
    expected = np.zeros([3])
    stages = [net.stages(tf.constant((x - SHIFT) / SCALE, tf.float32)) for x in images]
    for i, pair in enumerate(zip(*stages, strict=True)):
        a, b = (x.numpy() / np.sqrt((x.numpy() ** 2).sum(-1, keepdims=True)) for x in pair)
        weights = arrays[1][f"lin{i}.model.1.weight"].ravel()
        expected += (((a - b) ** 2) @ weights).mean((1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert stages[0][0].shape == [3, 9, 8, 64]
    assert stages[0][-1].shape == [3, 1, 1, 256]
    np.testing.assert_array_equal(net(tf.constant(images[0]), tf.constant(images[0])), np.zeros(3))


def test_files_of_another_network_are_refused(arrays, tmp_path):
    for name, found in zip(("network", "heads"), arrays, strict=True):
        save_file(found, tmp_path / f"{name}.safetensors")
    network, heads = (str(tmp_path / f"{name}.safetensors") for name in ("network", "heads"))
    with pytest.raises(CheckpointError, match=r"missing +features\.2\.weight(.|\n)*another `kind` than 'vgg'"):
        load_lpips(network, heads, "vgg")
    with pytest.raises(CheckpointError, match=r"missing +lin0\.model\.1\.weight(.|\n)*weights/v0\.1/alex\.pth"):
        load_lpips(network, network)
