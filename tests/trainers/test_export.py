"""`--mode=export` from outside: what lies in the folder, that it works without this project, and what is refused."""

import json
import subprocess
import sys

import numpy as np
import pytest
from command_lab import write_task

from tests.commands import CONFIGS, refused, run

MLP = (f"--gin_file={CONFIGS / 'digits_mlp.gin'}", "--workdir=run")
SHORT = ("--gin_param=Trainer.steps = 100", "--gin_param=Evaluator.global_batch_size = 90")
EXPORT = "--mode=export"

# Plain TensorFlow, in a process that finds none of this project.
SERVE = """
import sys
import numpy as np
import tensorflow as tf
for name in ("core", "models", "trainers"):
    assert not any(module == name or module.startswith(name + ".") for module in sys.modules), name
model = tf.saved_model.load("run/export/step-000000100/saved_model")
paths = [name for name, _ in tf.train.list_variables("run/export/step-000000100/saved_model/variables/variables")]
image = np.load("image.npy")
classify = model.signatures["classify"](image=tf.constant(image))
default = model.signatures["serving_default"](image=tf.constant(image))
assert np.array_equal(classify["logits"], default["logits"])
np.savez("served.npz", paths=paths, **classify)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of a hundred steps, exported in both formats."""
    folder = tmp_path_factory.mktemp("trained")
    for flags in ((), (EXPORT, "--format=saved_model,tflite")):
        done = run(*MLP, *SHORT, *flags, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_an_export_is_used_by_plain_tensorflow(trained):
    from core.data import digits

    image = digits(split="test").gather(np.arange(5))["image"].numpy()
    np.save(trained / "image.npy", image)
    subprocess.run([sys.executable, "-I", "-c", SERVE], cwd=trained, check=True, timeout=300)
    served = np.load(trained / "served.npz")
    assert served["probabilities"].shape == (5, 10)
    np.testing.assert_allclose(served["probabilities"].sum(-1), 1.0, atol=1e-6)
    values = [path for path in served["paths"] if path.endswith("VARIABLE_VALUE")]
    assert len(values) == 4  # two matrices and two biases: no slots of the optimizer


def test_what_was_compared_is_written_down(trained):
    folder = trained / "run" / "export" / "step-000000100"
    assert sorted(path.name for path in folder.iterdir()) == ["export.json", "model.tflite", "saved_model"]
    content = json.loads((folder / "export.json").read_text())
    assert content["step"] == 100
    assert content["functions"]["classify"]["inputs"] == {"image": {"dtype": "float32", "shape": [None, 8, 8, 1]}}
    compared = {"classify": {"examples": 36, "batches": [1, 3, 32]}}
    assert content["compared"] == {"source": "digits", "functions": compared}
    for kind in ("saved_model", "tflite"):
        found = content["formats"][kind]["differences"]["classify"]
        assert found["logits"]["same"] == 1.0
        assert found["logits"]["largest"] < 1e-5
    assert not list((trained / "run" / "export").glob(".*"))


def test_an_export_that_is_there_stays(trained):
    refused(*MLP, *SHORT, EXPORT, cwd=trained, exit_code=2, says=["step-000000100` exists", "--export_dir"])


def test_what_a_run_began_with_may_be_gone_and_another_configuration_is_warned_of(trained):
    gone = ("--gin_param=Experiment.start_from = @checkpoint()", "--gin_param=checkpoint.path = 'gone'")
    same = run(*MLP, *SHORT, *gone, EXPORT, cwd=trained)
    assert (same.returncode, "Warning" in same.stdout, "exists" in same.stderr) == (2, False, True)
    other = run(*MLP, *SHORT, EXPORT, "--gin_param=MlpClassifier.dropout = 0.25", cwd=trained)
    assert "step-000000100` is of a run of another configuration:\n- MlpClassifier.dropout" in other.stdout
    assert "+ MlpClassifier.dropout = 0.25" in other.stdout


def test_no_checkpoint(tmp_path):
    refused(*MLP, EXPORT, cwd=tmp_path, exit_code=5, says=["there is no checkpoint", "--mode=train"])


SERVES = """return Loss(tf.square(y))

    def serve(self, features):
        return {{"double": Served(self.double, {{"x": features["x"]}}, scores=["scores"]){more}}}

    def double(self, batch):
        {body}

    def kinds(self, batch):
        x = tf.cast(batch["half"], tf.float32) + tf.strings.to_number(batch["text"])[:, None]
        whole = tf.cast(x, tf.int64)
        return {{"half": tf.cast(x, tf.bfloat16), "text": tf.as_string(whole), "whole": whole}}
"""
KINDS = """, "kinds": Served(
            self.kinds,
            {"half": tf.TensorSpec([None, 3], tf.bfloat16), "text": tf.TensorSpec([None], tf.string)},
            examples=lambda b: {"half": tf.cast(b["x"], tf.bfloat16), "text": tf.as_string(b["x"][:, 0])},
        )"""
BODIES = {
    "the same": ('return {"y": 2.0 * self.net(batch["x"])}', 0, []),
    "chance": (
        'return {"y": self.net(batch["x"]) + tf.random.uniform([])}',
        5,
        ["`y` of `double`", "random numbers", "Nothing was put in place"],
    ),
    "not finite": ('return {"y": self.net(batch["x"]) / 0.0}', 3, ["`y` of `double`", "isn't finite"]),
    "no names": ('return self.net(batch["x"])', 2, ["`double`, which `Mine` serves", "tensors by names"]),
    "an input that it hasn't": ('return {"y": self.net(batch["z"])}', 2, ["reads `z`", "its inputs are `x`"]),
    "a disk that is full": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))\n"
        '        return {"y": self.net(batch["x"])}',
        8,
        ["File too large", "same command"],
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_task_of_ones_own(name, tmp_path):
    body, code, says = BODIES[name]
    more = "" if code else KINDS
    flag = write_task(tmp_path, loss=SERVES.format(body=body, more=more), outside="from core.task import Served")
    assert run(flag, cwd=tmp_path).returncode == 0
    if code:
        refused(flag, EXPORT, cwd=tmp_path, exit_code=code, says=says)
    else:
        assert run(flag, EXPORT, cwd=tmp_path).returncode == 0
    made = tmp_path / "runs" / "mine" / "export"
    assert ([path.name for path in made.iterdir()] if made.exists() else []) == ([] if code else ["step-000000020"])


def test_a_task_that_serves_nothing(tmp_path):
    flag = write_task(tmp_path)
    assert run(flag, cwd=tmp_path).returncode == 0
    says = ["`Mine` can't be exported", "def serve(self, features):", "from core.task import Served"]
    refused(flag, EXPORT, cwd=tmp_path, exit_code=2, says=says)
