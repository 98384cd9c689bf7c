"""Paths name every variable once, in a fixed order."""

import contextlib

import tensorflow as tf

from core.distribution.shapes_only import made, shapes_only
from core.module import Module, named_variables


class Layer(Module):
    def __init__(self, size):
        super().__init__()
        self.w = tf.Variable(tf.zeros([size, 2]), name="w")
        self.average = tf.Variable(tf.zeros([size]), trainable=False)


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layers = [Layer(3), Layer(4)]
        self.heads = {"b/c": Layer(5)}
        self.tied = self.layers[0].w


def test_paths_of_nested_shared_and_untrained_variables():
    net = Net()
    found = named_variables(net)
    assert set(found) == {
        "heads/b/c/w", "heads/b/c/average", "layers/0/average", "layers/1/w", "layers/1/average", "tied",
    }  # fmt: skip
    assert found["tied"] is net.layers[0].w
    assert set(net.parameters()) == {"heads/b/c/w", "layers/1/w", "tied"}
    assert list(named_variables(Net())) == list(found)


def test_any_module_of_tensorflow_has_paths():
    module = tf.Module()
    module.inner = tf.Module()
    module.inner.w = tf.Variable([1.0])
    assert list(named_variables(module)) == ["inner/w"]


def test_repr():
    assert repr(Net()) == "Net(24 parameters)"


def test_module_of_a_private_class_can_be_made_in_a_graph():
    class _Private(Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf.zeros([2, 3]))

    with shapes_only():
        made_shapes = made(_Private, contextlib.nullcontext)
    assert made_shapes.w.shape == [2, 3]
    assert not made_shapes.w.is_initialized()
