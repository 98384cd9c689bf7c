"""Before the first step a task's phases, the variables that they train, and its sources' features are checked."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from core import engine, layers
from core.data import ArraySource, digit_pairs, digits
from core.data.digit_pairs import CentredImages
from core.errors import ConfigurationError, DataError
from core.module import Module, named_variables
from core.optimizers import sgd
from core.random import Rng
from core.task import Compute, Image, Label, Loss, Task, Tokens, Update
from core.task.trained import standings
from core.testing import assemble, on_virtual_cpus

ALONE = tf.distribute.OneDeviceStrategy("CPU:0")


class Parts(Task):
    """An untrained encoder, a head, and every kind of variable that isn't trainable."""

    def __init__(self, *, rng):
        super().__init__()
        self.encoder = layers.Linear(3, 4, rng=rng.fold("encoder"))
        self.norm = layers.BatchNorm(4)
        self.head = layers.SpectralNorm(layers.Linear(4, 1, rng=rng.fold("head")), rng=rng.fold("power"))
        self.target = tf.Variable(tf.zeros([2]), trainable=False, name="target")
        self.past = Module()
        self.past.mean = tf.Variable(0.0, name="mean")  # history, though nothing marks it as untrainable

    def phases(self):
        return [
            Compute("recall", self.recall, state=self.past),
            Update("net", loss=self.loss, trains=[self.norm, self.head], optimizer=sgd(0.1)),
            Update("penalty", loss=self.loss, trains=[self.norm, self.head], optimizer=sgd(0.1), every=4),
        ]

    def recall(self, batch, rng):
        return {"seen": batch["x"]}, {self.past.mean.ref(): tf.reduce_mean(batch["x"])}

    def loss(self, batch, rng):
        return Loss(tf.square(self.head(self.encoder(batch["seen"]))[:, 0]))


class Frozen(Parts):
    frozen = ("encoder",)


def test_a_variable_that_no_phase_trains_is_named_with_the_remedies():
    with pytest.raises(ConfigurationError) as error:
        assemble(Parts, ALONE)
    assert str(error.value) == (
        "no phase of `Parts` trains `encoder/b`, `encoder/w`: add the module to the `trains` of `net`, `penalty`. To "
        "freeze it, keep the module as an attribute of the task and name it there, "
        '`frozen = ("encoder",)` in `class Parts`. Make a variable that nothing should ever train with '
        "`tf.Variable(..., trainable=False)`."
    )


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        (lambda task, net: net, r"returned Update\(.*; return a list of `Update` and `Compute`"),
        (lambda task, net: [net, task.loss], "returned <bound method .*; each phase is an `Update` or a `Compute`"),
        (lambda task, net: [net, dataclasses.replace(net, every=2)], "has two phases named `net`; give each its own"),
        (lambda task, net: [Compute("recall", task.recall, state=task.past)], "trains nothing; return at least one"),
    ],
)
def test_phases_that_form_no_step_are_refused(phases, says):
    class Phased(Parts):
        def phases(self):
            return phases(self, super().phases()[1])

    with pytest.raises(ConfigurationError, match=rf"^`Phased\.phases\(\)` {says}"):
        assemble(Phased, ALONE)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_each_variable_has_its_standing(replicas):
    assembly = assemble(Frozen, on_virtual_cpus(replicas))
    assert assembly.task_variables.keys() == named_variables(assembly.task).keys()
    rows = standings(assembly.task, assembly.task_variables, assembly.phases)
    found = {row.path: (row.phases, row.frozen, row.trainable) for row in rows}
    both = ("net", "penalty")
    assert found.pop("encoder/w") == found.pop("encoder/b") == ((), True, True)
    trained = {path for path, standing in found.items() if standing == (both, False, True)}
    assert trained == {path for path in found if path.split("/")[-1] in ("w", "b", "offset", "scale")}
    assert len(trained) == 4
    untrained = {path for path, standing in found.items() if standing == ((), False, False)}
    assert untrained == found.keys() - trained > {"target", "past/mean", "norm/moving_mean"}


@pytest.mark.parametrize(
    ("frozen", "says"),
    [
        (("encodr",), r"`Wrong.frozen` names `encodr`, which is None; .* Did you mean `encoder`\?"),
        (("target",), "`Wrong.frozen` names `target`, .* name attributes that hold a module"),
        (("encoder", "norm"), "`Wrong.frozen` names a module that holds `norm/.*`, which phase `net` trains"),
    ],
)
def test_attributes_that_can_t_be_frozen_are_refused(frozen, says):
    wrong = type("Wrong", (Parts,), {"frozen": frozen})
    with pytest.raises(ConfigurationError, match=says):
        engine.assemble(lambda: wrong(rng=Rng.from_seed(0)), ALONE)


ZEROS = np.zeros([4, 8, 6, 1])
FLOATS = ArraySource({"image": ZEROS.astype("float32")}, name="floats")


