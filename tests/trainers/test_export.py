"""`--mode=export`: the files of an export, its use with TensorFlow alone, and refusals."""

import json
import shutil

import pytest
import tensorflow as tf

from core import checkpoint
from tests.commands import CONFIGS, passed, refused, run
from tests.trainers.command_lab import write_task

MLP = (f"--gin_file={CONFIGS / 'digits_mlp.gin'}", "--workdir=run")
SHORT = [f"--gin_param=Trainer.{each} = 10" for each in ("steps", "chunk_steps", "log_every")]
SHORT += ["--gin_param=Evaluator.global_batch_size = 90"]  # which an export has no use for
EXPORT = "--mode=export"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of ten steps, and its export for TensorFlow Lite, compared in a fresh process."""
    folder = tmp_path_factory.mktemp("trained")
    for flags in ((), (EXPORT, "--format=tflite")):
        passed(*MLP, *SHORT, *flags, cwd=folder)
    assert not list((folder / "run" / "export").glob(".*"))
    return folder


def test_comparison_is_written_down(trained):
    """`docs/use-a-run.md` makes both formats in one export."""
    folder = trained / "run" / "export" / "step-000000010"
    assert sorted(path.name for path in folder.iterdir()) == ["export.json", "model.tflite"]
    content = json.loads((folder / "export.json").read_text())
    assert content["step"] == 10
    assert content["functions"]["classify"]["inputs"] == {"image": {"dtype": "float32", "shape": [None, 8, 8, 1]}}
    compared = {"classify": {"examples": 36, "batches": [1, 3, 32]}}
    assert content["compared"] == {"source": "digits", "functions": compared}
    assert [*content["formats"]] == ["tflite"]
    found = content["formats"]["tflite"]["differences"]["classify"]
    assert found["logits"]["same"] == 1.0
    assert found["logits"]["largest"] < 1e-5


def test_existing_export_stays(trained):
    refused(*MLP, *SHORT, EXPORT, cwd=trained, exit_code=2, says=["step-000000010` exists", "--export_dir"])


def test_beginning_of_a_run_may_be_gone_and_other_configurations_are_warned_of(trained):
    gone = ("--gin_param=Experiment.start_from = @checkpoint()", "--gin_param=checkpoint.path = 'gone'")
    same = run(*MLP, *SHORT, *gone, EXPORT, cwd=trained)
    assert (same.returncode, "Warning" in same.stdout, "exists" in same.stderr) == (2, False, True)
    other = run(*MLP, *SHORT, EXPORT, "--gin_param=MlpClassifier.dropout = 0.25", cwd=trained)
    assert "step-000000010` belongs to a run with another configuration:\n- MlpClassifier.dropout" in other.stdout
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
THE_SAME = 'return {"y": 2.0 * self.net(batch["x"])}'
REFUSED = {  # the body of `double`, the exit code, and words of the error
    "chance": (
        'return {"y": self.net(batch["x"]) + tf.random.uniform([])}',
        2,
        ["`double`, which `Mine` serves, draws from TensorFlow's own generator at mine.py:", "it is handed none"],
    ),
    "not finite": ('return {"y": self.net(batch["x"]) / 0.0}', 3, ["`y` of `double`", "isn't finite"]),
    "no names": ('return self.net(batch["x"])', 2, ["`double`, which `Mine` serves", "names of letters, digits and _"]),
    "an input that it hasn't": ('return {"y": self.net(batch["z"])}', 2, ["reads `z`", "its inputs are `x`"]),
    "a disk that is full": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))\n"
        '        return {"y": self.net(batch["x"])}',
        8,
        ["File too large", "same command"],
    ),
}


def write_served(folder, **parts):
    """Writes the task, with an optimizer that has slots."""
    flag = write_task(folder, outside="from core.task import Served", **parts)
    with open(folder / "mine.gin", "a") as file:
        file.write("sgd.momentum = 0.9\n")
    return flag


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A folder with a run of a task that serves nothing yet."""
    folder = tmp_path_factory.mktemp("mine")
    assert run(write_served(folder), cwd=folder).returncode == 0
    return folder


@pytest.mark.long
def test_custom_task_is_exported_and_used_by_tensorflow(mine, tmp_path):
    """The comparison has loaded it in a process that can't import this project."""
    shutil.copytree(mine, tmp_path, dirs_exist_ok=True)
    passed(write_served(tmp_path, loss=SERVES.format(body=THE_SAME, more=KINDS)), EXPORT, cwd=tmp_path)
    (folder,) = (tmp_path / "runs" / "mine" / "export").iterdir()
    assert folder.name == "step-000000020"
    model = tf.saved_model.load(str(folder / "saved_model"))
    saved = checkpoint.newest(tmp_path / "runs" / "mine" / "checkpoints", warn=pytest.fail).variables
    for name in ("double", "serving_default"):
        w = tf.Variable(model.signatures[name](x=tf.eye(3))["y"] / 2.0)
        assert checkpoint.manifest.described(w).sha256 == saved["task/net/w"].sha256
    x = tf.constant([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    kinds = model.signatures["kinds"](half=tf.cast(x, tf.bfloat16), text=tf.constant(["1", "-2"]))
    assert kinds["half"].dtype == tf.bfloat16
    assert kinds["text"].numpy().tolist() == [[b"2", b"3", b"4"], [b"-2"] * 3]
    paths = [name for name, _ in tf.train.list_variables(str(folder / "saved_model" / "variables" / "variables"))]
    assert len([path for path in paths if path.endswith("VARIABLE_VALUE")]) == 2  # no slots


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_functions_are_refused(name, mine, tmp_path):
    body, code, says = REFUSED[name]
    shutil.copytree(mine, tmp_path, dirs_exist_ok=True)
    flag = write_served(tmp_path, loss=SERVES.format(body=body, more=""))
    refused(flag, EXPORT, cwd=tmp_path, exit_code=code, says=says)
    made = tmp_path / "runs" / "mine" / "export"
    assert not made.exists() or not list(made.iterdir())


def test_task_that_serves_nothing(mine):
    says = ["`Mine` can't be exported", "def serve(self, features):", "from core.task import Served"]
    refused("--gin_file=mine.gin", EXPORT, cwd=mine, exit_code=2, says=says)
