"""Collectives of known layouts are derived from a trace on one device."""

import pytest
import tensorflow as tf

from benchmarks.layouts import shipped
from core.distribution.shapes_only import shapes_only
from core.engine import Progress, TrainStep, assemble, make_chunk
from core.estimate import Spread, Taken, laid_out
from core.optimizers import adamw, sgd
from core.parallel.mesh.layouts import Layouts
from core.parallel.mesh.outputs import lay_out_outputs
from core.parallel.mesh.plan import OnMesh
from core.random import Rng
from core.testing import on_virtual_cpus
from models import LanguageModel
from models.classifiers.mlp import MlpClassifier

ROWS, TIME, SIZE, BLOCKS, VOCABULARY = 8, 16, 32, 2, 64
MEGATRON = shipped("mesh_transformer")


def spread(make, features, layouts, *, microbatches=1, slots=(), outputs=(), **sizes):
    """Returns the collectives of one step of the task on a mesh of these sizes."""

    def task():
        made = make(rng=Rng.from_seed(0))
        lay_out_outputs(made, Layouts(outputs, sizes), laid_out)
        return made

    with shapes_only():
        assembly = assemble(task, on_virtual_cpus(1))
    specs = {
        key: tf.TensorSpec([microbatches, ROWS // microbatches, *shape], dtype) for key, (shape, dtype) in features
    }
    own, of_slots = Layouts(layouts, sizes), Layouts([*slots, *layouts], sizes)
    cut = {
        path: (own if path.startswith("task/") else of_slots).of(path, variable.shape)
        for path, variable in assembly.variables.items()
    }
    for path, variable in assembly.variables.items():
        variable.on_mesh = OnMesh(None, cut[path])
    step = TrainStep(assembly, specs, seed=0, steps=10)
    progress = Progress({name: spec.sums_of_update for name, spec in step.specs.items()})
    stacked = {key: tf.TensorSpec([1, *x.shape], x.dtype) for key, x in specs.items()}
    chunk = make_chunk(step, stacked, progress).get_concrete_function()
    found = Spread(sizes, assembly.variables, cut)
    found.follow(chunk, "batch")
    return found


def language(optimizer=None, **kwargs):
    sizes = {"vocabulary": VOCABULARY, "context": TIME, "num_layers": BLOCKS, "size": SIZE, "num_heads": 4}
    return lambda rng: LanguageModel(rng=rng, optimizer=optimizer or sgd(0.1), **{**sizes, **kwargs})


TEXT = [(key, ([TIME + 1], tf.int32)) for key in ("tokens", "document", "bytes")]
FLOATS = 4 * ROWS * TIME * SIZE  # bytes of what goes through the blocks


def large(found, axis, where):
    """Returns the number and size of collectives at least as large as activations."""
    taken = [Taken(axis, kind, where) for kind in ("all-reduce", "all-gather")]
    return {one.kind: (found.counts[one], found.bytes[one]) for one in taken if found.bytes[one] > FLOATS // 8}


@pytest.mark.long
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {
            "positions": "rotary",
            "norm": "rms",
            "feed_forward": "swiglu",
            "bias": False,
            "num_kv_heads": 2,
            "hidden": 64,
        },
    ],
)
def test_megatrons_layouts_take_two_sums_a_block_forward_and_two_backward(kwargs):
    found = spread(language(**kwargs), TEXT, MEGATRON, batch=1, model=2)
    assert large(found, "model", "forward") == {"all-reduce": (2 * BLOCKS, 2 * BLOCKS * FLOATS)}
    count, size = large(found, "model", "backward")["all-reduce"]
    assert size - 2 * BLOCKS * FLOATS < 100  # the gradients' norm
    assert count - 2 * BLOCKS <= 2
    assert not found.unknown


@pytest.mark.long
def test_sharded_rows_of_text_are_joined_nowhere():
    found = spread(language(num_layers=1), TEXT, MEGATRON, batch=2, model=1)
    assert {taken.kind for taken in found.counts} == {"all-reduce"}
    assert not found.unknown


@pytest.mark.long
def test_recomputed_blocks_sum_once_more():
    found = spread(language(recompute=True), TEXT, MEGATRON, batch=1, model=2)
    assert large(found, "model", "forward")["all-reduce"][1] == 2 * BLOCKS * FLOATS
    # A block's recomputation skips its last sum.
    assert large(found, "model", "backward")["all-reduce"][1] - 3 * BLOCKS * FLOATS < 100
    assert {taken.kind for taken in found.counts} == {"all-reduce"}


IMAGES = [("image", ([8, 8, 1], tf.float32)), ("label", ([], tf.int32))]


def mlp(optimizer=None):
    return lambda rng: MlpClassifier(sizes=[64, 32, 10], optimizer=optimizer or sgd(0.1), rng=rng)


PARAMETERS = 4 * (64 * 32 + 32 + 32 * 10 + 10)


def test_sharded_rows_take_one_sum_of_all_gradients_a_step():
    found = spread(mlp(), IMAGES, [], microbatches=2, batch=2, model=1)
    total = sum(size for taken, size in found.bytes.items() if taken.axis == "batch")
    assert PARAMETERS <= total < PARAMETERS + 200
    assert {taken.kind for taken in found.counts} == {"all-reduce"}
    assert not found.unknown


def test_slots_that_are_sharded_further_gather_the_parameters_they_make():
    slots = [("*/layers/0/w", "batch,-")]
    found = spread(mlp(adamw(0.1)), IMAGES, [], slots=slots, batch=2, model=1)
    joined = {taken.where: size for taken, size in found.bytes.items() if taken.kind == "all-gather"}
    assert joined == {"update": 4 * 64 * 32 // 2}


def test_heads_that_do_not_divide_are_joined():
    found = spread(language(num_layers=1), TEXT, MEGATRON, batch=1, model=8)  # four heads
    assert found.counts[Taken("model", "all-gather", "forward")] >= 3


SUM, GATHER = (Taken("batch", kind, "forward") for kind in ("all-reduce", "all-gather"))
CUT = 2  # the dimension along which `x` of [1, 1, 8, 4] is


def crossing(fn, *dtypes):
    """Returns the transfers in `fn` of `x`, and of values unknown while tracing."""
    numbers = [tf.TensorSpec([], dtype) for dtype in dtypes]
    traced = tf.function(fn, autograph=False).get_concrete_function(tf.TensorSpec([1, 1, 8, 4]), *numbers)
    found = Spread({"batch": 2}, {}, {})
    found.follow(traced, "batch")
    return dict(found.counts)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, axis: tf.gather(x, [0], axis=axis),
        lambda x, axis: tf.expand_dims(x, axis),
        lambda x, axis: tf.concat([x, x], axis)[0],
    ],
    ids=["gather", "expand_dims", "concat"],
)
def test_an_axis_that_is_not_known_takes_all_whole(fn):
    assert set(crossing(fn, tf.int32)) == {GATHER}


