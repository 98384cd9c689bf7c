"""ResNets under the names of torchvision: read, written, and refused.

`python -m tools.vision_peer` compares logits with those of torchvision itself.
"""

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from core.errors import CheckpointError, ConfigurationError
from core.module import named_variables
from core.optimizers import sgd
from core.random import Rng
from core.weights import begin_with
from models import ResNetClassifier
from models.classifiers import resnet_weights, torchvision_arrays

IMAGES = tf.constant(np.random.RandomState(0).rand(2, 32, 32, 3), tf.float32)


def make(seed=0, **settings):
    sizes = {"image_shape": [32, 32, 3], "depth": 18, "width": 4}
    return ResNetClassifier(**{**sizes, **settings}, optimizer=sgd(0.1), rng=Rng.from_seed(seed))


@pytest.fixture(scope="module")
def arrays():
    """Returns the arrays of a network in which no variable is as initialised: every name matters."""
    task, random = make(), np.random.RandomState(1)
    for variable in named_variables(task.net).values():
        variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return torchvision_arrays(task.net)


@pytest.fixture
def file(arrays, tmp_path):
    """Returns the path of a file of these arrays, with the counters that PyTorch adds."""
    counters = {
        name.replace("running_var", "num_batches_tracked"): np.int64(7) for name in arrays if "running_var" in name
    }
    save_file(arrays | {name: np.asarray(x) for name, x in counters.items()}, tmp_path / "theirs.safetensors")
    return str(tmp_path / "theirs.safetensors")


def test_names_and_shapes_are_those_of_torchvision(arrays):
    assert len(arrays) == 102  # and 20 counters
    shapes = {name: list(x.shape) for name, x in arrays.items()}
    assert shapes["conv1.weight"] == [4, 3, 7, 7]
    assert shapes["layer2.0.conv1.weight"] == [8, 4, 3, 3]
    assert shapes["layer2.0.downsample.0.weight"] == [8, 4, 1, 1]
    assert shapes["layer2.0.downsample.1.running_var"] == [8]
    assert shapes["fc.weight"] == [10, 32]
    kinds = {name.rpartition(".")[0]: 0 for name in shapes}
    blocks = [
        f"layer{i}.{j}.{part}{k}" for i in (1, 2, 3, 4) for j in (0, 1) for k in (1, 2) for part in ("conv", "bn")
    ]
    downs = [f"layer{i}.0.downsample.{k}" for i in (2, 3, 4) for k in (0, 1)]
    assert sorted(kinds) == sorted(["conv1", "bn1", "fc", *blocks, *downs])


def test_file_that_is_read_and_written_keeps_its_bits_and_axes(arrays, file):
    task = make(seed=1)
    begin_with(resnet_weights(file), task)
    found = torchvision_arrays(task.net)
    assert {name: x.tobytes() for name, x in found.items()} == {name: x.tobytes() for name, x in arrays.items()}
    np.testing.assert_array_equal(task.net.stem.conv.w[1, 2, 0, 3], load_file(file)["conv1.weight"][3, 0, 1, 2])
    np.testing.assert_array_equal(task.net.logits.w[5, 7], arrays["fc.weight"][7, 5])
    assert all(float(v) == 1.0 for path, v in named_variables(task.net).items() if path.endswith("moving_weight"))


def test_part_of_a_file_fits_another_number_of_classes(file):
    task = make(seed=1, num_classes=3)
    with pytest.raises(CheckpointError, match=r"net/logits/w"):
        begin_with(resnet_weights(file), task)
    begun = begin_with(resnet_weights(file, take=["net/st*"]), task)
    assert "as initialised: `net/logits/" in begun.line


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"norm": "group"}, 'has batch norms: bind `ResNetClassifier.norm = "batch"`'),
        ({"stem": "cifar"}, "net/stem/conv/w"),
        ({"depth": 34}, "net/stages/0/2/convs/0/conv/w"),
    ],
)
def test_other_networks_are_refused_by_name(settings, says, file):
    with pytest.raises((CheckpointError, ConfigurationError), match=says):
        begin_with(resnet_weights(file), make(**settings))


def test_deeper_file_is_refused(tmp_path):
    save_file(torchvision_arrays(make(depth=34).net), tmp_path / "deeper.safetensors")
    task = make()
    before = task.net.stem.conv.w.numpy()
    with pytest.raises(ConfigurationError, match=r"`layer1/2/bn1/\w+`, which the task's ResNet lacks"):
        begin_with(resnet_weights(str(tmp_path / "deeper.safetensors")), task)
    np.testing.assert_array_equal(task.net.stem.conv.w, before)
