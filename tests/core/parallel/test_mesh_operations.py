"""Operations on sharded tensors, forward and backward, are right on a mesh, or raise an error."""

import numpy as np
import pytest
import tensorflow as tf

from core.distribution import Ledger, backend_of
from core.errors import ConfigurationError
from core.parallel.mesh.unsafe_ops import refuse_unsafe
from core.parallel.mesh.variable import laid_out, whole
from core.testing import on_virtual_mesh

RIGHT = {
    "concat of rows": lambda x: tf.concat([x, 2 * x], 0),
    "concat of columns": lambda x: tf.concat([x, 2 * x], -1),
    "half of a concat": lambda x: tf.concat([x, 2 * x], 0)[8:],
    "fewer rows": lambda x: x[:4],
    "fewer rows than devices divide": lambda x: x[1:4],
    "the later rows": lambda x: x[4:],
    "every second row": lambda x: x[1::2],
    "a row": lambda x: x[3],
    "a column": lambda x: x[:, -1],
    "fewer columns": lambda x: x[:, 1:9],
    "every second column": lambda x: x[:, ::2],
    "steps that divide the parts": lambda x: x[1::4, ::8],
    "steps where nothing can be cut": lambda x: tf.reshape(x[:7, :15], [105])[::2],
    "a corner": lambda x: x[:4, :8],
    "a slice": lambda x: tf.slice(x, [2, 4], [4, 8]),
    "repeated rows": lambda x: tf.repeat(x, 2, axis=0),
    "repeated columns": lambda x: tf.repeat(x, 2, axis=1),
    "all in one axis": lambda x: tf.reshape(x, [128]),
    "rows split": lambda x: tf.reshape(x, [4, 2, 16]),
    "columns split": lambda x: tf.reshape(x, [8, 4, 4]),
    "rows of another size": lambda x: tf.reshape(x, [16, 8]),
    "transposed": tf.transpose,
    "transposed into one axis": lambda x: tf.reshape(tf.transpose(x), [128]),
    "gathered rows": lambda x: tf.gather(x, [5, 2, 7, 0]),
    "gathered columns": lambda x: tf.gather(x, [5, 2, 7, 0], axis=1),
    "a gathered number of each row": lambda x: tf.gather(x, tf.range(8) % 3, axis=1, batch_dims=1),
    "an unstacked row": lambda x: tf.unstack(x)[5],
    "an unstacked column": lambda x: tf.unstack(x, axis=1)[5],
    "stacked": lambda x: tf.stack([x, 2 * x], 1),
    "rows in another order": lambda x: tf.stack(tf.unstack(x)[::-1]),
    "a new last axis": lambda x: x[..., tf.newaxis],
    "new axes": lambda x: tf.squeeze(tf.expand_dims(tf.expand_dims(x, 1), 0), [0, 2]),
    "broadcast": lambda x: tf.broadcast_to(tf.expand_dims(x, 0), [2, 8, 16]),
    "cumulative sum of rows": lambda x: tf.cumsum(x, 0),
    "numbers gathered by a product": lambda x: tf.reduce_sum(tf.one_hot([1, 3], 16) * tf.gather(x, [0, 5]), -1),
    "means of columns": lambda x: tf.reduce_mean(x, 0),
    "largest rows": lambda x: tf.reduce_max(x, 0),
    "one condition, broadcast": lambda x: tf.where(tf.broadcast_to(tf.reduce_sum(x) > 0, [8, 16]), x, 2 * x),
    "in a loop": lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + x[2:6, :8]), (0, x[:4, 8:]))[1],
}
ERRORS = {
    "rows taken apart": (lambda x: tf.split(x, 2)[1], "over sharded dimension"),
    "columns taken apart": (lambda x: tf.split(x, [4, 12], -1)[1], "over sharded dimension"),
    "padded rows": (lambda x: tf.pad(x, [[1, 1], [0, 0]]), "inconsistent with the provided layout"),
    "padded columns": (lambda x: tf.pad(x, [[0, 0], [2, 2]]), "inconsistent with the provided layout"),
    "mirrored": (lambda x: tf.pad(x, [[0, 0], [2, 2]], "REFLECT"), "MirrorPad"),
    "tiled rows": (lambda x: tf.tile(x, [2, 1]), "sharded at dimension"),
    "reversed": (lambda x: tf.reverse(x, [0]), "ReverseV2"),
    "rolled": (lambda x: tf.roll(x, 1, 0), "Roll"),
}
REFUSED = {
    "rows backwards": (lambda x: x[::-1], "goes backwards"),
    "columns backwards": (lambda x: x[:, ::-2], "goes backwards"),
    "backwards in a loop": (
        lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + x[::-1]), (0, x))[1],
        "goes backwards",
    ),
    "every third column": (lambda x: x[:, ::3], "steps of 3"),
    "every third column behind an ellipsis": (lambda x: x[..., ::3], "steps of 3"),
    "every third of parts of columns": (lambda x: tf.reshape(x, [8, 4, 4])[:, ::3], "steps of 3"),
    "gathered numbers": (lambda x: tf.gather_nd(x, [[0, 1], [5, 3]]), "tf.one_hot"),
    "largest columns": (lambda x: tf.math.top_k(x, 3)[0], "tf.one_hot"),
    "sorted columns": (lambda x: tf.sort(x, -1), "tf.one_hot"),
    "an incomplete beta function": (lambda x: tf.math.betainc(0.2, 0.2, tf.sigmoid(x)), "by other operations"),
}
X = np.random.RandomState(0).randn(8, 16).astype("f4")


