"""`python -m trainers.curvature`: eigenvalues and trace against the whole Hessian, by JAX; the command and refusals."""

import json
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from tests.commands import CONFIGS, passed
from trainers.curvature.__main__ import main
from trainers.curvature.hessian import hessian_product, leading_eigenvalues, trace
from trainers.curvature.plot import drawn

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(20, 3)).astype("float32"), RANDOM.normal(size=(20,)).astype("float32")
W, V = RANDOM.normal(size=(3, 4)).astype("float32"), RANDOM.normal(size=(4,)).astype("float32")


def whole_hessian() -> np.ndarray:
    """Returns the Hessian of a small network's loss, [16, 16]."""

    def loss(flat):
        hidden = jnp.tanh(X @ flat[:12].reshape(3, 4))
        return jnp.mean((hidden @ flat[12:] - Y) ** 2)

    return np.asarray(jax.jit(jax.hessian(loss))(jnp.concatenate([W.ravel(), V])))


def product():
    w, v = tf.Variable(W), tf.Variable(V)

    def loss():
        return tf.reduce_mean(tf.square(tf.linalg.matvec(tf.tanh(tf.matmul(X, w)), v) - Y))

    return hessian_product(loss, [w, v])


@pytest.mark.long
def test_product_is_that_with_the_whole_hessian():
    vector = RANDOM.normal(size=16)
    assert product()(vector) == pytest.approx(whole_hessian() @ vector, rel=1e-4, abs=1e-5)


@pytest.mark.long
def test_eigenvalues_are_the_largest_of_the_whole_hessian():
    exact = np.linalg.eigvalsh(whole_hessian())
    leading = sorted(exact[np.argsort(-np.abs(exact))[:3]], reverse=True)
    found = leading_eigenvalues(product(), 16, 3)
    assert found.values == pytest.approx(leading, rel=1e-4)
    assert np.all(np.abs(found.values - leading) <= found.errors + 1e-4)


def test_matrix_with_few_distinct_eigenvalues_ends_early():
    found = leading_eigenvalues(lambda v: 2.0 * v, 100, 3)
    assert found.values == pytest.approx([2.0])
    assert found.steps == 1


def test_eigenvalues_of_a_large_matrix_are_within_their_bounds():
    exact = np.concatenate([[-8.0, 5.0], np.linspace(-1.0, 3.0, 998)])
    found = leading_eigenvalues(lambda v: exact * v, 1000, 2)
    assert found.values == pytest.approx([5.0, -8.0], rel=1e-3)
    assert found.steps < 150


def test_trace_is_within_its_error():
    found = trace(product(), 16, probes=400)
    assert abs(found.mean - np.trace(whole_hessian())) < 4.0 * found.error
    assert found.error < 0.2 * abs(found.mean)


def test_command_prints_the_curvature_of_a_run(tmp_path, capsys):
    passed(f"--gin_file={CONFIGS / 'digits_mlp.gin'}", "--gin_param=steps = 200", "--workdir=run", cwd=tmp_path)
    assert main([str(tmp_path / "run"), "--examples=64", "--eigenvalues=2", "--probes=5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 200
    assert found["parameters"] == 64 * 128 + 128 + 128 * 10 + 10
    assert len(found["eigenvalues"]) == 2
    assert found["eigenvalues"][0] > 0.0
    plot = tmp_path / "curvature.svg"
    words = [str(tmp_path / "run"), "--examples=64", "--eigenvalues=2", "--probes=5"]
    assert main([*words, f"--plot={plot}"]) == 0
    assert "eigenvalue 1: " in capsys.readouterr().out
    titles = [each.text for each in ElementTree.parse(plot).iter() if each.tag.endswith("title")]
    assert titles == ["eigenvalues: λ1", "eigenvalues: λ2", "trace: tr"]
    assert main([*words, f"--plot={tmp_path}"]) == 2
    assert "`--plot` is " in capsys.readouterr().err


def test_plot_has_a_point_for_each_checkpoint():
    svg = ElementTree.fromstring(drawn([{"step": s, "eigenvalues": [3.0 / s, 1.0], "trace": 9.0} for s in (1, 2, 3)]))
    curves = [each.get("points").split() for each in svg.iter() if each.tag.endswith("polyline")]
    assert [len(points) for points in curves] == [3, 3, 3]
    assert sum(each.tag.endswith("circle") for each in svg.iter()) == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one run's folder"),
        (["nowhere"], "nowhere"),
        (["a", "--examples=0"], "--examples"),
    ],
    ids=["no run", "no folder", "no examples"],
)
def test_wrong_words_are_refused(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
