"""Parts of an export: weights in fewer bits, its variables, and the allowed differences."""

import numpy as np
import pytest
import tensorflow as tf

from core.errors import CheckpointError
from core.module import named_variables
from core.random import Rng
from core.task import Served
from tests.toys import Line, point_source
from tools.invariance.subjects import subject
from trainers.export import compare
from trainers.export.compare import Difference, check_same, differences, examples_of
from trainers.export.folder import write_saved_model
from trainers.export.program import Program, Weights, quantised

SMALL = {"digits_linear", "digits_mlp", "digits_convnet", "digits_gan", "digits_conditional_gan", "digits_vae"}


def test_int8_has_a_scale_for_each_output():
    integers, scale = quantised(tf.constant([[127.0, 0.5, 0.0], [-63.4, -1.0, 0.0]]))
    assert integers.dtype == tf.int8
    assert integers.numpy().tolist() == [[127, 64, 0], [-63, -127, 0]]
    np.testing.assert_allclose(scale, [1.0, 1.0 / 127.0, 1.0])


@pytest.mark.parametrize(
    ("weights", "dtypes"), [("float32", {"float32"}), ("bfloat16", {"bfloat16"}), ("int8", {"int8", "float32"})]
)
def test_weights_come_back_within_their_bits(weights, dtypes):
    value = tf.random.stateless_normal([40, 30], [0, 1])
    kept = Weights(value, weights)
    assert {v.dtype.name for v in kept.variables} == dtypes
    back = kept.read()
    assert back.dtype == tf.float32
    step = {"float32": 0.0, "bfloat16": 2.0**-8 * tf.abs(value), "int8": tf.reduce_max(tf.abs(value), 0) / 254.0}
    assert tf.reduce_all(tf.abs(back - value) <= step[weights] * 1.001)
    assert weights == "float32" or not tf.reduce_all(back == value)


@pytest.mark.parametrize("shape", [[31, 33], [2048]])
def test_vectors_and_small_matrices_stay_as_they_are(shape):
    (variable,) = Weights(tf.ones(shape), "int8").variables
    assert variable.dtype == tf.float32


def test_whole_numbers_stay_as_they_are():
    (variable,) = Weights(tf.ones([64, 64], tf.int32), "int8").variables
    assert variable.dtype == tf.int32


def test_output_differs_by_a_part_of_its_largest_value():
    served = {"f": Served(dict, {}, scores=["scores"])}
    scores = np.array([[0.1, 0.9], [0.6, 0.4]])
    expected = {
        "f/0/y": np.array([1.0, -4.0]),
        "f/1/y": np.array([2.0]),
        "f/0/n": np.array([1, 2]),
        "f/0/scores": scores,
    }
    made = {
        **expected,
        "f/1/y": np.array([2.5]),
        "f/0/n": np.array([1, 3]),
        "f/0/scores": np.array([[0.1, 0.9], [0.4, 0.6]]),
    }
    found = differences(expected, made, served)["f"]
    assert found["y"] == Difference(0.5 / 4.0)
    assert found["n"] == Difference(0.0, 0.5)
    assert found["scores"] == Difference(pytest.approx(0.2 / 0.9), 0.5)


@pytest.mark.parametrize(
    ("weights", "difference", "says"),
    [
        ("float32", Difference(0.9e-5, 0.9), None),
        ("float32", Difference(1.1e-5, 1.0), "1e-05 is allowed"),
        ("bfloat16", Difference(0.9e-2, 0.9), None),
        ("bfloat16", Difference(1.1e-2, 1.0), "0.01 is allowed"),
        ("int8", Difference(9.0, 0.99), None),
        ("int8", Difference(0.0, 0.989), "98.90% of its choices; at least 99% are required"),
        ("int8", Difference(0.11), "0.1 is allowed"),
        ("float32", Difference(float("nan")), "differs"),
    ],
)
def test_differences_up_to_a_limit_are_allowed(weights, difference, says):
    served = {"f": Served(dict, {}, scores=["y"] if difference.same is not None else [])}
    if says is None:
        check_same({"f": {"y": difference}}, served, kind="tflite", weights=weights)
        return
    with pytest.raises(CheckpointError, match=says):
        check_same({"f": {"y": difference}}, served, kind="tflite", weights=weights)


