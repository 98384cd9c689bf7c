"""What XLA can't compile, or shouldn't: it is named with its line, or left out by name, and "auto" goes without."""

import json
import types

import pytest
import tensorflow as tf

from core import layers
from core.errors import ConfigurationError
from core.optimizers import sgd
from core.task import Loss, Update, all_rows
from core.testing.replicas import on_virtual_cpus
from models.classifiers.convnet import ConvNetClassifier
from models.classifiers.mlp import MlpClassifier
from tests.trainers.test_compile import Clock, choose, run
from tests.trainers.trainer_lab import make, train
from trainers.compiling import CHOICE
from trainers.refused_by_xla import refused_by_xla


def texts(*, rng):
    """A task whose loss XLA can't compile."""
    task = MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(0.1))

    def loss(batch, rng):
        numbers = tf.strings.to_number(tf.strings.as_string(batch["image"][:, 0, 0, 0]))
        return Loss(tf.reduce_sum(task.net(batch["image"]) ** 2, 1) + numbers)

    task.phases = types.MethodType(lambda self: [Update("net", loss=loss, trains=self.net, optimizer=sgd(0.1))], task)
    return task


def test_what_xla_cant_compile_is_named_with_its_line_and_auto_goes_without(tmp_path):
    line = texts.__code__.co_firstlineno + 5
    says = rf"XLA can't compile `AsString`, which .*test_refused_by_xla\.py:{line} \(`loss`\) makes"
    with pytest.raises(ConfigurationError, match=says):
        train(make(tmp_path, "xla", task=texts, compile="xla"))
    auto = make(tmp_path, "auto", task=texts, compile="auto")
    said = run(auto)
    assert json.loads((auto.workdir.path / CHOICE).read_text())["compile"] == "off"
    assert "compile: xla is out: XLA can't compile `AsString`" in said


def test_what_is_remembered_and_cant_be_compiled_any_more_is_measured_again(tmp_path):
    clock = Clock(1.0, 0.5, 0.7)
    assert choose(make(tmp_path, compile="auto"), clock.program, clock=clock)[0] == "xla"
    words, said = choose(make(tmp_path, task=texts, compile="auto"))
    assert words == "off"
    assert "compile: xla, as `compile.json` remembers, is out: XLA can't compile `AsString`" in said


def test_names_of_folders_say_nothing_of_xla():
    place = 'File "/determinism/XLA_lab/tf2xla.py", line 3, in XLA_loss'
    failed = tf.errors.InvalidArgumentError(None, None, f"assertion failed: [3]\n{place}")
    assert refused_by_xla(failed) is None
    refused = tf.errors.InvalidArgumentError(None, None, f"tf2xla conversion failed: no kernel\n{place}")
    assert "tf2xla conversion failed: no kernel" in refused_by_xla(refused)


def looping(*, rng):
    """A task whose loss goes through a loop that doesn't say how often at most."""
    task = MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(0.1))

    def loss(batch, rng):
        start = (0, task.net(batch["image"]))
        _, y = tf.while_loop(lambda i, y: (i < 3) | (tf.reduce_sum(y) > 1e9), lambda i, y: (i + 1, tf.tanh(y)), start)
        return Loss(tf.reduce_sum(y**2, 1))

    task.phases = types.MethodType(lambda self: [Update("net", loss=loss, trains=self.net, optimizer=sgd(0.1))], task)
    return task


def test_gradients_through_a_loop_that_xla_cant_reserve_memory_for_say_what_it_needs(tmp_path):
    says = r"XLA can't compile gradients .* \(give `tf\.while_loop` its `maximum_iterations`\): write it otherwise"
    with pytest.raises(ConfigurationError, match=says):
        train(make(tmp_path, task=looping, compile="xla"))


def convnet(*, rng):
    return ConvNetClassifier(rng=rng, image_shape=[8, 8, 1], channels=[4], hidden=8, optimizer=sgd(0.1))


