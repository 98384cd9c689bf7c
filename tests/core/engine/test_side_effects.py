"""A run refuses side effects of a step function before its first step and names them; assertions do the same."""

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.engine import TrainStep
from core.engine.inspect_phase import describe_loss
from core.errors import ConfigurationError
from core.random import Rng
from core.task import Compute, Loss
from core.task.loss import EVALUATE
from core.testing import assemble, assert_pure, on_virtual_cpus
from core.testing.trained import assert_all_trained
from tests.toys import Line, points

SPEC = {"x": tf.TensorSpec([1, 4, 3]), "y": tf.TensorSpec([1, 4])}
OUTSIDE = tf.Variable(0.5, name="outside")
QUEUE = tf.queue.FIFOQueue(4, tf.float32)
MUTABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([1.0, 2.0])), 0.0
)


class Forgetful:
    """A layer whose class doesn't inherit from `Module`."""

    def __init__(self, rng):
        self.w = tf.Variable(rng.normal([3]), name="forgotten")

    def __call__(self, x):
        return tf.linalg.matvec(x, self.w)


class Does(Line):
    """Has a side effect in its loss, whose value is added to the error."""

    def __init__(self, *, rng, what):
        super().__init__(rng=rng)
        self.hidden = [Forgetful(rng.fold("hidden"))][0] if what is forgets else None
        self.steps = tf.Variable(0.0, trainable=False, name="steps")
        self.what = what

    def loss(self, batch, rng):
        return Loss(tf.square(self.error(batch) + self.what(self, batch, rng)))


def forgets(task, batch, rng):
    return task.hidden(batch["x"])


def reads_outside(task, batch, rng):
    return OUTSIDE * batch["x"][:, 0]


def reads_outside_in_a_loop(task, batch, rng):
    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * OUTSIDE), (0, batch["x"][:, 0]))[1]


def assigns(task, batch, rng):
    return 0.0 * task.steps.assign_add(1.0)


def assigns_in_a_branch(task, batch, rng):
    return 0.0 * tf.cond(batch["y"][0] > 0, lambda: task.steps.assign_add(1.0), lambda: task.steps + 0.0)


def assigns_in_a_function(task, batch, rng):
    return 0.0 * tf.function(lambda: task.steps.assign_add(1.0))()


def enqueues(task, batch, rng):
    QUEUE.enqueue(batch["y"][0])
    return 0.0


def inserts(task, batch, rng):
    MUTABLE.insert(tf.constant([1], tf.int64), batch["y"][:1])
    return 0.0


def draws(task, batch, rng):
    return tf.random.normal([4])


def drops(task, batch, rng):
    return tf.nn.dropout(batch["x"], 0.5)[:, 0]


def shuffles(task, batch, rng):
    return tf.random.shuffle(batch["y"])


def has_a_generator(task, batch, rng):
    return GENERATOR.normal([4])


GENERATOR = tf.random.Generator.from_seed(1)

HERE = r"at test_side_effects\.py:"
REFUSED = [
    (forgets, "reads the variable `forgotten:0` at test_side_effects.py:"),
    (reads_outside, "reads the variable `outside:0` at test_side_effects.py:"),
    (reads_outside_in_a_loop, "reads the variable `outside:0` at test_side_effects.py:"),
    (assigns, "writes the variable `steps` at test_side_effects.py:"),
    (assigns_in_a_branch, "writes the variable `steps` at test_side_effects.py:"),
    (assigns_in_a_function, "writes the variable `steps` at test_side_effects.py:"),
    (enqueues, r"writes a table, queue or stack \(`QueueEnqueueV2`\) at test_side_effects.py:"),
    (inserts, r"writes a table, queue or stack \(`LookupTableInsertV2`\) at test_side_effects.py:"),
    (draws, r"draws from TensorFlow's own generator at test_side_effects.py:.*Draw `rng.normal\(shape\)`"),
    (drops, "draws from TensorFlow's own generator at test_side_effects.py:.*for dropout `core.layers.Dropout`"),
    (shuffles, "draws from TensorFlow's own generator .*stateless_shuffle"),
    (has_a_generator, "draws from TensorFlow's own generator at test_side_effects.py:"),
]


def step_of(what, replicas=1):
    assembly = assemble(lambda rng: Does(rng=rng, what=what), on_virtual_cpus(replicas))
    return TrainStep(assembly, SPEC, seed=0, steps=10)


@pytest.mark.parametrize(("what", "says"), REFUSED, ids=[what.__name__ for what, _ in REFUSED])
def test_step_function_with_a_side_effect_is_refused_by_name(what, says):
    with pytest.raises(ConfigurationError, match=f"^phase `net` {says}"):
        step_of(what)


@pytest.mark.parametrize("what", [reads_outside, assigns, draws], ids=lambda what: what.__name__)
def test_replicas_refuse_what_one_refuses(what):
    with pytest.raises(ConfigurationError, match=HERE):
        step_of(what, replicas=2)


@pytest.mark.parametrize("what", [what for what, _ in REFUSED], ids=lambda what: what.__name__)
def test_assertions_refuse_what_a_run_refuses(what):
    task = Does(rng=Rng.from_seed(0), what=what)
    checks = assert_all_trained if what in (forgets, reads_outside, reads_outside_in_a_loop) else assert_pure
    with pytest.raises(AssertionError, match=HERE):
        checks(task, points(4))


