"""Tasks that XLA can't or shouldn't compile: the error names the operation and its line, "auto" runs without XLA."""

import re

import pytest
import tensorflow as tf

from core import layers
from core.data import digits
from core.errors import ConfigurationError
from core.optimizers import sgd
from core.task import Loss, Update, all_rows
from core.telemetry import Telemetry
from core.testing.replicas import on_virtual_cpus
from models.classifiers.convnet import ConvNetClassifier
from tests.toys import Line
from tests.trainers.test_compile import Clock, Said, choose
from tests.trainers.trainer_lab import make, train
from trainers.errors.tensorflow import refused_by_xla


def with_loss(loss, *, make_net=None, **settings):
    """Returns a factory of a task whose loss is `loss(net, batch)`."""

    def make_task(*, rng):
        task = Line(rng=rng)
        if make_net:
            task.net = make_net(rng.fold("net"))
        step = lambda batch, rng: Loss(loss(task.net, batch))  # noqa: E731
        update = Update("net", loss=step, trains=task.net, optimizer=sgd(0.1), **settings)
        task.phases = lambda: [update]
        return task

    return make_task


def of_text(net, batch):
    numbers = tf.strings.to_number(tf.strings.as_string(batch["x"][:, 0]))
    return tf.reduce_sum(net(batch["x"]) ** 2, 1) + numbers


texts = with_loss(of_text)


@pytest.mark.long
def test_auto_leaves_xla_out_if_it_cannot_compile_the_task_any_more_and_names_the_line(tmp_path):
    clock = Clock(1.0, 0.5, 0.7)
    assert choose(make(tmp_path, task=Line, compile="auto"), clock.program, clock=clock)[0] == "xla"
    words, said = choose(make(tmp_path, task=texts, compile="auto"))
    assert words == "off"
    assert "compile: xla, as `compile.json` remembers, is out: XLA can't compile `AsString`" in said
    line = of_text.__code__.co_firstlineno + 1
    place = rf"test_refused_by_xla\.py:{line} \(`of_text`\) makes"
    assert re.search(rf"compile: xla is out: XLA can't compile `AsString`, which .*{place}", said)


def test_folder_names_are_not_taken_for_words_of_xla():
    place = 'File "/determinism/XLA_lab/tf2xla.py", line 3, in XLA_loss'
    failed = tf.errors.InvalidArgumentError(None, None, f"assertion failed: [3]\n{place}")
    assert refused_by_xla(failed) is None
    refused = tf.errors.InvalidArgumentError(None, None, f"tf2xla conversion failed: no kernel\n{place}")
    assert "tf2xla conversion failed: no kernel" in refused_by_xla(refused)


def looping(net, batch):
    """Loops without a bound on the number of iterations."""
    start = (0, net(batch["x"]))
    _, y = tf.while_loop(lambda i, y: (i < 3) | (tf.reduce_sum(y) > 1e9), lambda i, y: (i + 1, tf.tanh(y)), start)
    return tf.reduce_sum(y**2, 1)


def test_gradients_through_an_unbounded_loop_are_refused_with_the_argument_to_give(tmp_path):
    says = r"XLA can't compile gradients .* \(give `tf\.while_loop` its `maximum_iterations`\): rewrite it"
    with pytest.raises(ConfigurationError, match=says):
        train(make(tmp_path, task=with_loss(looping), compile="xla"))


def convnet(*, rng):
    return ConvNetClassifier(rng=rng, image_shape=[8, 8, 1], channels=[4], hidden=8, optimizer=sgd(0.1))


def warm_up(trainer):
    """Traces, but takes no step, for which XLA would have to compile; returns the notes."""
    said = Said()
    trainer.telemetry = Telemetry([said])
    trainer.warm_up(next(trainer.input.chunks_from(0)))
    return "\n".join(said.notes)


def compiled_programs(trainer):
    library = trainer.chunk.get_concrete_function().graph.as_graph_def().library
    return [f for f in library.function if f.attr["_XlaMustCompile"].b]


def test_loop_with_convolutions_is_not_compiled_whether_over_steps_or_microbatches(tmp_path):
    trainer = make(tmp_path, task=convnet, source=digits("train"), compile="xla", microbatches=2, steps=10)
    said = warm_up(trainer)
    assert not trainer.train_step.whole
    assert "the loop of steps stays TensorFlow's: `net` convolves" in said
    kinds = [{node.op for node in f.node_def} for f in compiled_programs(trainer)]
    assert any("Conv2DBackpropFilter" in kind for kind in kinds)
    assert not any({"While", "StatelessWhile"} & kind for kind in kinds)
    other = make(tmp_path, "line", compile="xla")
    assert other.train_step.whole
    assert other.train_step.left_out == []


def convolving_in_a_loop(net, batch):
    return tf.reduce_sum(tf.map_fn(lambda image: net(image[tf.newaxis])[0], batch["image"]), [1, 2, 3])


def mixing(net, batch):
    logits = net(batch["x"])
    return tf.reduce_sum(logits - tf.reduce_mean(all_rows(logits), 0), 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "how", "why"),
    [
        (
            with_loss(convolving_in_a_loop, make_net=lambda rng: layers.Conv2D(1, 2, 3, rng=rng)),
            {"source": digits("train")},
            "convolves in its own loop, which on a CPU takes XLA many times as long",
        ),
        (with_loss(mixing, mixes_rows=True), {"strategy": on_virtual_cpus(2)}, "mixes the rows of all replicas"),
    ],
    ids=["loop", "rows"],
)
def test_update_that_xla_leaves_out_is_named_and_auto_has_nothing_to_choose(task, how, why, tmp_path):
    trainer = make(tmp_path, task=task, compile="xla", steps=10, **how)
    said = warm_up(trainer)
    assert f"XLA doesn't compile `net`: it {why}" in said
    assert "traced in" in said
    assert not compiled_programs(trainer)
    assert choose(make(tmp_path, "auto", task=task, compile="auto", **how))[0] == "off"


@pytest.mark.parametrize(
    ("replicas", "left_out"), [(1, []), (2, ["XLA doesn't compile `net`: it mixes the rows of all replicas"])]
)
def test_update_that_mixes_rows_is_left_out_on_several_replicas_alone(replicas, left_out, tmp_path):
    task, strategy = with_loss(mixing, mixes_rows=True), on_virtual_cpus(replicas)
    assert make(tmp_path, task=task, compile="xla", strategy=strategy).train_step.left_out == left_out


@pytest.mark.parametrize(
    "make_net",
    [lambda rng: layers.ConvTranspose2D(1, 2, 3, rng=rng), lambda rng: layers.DepthwiseConv2D(1, 3, rng=rng)],
    ids=["transposed", "depthwise"],
)
def test_convolution_of_any_kind_keeps_the_loop_of_steps_from_xla(make_net, tmp_path):
    task = with_loss(lambda net, batch: tf.reduce_sum(net(batch["image"]), [1, 2, 3]), make_net=make_net)
    assert not make(tmp_path, task=task, source=digits("train"), compile="xla").train_step.whole