def test_whole_numbers_are_choices():
    served = {"f": Served(dict, {})}
    with pytest.raises(CheckpointError, match="at least 100% are required"):
        check_same({"f": {"n": Difference(0.0, 0.999)}}, served, kind="tflite", weights="float32")
    check_same({"f": {"n": Difference(0.0, 0.999)}}, served, kind="tflite", weights="int8")


def computed(function_of, given):
    """Returns the outputs of `function_of(name)` for the inputs `given`, which are named as in `Examples`."""
    calls = {}
    for key, x in given.items():
        call, _, name = key.rpartition("/")
        calls.setdefault(call, {})[name] = x
    made = {call: function_of(call.partition("/")[0])(**inputs) for call, inputs in calls.items()}
    return {f"{call}/{name}": np.asarray(x) for call, outputs in made.items() for name, x in outputs.items()}


def check_functions(experiment, program, examples):
    """Asserts that the exported functions compute `examples` from weights of their own. The task loses its weights."""
    module, functions = program.exported("float32")
    for variable in named_variables(experiment.task).values():
        variable.assign(tf.zeros_like(variable))  # the export reads none of them
    made = computed(lambda name: lambda **x: functions[name](**tf.nest.map_structure(tf.constant, x)), examples.given)
    check_same(differences(examples.expected, made, program.served), program.served, kind="function", weights="float32")
    assert len({*module.weights} - {*named_variables(experiment.task)}) == 0


@pytest.mark.parametrize("name", sorted(SMALL))
def test_export_of_a_configuration_computes_the_same_from_its_own_weights(name, tmp_path, monkeypatch):
    """`test_export_onnx.py` exports the others."""
    monkeypatch.setattr(compare, "BATCHES", (1, 3))
    experiment = subject(name, tmp_path).experiment(tf.distribute.OneDeviceStrategy("CPU:0"))
    program = Program(experiment.task, experiment.train_source.spec)
    check_functions(experiment, program, examples_of(program, experiment.train_source, weights="float32"))


def test_only_variables_that_are_read_are_exported(tmp_path):
    experiment = subject("digits_gan", tmp_path).experiment(tf.distribute.OneDeviceStrategy("CPU:0"))
    module, _ = Program(experiment.task, experiment.train_source.spec).exported("int8")
    assert {*module.weights} == {path for path in named_variables(experiment.task) if path.startswith("g/")}
    stored = {id(v) for weights in module.weights.values() for v in weights.variables}
    assert {id(v) for v in module.variables} == stored


def test_variable_that_a_function_holds_on_its_own_is_exported_too(tmp_path):
    class Closed(Line):
        def __init__(self):
            super().__init__(rng=Rng.from_seed(0))
            w = self.net.w  # a copy of the task that has other values for its variables doesn't reach this one
            self.scaled = lambda x: x * w[0, 0]

        def serve(self, features):
            return {"predict": Served(lambda batch: {"y": self.scaled(batch["x"])}, {"x": features["x"]})}

    task, path = Closed(), tmp_path / "model"
    write_saved_model(Program(task, point_source().spec), path, weights="float32")
    x = point_source().gather(tf.range(4, dtype=tf.int64))["x"]
    y = tf.saved_model.load(str(path)).signatures["predict"](x=x)["y"]
    np.testing.assert_array_equal(y, x * task.net.w[0, 0])


def test_comparison_of_large_outputs_is_bounded(tmp_path, monkeypatch):
    experiment = subject("digits_mlp", tmp_path).experiment(tf.distribute.OneDeviceStrategy("CPU:0"))
    program, source = Program(experiment.task, experiment.train_source.spec), experiment.train_source
    of_a_row = 4 * (64 + 10 + 10)
    monkeypatch.setattr(compare, "MOST_BYTES", of_a_row * 5)
    assert examples_of(program, source, weights="float32").rows == {"classify": [1, 3]}
    monkeypatch.setattr(compare, "MOST_BYTES", 0)
    assert examples_of(program, source, weights="float32").rows == {"classify": [1]}
    monkeypatch.undo()
    assert examples_of(program, source, weights="int8").rows == {"classify": [1, 3, *[32] * 31]}
