"""Operations that DTensor gets wrong are refused before they run; the error names the user's line."""

import inspect
import re

import pytest
import tensorflow as tf

from core import losses
from core.distribution import Ledger, backend_of
from core.errors import ConfigurationError
from core.layers import Linear, attend
from core.optimizers import sgd
from core.parallel.mesh.unsafe_ops import refuse_unsafe
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from core.testing import Run, assemble, on_virtual_mesh

ROW, MATRIX = tf.TensorSpec([4]), tf.TensorSpec([4, 6])


def in_a_loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y + x[:, tf.newaxis][:, 0]), (0, x))[1]


def in_a_condition(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x[tf.newaxis], lambda: tf.expand_dims(x, 0))


UNSAFE = {
    "a new first axis": (lambda x: x[tf.newaxis], ROW, "tf.expand_dims"),
    "a new axis in between": (lambda x: x[:, tf.newaxis], MATRIX, "tf.expand_dims"),
    "before an ellipsis": (lambda x: x[tf.newaxis, ...], MATRIX, "tf.expand_dims"),
    "in a loop": (in_a_loop, MATRIX, "tf.expand_dims"),
    "in a condition": (in_a_condition, MATRIX, "tf.expand_dims"),
    "one condition for all": (lambda x: tf.where(tf.reduce_sum(x) > 0, x, 2 * x), MATRIX, "tf.broadcast_to"),
    "a draw": (lambda x: x + tf.random.stateless_normal([6], [1, 2]), MATRIX, "the step's `rng`"),
    "a draw with a state": (lambda x: x + tf.random.uniform([6]), MATRIX, "the step's `rng`"),
    "a decomposition": (lambda x: tf.linalg.qr(x).q, MATRIX, "another optimizer"),
    "a list": (lambda x: tf.map_fn(lambda row: 2 * row, x), MATRIX, "tf.tensor_scatter_nd_update"),
}
SAFE = {
    "a new last axis": (lambda x: x[..., tf.newaxis] + x[:, :, tf.newaxis], MATRIX),
    "a column": (lambda x: x[:, tf.newaxis], ROW),
    "a condition for each": (lambda x: tf.where(x > 0, x, 2 * x), MATRIX),
    "one for numbers": (lambda x: tf.where(tf.reduce_sum(x) > 0, 1.0, 2.0), MATRIX),
    "one against a number": (lambda x: tf.where(tf.reduce_sum(x) > 0, x, 0.0), MATRIX),
    "slices": (lambda x: x[1:3, 0] + x[2], tf.TensorSpec([4, 2])),
}


def traced(fn, spec):
    return tf.function(fn, autograph=False).get_concrete_function(spec)


def test_attention_in_tiles_is_named_with_the_setting_that_turns_them_off():
    tiled = traced(lambda x: attend(x, x, x, chunk_size=2), tf.TensorSpec([2, 4, 2, 3]))
    said = r"`attend` of `core\.layers`, called at .*attention in tiles \(`chunk_size=None` turns them off\)"
    with pytest.raises(ConfigurationError, match=said):
        refuse_unsafe(tiled, (2, 2))


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_operations_are_named_with_their_line_and_remedy(name):
    fn, spec, remedy = UNSAFE[name]
    with pytest.raises(ConfigurationError, match=re.escape(remedy)) as found:
        refuse_unsafe(traced(fn, spec), (2, 2))
    file, line = str(found.value).split(": ")[0].rsplit(":", 1)
    first = inspect.getsourcelines(fn)[1]
    assert file == __file__
    assert first <= int(line) <= first + 1


def test_functions_of_the_project_are_named_with_the_call():
    """Users can't rewrite such a line, so the remedy for their own lines would be wrong."""
    lengths = tf.constant([4, 4])

    def loss(x):
        return losses.ctc(x, tf.ones([2, 2], tf.int32), logit_lengths=lengths, label_lengths=lengths // 2)

    with pytest.raises(ConfigurationError) as found:
        refuse_unsafe(traced(loss, tf.TensorSpec([2, 4, 3])), (2, 2))
    called = inspect.getsourcelines(loss)[1] + 1
    assert str(found.value).startswith(f"`ctc` of `core.losses`, called at {__file__}:{called}: a ")
    assert str(found.value).endswith(": leave it out, or train on replicas.")


def in_pieces(*, rng):
    return Pieces(lambda y: y, rng=rng)


def test_operations_of_the_engine_are_named_as_its_own():
    with pytest.raises(ConfigurationError) as found:
        Run(assemble(in_pieces, on_virtual_mesh(2, 1)), {"x": tf.ones([8, 6])}, microbatches=2)
    assert str(found.value).startswith("`")
    assert "` of `core.engine`: a `tf.TensorArray`, as" in str(found.value)


@pytest.mark.parametrize("name", SAFE)
def test_safe_operations_pass(name):
    refuse_unsafe(traced(*SAFE[name]), (2, 2))


def test_draws_of_an_rng_are_pinned_and_pass():
    def drawn(x):
        rng = Rng.from_seed(0)
        return on_virtual_mesh(1, 2).run(lambda: x + rng.fold("x").normal([6]) + rng.rows.uniform(4, 6))

    refuse_unsafe(traced(drawn, MATRIX), (2, 2))


class Line(Task):
    def __init__(self, write, *, rng):
        super().__init__()
        self.net, self.write = Linear(6, 6, rng=rng), write

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(self.write(self.net(batch["x"])), -1))


class Pieces(Line):
    """Returns outputs of several microbatches, which the engine joins."""

    def phases(self):
        return [Compute("y", fn=lambda batch, rng: {"y": self.net(batch["x"])}), *super().phases()]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(self.net(batch["x"]) + batch["y"], -1))


def chosen(y):
    return tf.where(tf.reduce_sum(y) > 0, y, 2 * y)


def mapped(y):
    return tf.map_fn(lambda row: 2 * row, y)


def rolled(y):
    return tf.roll(y, 1, 0)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (chosen, "{place}: `tf.where` of one"),
        (mapped, "{place}: a `tf.TensorArray`"),  # and not what the tape made of it
        (rolled, "the mesh: 'tf.Roll' op does not implement layout propagation (the first such one is at {place}). "),
    ],
)
def test_a_step_is_refused_before_it_runs_by_the_line_that_wrote_it(write, says):
    place = f"{__file__}:{inspect.getsourcelines(write)[1] + 1}"
    with pytest.raises(ConfigurationError, match=re.escape(says.format(place=place))):
        Run(assemble(lambda *, rng: Line(write, rng=rng), on_virtual_mesh(2, 2)), {"x": tf.ones([4, 6])})(0)


class Failing:
    """A function whose first run fails with TensorFlow's generic error, for a reason of its own code."""

    graph = tf.Graph()

    def __call__(self):
        raise tf.errors.UnknownError(None, None, "ValueError: no such file")


def test_other_errors_than_dtensor_s_stay_as_they_are():
    with pytest.raises(tf.errors.UnknownError, match="no such file"):
        backend_of(on_virtual_mesh(1, 2)).program(Failing(), Ledger())()