def test_compute_is_held_to_the_same():
    class Made(Line):
        def phases(self):
            made = Compute("made", lambda batch, rng: {"z": batch["x"] * tf.random.uniform([4, 1])})
            return [made, *super().phases()]

    with pytest.raises(ConfigurationError, match=r"^phase `made` draws from TensorFlow's own generator"):
        TrainStep(assemble(Made, on_virtual_cpus(1)), SPEC, seed=0)


def reads_a_table(task, batch, rng):
    return TABLE.lookup(tf.cast(batch["y"] > 0, tf.int64))


def draws_by_rng(task, batch, rng):
    shuffled = tf.random.experimental.stateless_shuffle(batch["y"], rng.fold("order").seed)
    return layers.Dropout(0.5)(shuffled, rng.fold("dropout")) + rng.normal([4])


def gathers(task, batch, rng):
    return tf.gather(task.net.w, [0, 1, 2, 0])[:, 0]


def prints(task, batch, rng):
    tf.print("rows", tf.shape(batch["y"])[0], output_stream="file:///dev/null")
    with tf.control_dependencies([tf.debugging.assert_all_finite(batch["y"], "finite")]):
        return tf.identity(batch["y"])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("what", [reads_a_table, draws_by_rng, gathers, prints], ids=lambda what: what.__name__)
def test_step_function_that_only_reads_is_taken(what, replicas):
    assert step_of(what, replicas).remarks == []


KERAS = """
import tensorflow as tf

class Dense:
    def __init__(self):
        self.kernel = None

    def __call__(self, x):
        try:
            return self.call(x)
        except Exception as error:
            raise ValueError(f"Exception encountered when calling Dense.call(). {error} Arguments: {x}") from None

    def call(self, x):
        self.kernel = self.kernel or tf.Variable(tf.ones([3]), name="kernel")
        return tf.linalg.matvec(x, self.kernel)
"""


def test_layer_of_keras_that_is_not_built_is_named_with_the_line_that_calls_it():
    module = {"__name__": "keras.src.layers.dense"}  # no Keras is imported: frames tell by the names of modules
    exec(compile(KERAS, "dense.py", "exec"), module)
    layer = module["Dense"]()

    def calls(task, batch, rng):
        return layer(batch["x"])

    says = (
        r"^phase `net` calls a layer of Keras \(`Dense`\) at test_side_effects.py:\d+ \(`return layer\(.*`\), "
        r"which makes its variables \(`kernel`\).*coming-from\.md#from-keras\.$"
    )
    with pytest.raises(ConfigurationError, match=says):
        step_of(calls)


def test_python_in_a_step_is_reported():
    def calls(task, batch, rng):
        return tf.ensure_shape(tf.numpy_function(np.square, [batch["y"]], tf.float32), [4])

    (text,) = step_of(calls).remarks
    assert text.startswith("phase `net` calls Python at test_side_effects.py:")
    assert "no checkpoint keeps what that remembers" in text


def test_frozen_network_of_a_task_may_be_read():
    class Distilled(Line):
        frozen = ("teacher",)

        def __init__(self, *, rng):
            super().__init__(rng=rng)
            self.teacher = layers.Linear(3, 1, rng=rng.fold("teacher"))

        def loss(self, batch, rng):
            return Loss(tf.square(self.net(batch["x"])[:, 0] - self.teacher(batch["x"])[:, 0]))

    assert [phase.name for phase in TrainStep(assemble(Distilled, on_virtual_cpus(1)), SPEC, seed=0).plans] == ["net"]


def test_evaluation_that_draws_random_numbers_gets_an_error():
    rng = None

    def noisy(batch, _):
        return Loss(batch["y"] + rng.fold("noise").normal([4]))

    def broken(batch, _):
        return Loss(batch["y"] + rng.nonsense)

    with pytest.raises(ConfigurationError, match=r"`evaluate` asks for `rng.fold` at test_side_effects.py:\d+ \(`retu"):
        describe_loss(noisy, {"y": tf.TensorSpec([4])}, EVALUATE)
    with pytest.raises(AttributeError, match="nonsense"):
        describe_loss(broken, {"y": tf.TensorSpec([4])}, EVALUATE)


class Dropping(Line):
    """Drops some of its inputs, or should."""

    def __init__(self, *, rng, rate=0.5, calls=(None,)):
        super().__init__(rng=rng)
        self.net.dropout, self.calls = layers.Dropout(rate), calls

    def loss(self, batch, rng):
        handed = [rng.fold(call) if call else None for call in self.calls]
        x = sum(self.net.dropout(batch["x"], one) for one in handed)
        return Loss(tf.square(self.net(x)[:, 0] - batch["y"]))


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, 1), ({"rate": 0.0}, 0), ({"calls": ("dropout",)}, 0), ({"calls": (None, "dropout")}, 0)],
    ids=["forgotten", "meant", "handed", "both"],
)
def test_dropout_without_rng_in_training_is_reported(settings, told):
    step = TrainStep(assemble(lambda rng: Dropping(rng=rng, **settings), on_virtual_cpus(1)), SPEC, seed=0)
    assert len(step.remarks) == told
    for text in step.remarks:
        assert text.startswith("phase `net` trains a module whose `Dropout` `dropout` gets no rng")
