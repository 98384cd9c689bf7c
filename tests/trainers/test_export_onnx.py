"""ONNX files: rules that tf2onnx lacks, names, refusals, and the functions of all configurations."""

import importlib.util
import sys

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

from core.errors import ConfigurationError
from tests.commands import CONFIGS
from tests.trainers.test_export_parts import SMALL, check_functions, computed
from tools.invariance.subjects import CHANGES, config_names, configured
from trainers.export import alone, compare, folder, onnx_files
from trainers.export.asked import asked
from trainers.export.compare import check_same, computed_alone, differences, examples_of
from trainers.export.program import Program

OFFSETS = np.linspace(-1.0, 1.0, 400, dtype=np.float32)


def traced(fn, **inputs):
    inputs = {name: tf.TensorSpec([None, 400], tf.float32, name) for name in inputs or ("x",)}
    return tf.function(lambda **given: fn(given["x"]), autograph=False).get_concrete_function(**inputs)


def test_operations_without_a_rule_captured_tensors_and_equal_names():
    offsets = tf.constant(OFFSETS)  # outside the graph, which captures it

    def fn(x):
        return {"x": tf.math.erfc(x + offsets), "a": tf.reshape(tf.nn.l2_loss(x), [1]), "n": tf.shape(x)[0]}

    session = onnxruntime.InferenceSession(onnx_files.converted(traced(fn), "f"))
    assert sorted(x.name for x in session.get_outputs()) == ["a", "n", "x_out"]
    for rows in (1, 7):
        x = np.random.RandomState(rows).normal(size=[rows, 400]).astype(np.float32)
        expected = fn(tf.constant(x))
        half, count, erfc = session.run(["a", "n", "x_out"], {"x": x})
        np.testing.assert_allclose(half, expected["a"], rtol=1e-5)
        np.testing.assert_allclose(erfc, expected["x"], atol=1e-6)
        assert count == rows


def test_operations_without_a_counterpart_are_named():
    function = traced(lambda x: {"y": tf.cond(x[0, 0] > 0.0, lambda: tf.math.lgamma(x), lambda: tf.math.bessel_i0(x))})
    with pytest.raises(ConfigurationError, match="ONNX, which has no `XlaCallModule`: use other"):
        onnx_files.converted(
            traced(lambda x: {"y": jax2tf.convert(jnp.sin, polymorphic_shapes=["(rows, 400)"])(x)}), "f"
        )
    with pytest.raises(ConfigurationError, match="f can't be converted to ONNX, which has no `BesselI0`, `Lgamma`"):
        onnx_files.converted(function, "f")


def test_functions_that_do_not_fit_into_a_file(monkeypatch):
    w = tf.Variable(tf.zeros([400]))
    monkeypatch.setattr(onnx_files, "MOST_BYTES", 1599)
    with pytest.raises(ConfigurationError, match=r"f has 1,600 bytes of weights, .* at most 1,599"):
        onnx_files.converted(traced(lambda x: {"y": x + w}), "f")


def test_missing_and_broken_packages(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "trainers.export.onnx_files", None)
    monkeypatch.delattr("trainers.export.onnx_files")
    with pytest.raises(ConfigurationError, match=r"can't import its packages \(.*`pip install -e '.\[onnx\]'`"):
        folder.write("onnx", None, tmp_path, weights="float32")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"`--format=onnx` needs the package `tf2onnx`.*'.\[onnx\]'"):
        asked("onnx", "float32")
    assert not list(tmp_path.iterdir())


def test_weights_of_other_types():
    with pytest.raises(ConfigurationError, match=r"int8, which .* doesn't write for ONNX: give `--weights=float32`"):
        asked("tflite,onnx", "int8")


# These serve what `digits_gan`, `cyclegan`, `digits_edm` or `text_nano` serves; `text_70b` doesn't sample either.
REPEATED = {f"digits_gan_{how}" for how in ("by_batch_size", "generator_on_one_device", "sampling_on_every_replica")}
REPEATED |= {"digits_cyclegan", "digits_flow", "digits_guided"}
REPEATED |= {"text_markov", "text_nano_soap", "text_small", "text_tiny"}
CHANGED = {  # in few steps and blocks; `text_nano` has two blocks
    **CHANGES,
    "digits_ddpm": ("Ddpm.channels = 8", "Ddpm.sample_steps = 2"),
    "digits_edm": ("diffusion_mlp.size = 8", "diffusion_mlp.blocks = 1", "Diffusion.sample_steps = 2"),
    "digits_vit": ("ViTClassifier.size = 8", "ViTClassifier.num_layers = 1", "ViTClassifier.num_heads = 2"),
    "text_70b": (*CHANGES["text_70b"], "LanguageModel.num_layers = 1"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*config_names()} - REPEATED))
def test_configurations_compute_the_same_in_onnx_with_any_number_of_rows(name, tmp_path, monkeypatch):
    """So do the functions of a SavedModel, which `test_export_parts.py` compares for small configurations."""
    monkeypatch.setattr(compare, "BATCHES", (1, 7))
    experiment = configured(CONFIGS / f"{name}.gin", tmp_path, CHANGED.get(name, ())).experiment(
        tf.distribute.OneDeviceStrategy("CPU:0")
    )
    program = Program(experiment.task, experiment.train_source.spec)
    examples = examples_of(program, experiment.train_source, weights="float32")
    path = folder.write("onnx", program, tmp_path, weights="float32")
    if name == "digits_linear":
        made = computed_alone("onnx", path, examples.given, tmp_path / "compared")
    else:
        made = computed(alone.onnx(str(path)), examples.given)
    check_same(differences(examples.expected, made, program.served), program.served, kind="onnx", weights="float32")
    if name not in SMALL:
        check_functions(experiment, program, examples)