class Reader(Task):
    """Reads the given features."""

    def __init__(self, **features):
        super().__init__()
        self.features = features

    def reads(self):
        return self.features


@pytest.mark.parametrize(
    ("source", "feature", "expected"),
    [
        (digits(), "image", (0.0, 1.0)),
        (digits(), "label", None),
        (digit_pairs(), "a", (-1.0, 1.0)),
        (digit_pairs(), "label", None),
        (ArraySource({"x": np.zeros([2, 3], "uint8")}, name="bytes"), "x", (0.0, 1.0)),
        (ArraySource({"x": np.zeros([2, 3], "uint8")}, name="bytes", scale=2.0 / 255.0), "x", (0.0, 2.0)),
        (FLOATS, "image", None),
    ],
)
def test_a_source_says_the_range_of_its_images(source, feature, expected):
    found = source.value_range(feature)
    assert found is None if expected is None else found == pytest.approx(expected)
    source.gather([0])  # nor does reading change it
    assert source.value_range(feature) == found


@pytest.mark.parametrize(
    "image",
    [
        Image(),
        Image([8, 6, 1]),
        Image([8, 6, 1], low=-7.0, high=7.0),  # floats may have any range
        Image([8, 5, 1], size="at_least"),
        Image([9, 4, 1], size="any"),
    ],
)
def test_images_that_fit_are_read(image):
    Reader(image=image).check_source(FLOATS)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (Image([8, 8, 1]), r"has shape \(8, 6, 1\), but `Reader.image_shape` is \[8, 8, 1\]: give the task the shape"),
        (Image([8, 6]), "has shape"),
        (Image([8, 7, 1], size="at_least"), "has shape"),
        (Image([8, 6, 3], size="any"), "has shape"),
        (Image([8, 8, 1], setting="size", remedy="do this"), r"but `Reader.size` is \[8, 8, 1\]: do this\."),
    ],
)
def test_another_shape_is_refused(image, says):
    with pytest.raises(DataError, match=says):
        Reader(image=image).check_source(FLOATS)


def test_another_range_or_type_is_refused():
    centred = CentredImages({"image": ZEROS.astype("uint8")}, name="centred")
    with pytest.raises(DataError, match=r"`centred` has values in \[-1, 1\], but `Reader` reads images in \[0, 1\]"):
        Reader(image=Image(low=0.0, high=1.0)).check_source(centred)
    numbers = ArraySource({"image": ZEROS.astype("int32")}, name="numbers")
    with pytest.raises(DataError, match="source `numbers` is int32, but `Reader` learns from float32 images"):
        Reader(image=Image()).check_source(numbers)


def test_a_missing_feature_or_a_label_without_a_class_is_refused():
    with pytest.raises(DataError, match="`digits` has no feature `picture`"):
        Reader(picture=Image()).check_source(digits())
    Reader(label=Label(10)).check_source(digits())
    with pytest.raises(DataError, match="is 9, but `Reader` has 9 classes, numbered 0 to 8: renumber the labels"):
        Reader(label=Label(9)).check_source(digits())
    with pytest.raises(DataError, match=r"is 9, but `Reader\.num_classes` is 9: labels are 0 to 8"):
        Reader(label=Label(9, setting="num_classes")).check_source(digits())


def windows(dtype="int32", **tokenizer):
    """Returns windows of three tokens and the one after them; 7 is the largest, in the last."""
    source = ArraySource({"tokens": np.arange(8).reshape(2, 4).astype(dtype)}, name="windows")
    if tokenizer:
        source.tokenizer = SimpleNamespace(**tokenizer)
    return source


def test_windows_of_tokens_fit_a_context_and_a_vocabulary():
    for source in (windows(), windows(vocabulary=8)):
        Reader(tokens=Tokens(3)).check_source(source)
        Reader(tokens=Tokens(3, vocabulary=8)).check_source(source)
        Reader(tokens=Tokens(3, vocabulary=9)).check_source(source)


@pytest.mark.parametrize(
    ("source", "tokens", "says"),
    [
        (windows("float32"), Tokens(3), r"`windows` is float32 of shape \(4,\), but `Reader` reads windows of text"),
        (
            windows(),
            Tokens(4),
            r"windows of 3 tokens and the one after them, but `Reader.context` is 4: give the source",
        ),
        (windows(), Tokens(3, vocabulary=7), r"of example 1 of source `windows` is 7, but `Reader.vocabulary` is 7"),
        (windows(vocabulary=9), Tokens(3, vocabulary=8), r"a vocabulary of 9, but `Reader.vocabulary` is 8: set"),
    ],
)
def test_other_windows_or_tokens_are_refused(source, tokens, says):
    with pytest.raises(DataError, match=says):
        Reader(tokens=tokens).check_source(source)