def with_gradient(fn):
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
            weights = tf.reshape(tf.cos(tf.range(float(y.shape.num_elements()))), y.shape)
            loss = tf.reduce_sum(y * weights)
        return y, tf.convert_to_tensor(tape.gradient(loss, x))

    return both


def on_mesh(fn, axes):
    """Returns the value of `fn` and its gradient on 2x2, if the guard allows them."""
    strategy = on_virtual_mesh(2, 2)
    x = laid_out(X, strategy.mesh, axes)
    with strategy.names():
        traced = tf.function(with_gradient(fn), autograph=False).get_concrete_function(x)
    refuse_unsafe(traced, (2, 2))
    return [whole(value) for value in traced(x)]


@pytest.mark.parametrize("axes", [("batch", "model"), pytest.param(("batch", "-"), marks=pytest.mark.long)])
def test_operations_that_pass_are_right(axes):
    """Traces all of them in one function, which is much cheaper than one function each."""
    expected = {name: with_gradient(fn)(tf.constant(X)) for name, fn in RIGHT.items()}
    strategy = on_virtual_mesh(2, 2)
    x = laid_out(X, strategy.mesh, axes)
    together = tf.function(lambda x: {name: with_gradient(fn)(x) for name, fn in RIGHT.items()}, autograph=False)
    with strategy.names():
        traced = together.get_concrete_function(x)
    refuse_unsafe(traced, (2, 2))
    for name, values in traced(x).items():
        for found, value in zip(values, expected[name], strict=True):
            np.testing.assert_allclose(whole(found), value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ERRORS)
def test_operations_that_can_not_be_laid_out_are_errors(name):
    fn, says = ERRORS[name]
    with pytest.raises(tf.errors.UnknownError, match=says):
        on_mesh(fn, ("batch", "model"))


@pytest.mark.parametrize("name", REFUSED)
def test_operations_that_would_be_wrong_are_refused(name):
    fn, says = REFUSED[name]
    with pytest.raises(ConfigurationError, match=says):
        on_mesh(fn, ("batch", "-"))


def test_first_call_of_a_program_alone_reads_its_collectives():
    strategy, ledger = on_virtual_mesh(2, 1), Ledger()
    backend, x = backend_of(strategy), laid_out(tf.ones([4]), strategy.mesh, ["-"])
    total = tf.function(lambda x: tf.reduce_sum(backend.by_rows(x, 0)), autograph=False)
    with backend.around_loop():
        program = backend.program(total.get_concrete_function(x), ledger)
    assert ledger.collectives == []
    assert float(whole(program(x))) == 4.0
    assert [entry.axis for entry in ledger.collectives] == ["batch"]
    ledger.clear()
    assert float(whole(program(x))) == 4.0
    assert ledger.collectives == []