def test_concat_of_a_partial_sum_is_summed():
    assert crossing(lambda x: tf.concat([tf.zeros([1]), tf.reduce_sum(x)[tf.newaxis]], 0) * 2) == {SUM: 1}


@pytest.mark.parametrize(("axis", "gathered"), [(CUT - 4, {GATHER: 2}), (3, {})])
def test_tensors_are_joined_along_what_is_not_cut(axis, gathered):
    assert crossing(lambda x: tf.concat([x, x * 2], axis) * 2) == gathered


def test_concat_cuts_whole_tensors_at_no_price():
    assert crossing(lambda x: tf.reduce_sum(tf.concat([tf.zeros([1, 1, 8, 1]), x], 3)) * 2) == {SUM: 1}


def test_each_branch_is_followed():
    def chosen(x, i):
        return tf.switch_case(i, [lambda: tf.reduce_sum(x) * 2, lambda: tf.reduce_sum(x, axis=CUT)[0, 0, 0] * 2])

    assert crossing(chosen, tf.int32) == {SUM: 2}


def test_laid_out_tensors_are_gathered_or_sharded_at_no_cost():
    def laid(*axes):
        return lambda x: laid_out(laid_out(x, axes), ("-", "-", "batch", "-"))

    assert crossing(laid("-", "-", "-", "-")) == {GATHER: 1}
    assert crossing(laid("-", "-", "batch", "-")) == {}
    assert crossing(lambda x: laid_out(tf.reduce_sum(x, axis=CUT), ("-", "-", "batch"))) == {SUM: 1}