def test_a_loop_with_convolutions_stays_tensorflows_and_says_so(tmp_path):
    trainer = make(tmp_path, task=convnet, compile="xla", steps=10)
    said = run(trainer)
    assert not trainer.train_step.whole
    assert "the loop of steps stays TensorFlow's: `net` convolves" in said
    other = make(tmp_path, "mlp", compile="xla")
    assert other.train_step.whole
    assert other.train_step.left_out == []


def test_no_loop_of_xlas_convolves_whether_over_steps_or_microbatches(tmp_path):
    trainer = make(tmp_path, task=convnet, compile="xla", microbatches=2, steps=10)
    graph = trainer.chunk.get_concrete_function().graph.as_graph_def()
    programs = [f for f in graph.library.function if f.attr["_XlaMustCompile"].b]
    kinds = [{node.op for node in f.node_def} for f in programs]
    assert any("Conv2DBackpropFilter" in kind for kind in kinds)
    assert not any({"While", "StatelessWhile"} & kind for kind in kinds)


def convolving_in_a_loop(*, rng):
    task = MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(0.1))
    task.net = layer = layers.Conv2D(1, 2, 3, rng=rng)

    def loss(batch, rng):
        rows = tf.map_fn(lambda image: layer(image[tf.newaxis])[0], batch["image"])
        return Loss(tf.reduce_sum(rows, [1, 2, 3]))

    task.phases = types.MethodType(lambda self: [Update("net", loss=loss, trains=layer, optimizer=sgd(0.1))], task)
    return task


def mixing(*, rng):
    task = MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(0.1))

    def loss(batch, rng):
        logits = task.net(batch["image"])
        return Loss(tf.reduce_sum(logits - tf.reduce_mean(all_rows(logits), 0), 1))

    made = Update("net", loss=loss, trains=task.net, optimizer=sgd(0.1), mixes_rows=True)
    task.phases = types.MethodType(lambda self: [made], task)
    return task


@pytest.mark.parametrize(
    ("task", "replicas", "why"),
    [
        (convolving_in_a_loop, 1, "convolves in a loop of its own, which on a CPU takes XLA many times as long"),
        (mixing, 2, "mixes the rows of all replicas"),
    ],
)
def test_an_update_that_xla_leaves_out_is_named_and_auto_has_nothing_to_choose(task, replicas, why, tmp_path):
    strategy = on_virtual_cpus(replicas) if replicas > 1 else None
    trainer = make(tmp_path, task=task, compile="xla", strategy=strategy, steps=10)
    said = run(trainer)
    assert f"XLA doesn't compile `net`: it {why}" in said
    assert "traced in" in said
    programs = trainer.chunk.get_concrete_function().graph.as_graph_def().library.function
    assert not any(f.attr["_XlaMustCompile"].b for f in programs)
    auto = make(tmp_path, "auto", task=task, compile="auto", strategy=strategy)
    assert choose(auto)[0] == "off"


@pytest.mark.parametrize(
    "make_layer",
    [
        lambda rng: layers.Conv2D(1, 2, 3, rng=rng),
        lambda rng: layers.ConvTranspose2D(1, 2, 3, rng=rng),
        lambda rng: layers.DepthwiseConv2D(1, 3, rng=rng),
    ],
    ids=["convolution", "transposed", "depthwise"],
)
def test_a_convolution_is_noticed_of_whatever_kind_it_is(make_layer, tmp_path):
    def convolving(*, rng):
        task = MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(0.1))
        task.net = layer = make_layer(rng.fold("layer"))

        def loss(batch, rng):
            return Loss(tf.reduce_sum(layer(batch["image"]), [1, 2, 3]))

        task.phases = types.MethodType(lambda self: [Update("net", loss=loss, trains=layer, optimizer=sgd(0.1))], task)
        return task

    assert not make(tmp_path, task=convolving, compile="xla").train_step.whole
