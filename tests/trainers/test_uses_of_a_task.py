"""Samples, texts, translations, reconstructions and served functions are checked like steps before they run."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from core.data import topics
from core.engine.inspect_use import inspected
from core.errors import ConfigurationError
from core.precision import AS_GIVEN
from core.random import Rng
from core.task import Served
from tests.commands import passed, refused, run
from tests.toys import Line, point_source
from tests.trainers.command_lab import write_task
from trainers.export.program import Program
from trainers.hooks import Reconstructions
from trainers.hooks.samples import make_sampler
from trainers.hooks.texts import make_writer

OUTSIDE = tf.Variable(0.5, name="outside")
FIXED = Rng.from_seed(5)
MUTABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)


class Uses(Line):
    """Adds its function's result to every output."""

    def __init__(self, what, *, rng=None):
        super().__init__(rng=Rng.from_seed(0))
        self.what, self.calls, self.kept = what, 0, {}
        self.count = tf.Variable(0.0, trainable=False, name="count")

    def added(self, x, rng):
        return x + 0.0 * self.net.w[0, 0] + tf.cast(self.what(self, rng), x.dtype)

    def sample(self, rng, n):
        return {"image": self.added(tf.zeros([n, 2, 2, 1]), rng)}

    def write(self, rng, prompts, lengths, *, end, vocabulary):
        return tf.cast(self.added(tf.cast(prompts, tf.float32), rng), tf.int32)

    def reconstruct(self, batch):
        image = self.added(batch["x"][:, None, :, None], FIXED)
        return {"image": image, "reconstructed": image}

    def serve(self, features):
        return {"predict": Served(lambda batch: {"y": self.added(batch["x"], FIXED)}, {"x": features["x"]})}


def sample(task, say):
    make_sampler(task, 0, 3, say=say)


def write(task, say):
    make_writer(task, topics("test", 8), ["If"], 0, say=say)


def serve(task, say):
    Program(task, point_source().spec)


def reconstruct(task, say):
    experiment = SimpleNamespace(shown_source=point_source(), seed=0, narrowing=lambda *_: AS_GIVEN)
    averaged, telemetry = SimpleNamespace(task=task), SimpleNamespace(note=say)
    Reconstructions().check(SimpleNamespace(experiment=experiment, averaged=averaged, telemetry=telemetry))


def translate(task, say):
    def translate(x):
        return inspected(task, "`translate`", lambda: task.added(x, FIXED), say=say)

    tf.function(translate, autograph=False).get_concrete_function(tf.TensorSpec([2, 3]))


USES = {
    sample: "`sample`",
    write: "`write`",
    serve: "`predict`, which `Uses` serves,",
    reconstruct: "`reconstruct`",
    translate: "`translate`",
}


def reads_outside(task, rng):
    return OUTSIDE.read_value()


def assigns(task, rng):
    return task.count.assign_add(1.0)


def inserts(task, rng):
    MUTABLE.insert(tf.constant([1], tf.int64), tf.constant([1.0]))
    return 0.0


def draws(task, rng):
    return tf.random.normal([])


def drops(task, rng):
    return tf.nn.dropout(tf.ones([]), 0.5)


def makes_a_variable(task, rng):
    task.kept["late"] = tf.Variable(1.0, name="late")
    return task.kept["late"].read_value()


REFUSED = {
    reads_outside: "reads the variable `outside:0` at test_uses_of_a_task.py:.*keep that as an attribute of the task",
    assigns: "writes the variable `count` at test_uses_of_a_task.py:.*Training alone changes what a task holds",
    inserts: r"writes a table, queue or stack \(`LookupTableInsertV2`\) at test_uses_of_a_task.py:",
    draws: r"draws from TensorFlow's own generator at test_uses_of_a_task.py:.*Draw `rng.normal\(shape\)`",
    drops: "draws from TensorFlow's own generator at test_uses_of_a_task.py:.*`core.layers.Dropout`",
    makes_a_variable: r"made a variable \(`late`\) as it was called",
}


@pytest.mark.parametrize("what", REFUSED, ids=lambda what: what.__name__)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_side_effect_is_refused_by_name_line_and_remedy(use, what):
    with pytest.raises((ConfigurationError, ValueError), match=f"^{USES[use]} {REFUSED[what]}"):
        use(Uses(what), pytest.fail)


def calls_python(task, rng):
    return tf.ensure_shape(tf.numpy_function(np.square, [tf.ones([])], tf.float32), [])


def counts(task, rng):
    task.calls += 1
    return 0.0


def keeps_a_tensor(task, rng):
    task.kept["x"] = tf.ones([]) + task.count
    return 0.0


def draws_by_numpy(task, rng):
    return np.random.normal()


def draws_twice(task, rng):
    return rng.normal([]) - rng.normal([])


def folds_for_nothing(task, rng):
    rng.fold("noise")
    return 0.0


TOLD = {
    calls_python: "calls Python at test_uses_of_a_task.py:",
    counts: "changes `Uses.calls` from 0 to 1: Python runs once, while the call is traced",
    keeps_a_tensor: r"keeps a tensor in `Uses.kept\['x'\]`",
    draws_by_numpy: "draws from NumPy's generator: once",
    draws_twice: "draws the same random numbers twice, at test_uses_of_a_task.py:",
    folds_for_nothing: "folds an rng and uses nothing of it, at test_uses_of_a_task.py:",
}


@pytest.mark.long
@pytest.mark.parametrize("what", TOLD, ids=lambda what: what.__name__)
@pytest.mark.parametrize("use", [sample, write, reconstruct, translate], ids=lambda use: use.__name__)
def test_likely_mistake_is_reported_once(use, what):
    said = []
    use(Uses(what), said.append)
    (text,) = said
    assert text.startswith(USES[use])
    with pytest.raises(ConfigurationError, match=TOLD[what]):
        raise ConfigurationError(text)


@pytest.mark.parametrize("what", [what for what in TOLD if what is not calls_python], ids=lambda what: what.__name__)
def test_likely_mistake_in_a_served_function_is_reported_once(what, capsys):
    serve(Uses(what), None)
    (text,) = capsys.readouterr().out.splitlines()
    with pytest.raises(ConfigurationError, match=TOLD[what]):
        raise ConfigurationError(text)


def test_python_in_a_served_function_is_refused():
    says = "calls Python at test_uses_of_a_task.py:.*An export can't hold Python"
    with pytest.raises(ConfigurationError, match=f"^{USES[serve]} {says}"):
        serve(Uses(calls_python), None)


@pytest.mark.parametrize("use", [sample, write], ids=lambda use: use.__name__)
def test_draws_from_another_rng_than_the_given_one_are_reported(use):
    said = []
    use(Uses(lambda task, rng: FIXED.fold("noise").normal([])), said.append)
    (text,) = said
    assert text.startswith(f"{USES[use]} draws the same random numbers in each call, at test_uses_of_a_task.py:")


def draws_by_its_rng(task, rng):
    return rng.fold("noise").normal([]) + rng.fold("shift").uniform([])


def reads_its_own(task, rng):
    return task.count + tf.reduce_sum(task.net.w)


@pytest.mark.parametrize("what", [draws_by_its_rng, reads_its_own], ids=lambda what: what.__name__)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_right_uses_get_no_hint(use, what, capsys):
    use(Uses(what), pytest.fail)
    assert capsys.readouterr().out == ""


SAMPLES = """return Loss(tf.square(y))

    def sample(self, rng, n):
        return {"image": tf.fill([n, 2, 2, 1], OUTSIDE * self.net.w[0])}
"""


@pytest.mark.long
def test_command_that_samples_with_an_unowned_variable_ends_with_2(tmp_path):
    """The command has trained the task: no step reads that variable."""
    flag = write_task(tmp_path, outside='OUTSIDE = tf.Variable(0.5, name="outside")', loss=SAMPLES)
    assert run(flag, cwd=tmp_path).returncode == 0
    says = ["`sample` reads the variable `outside:0` at mine.py:", "OUTSIDE * self.net.w[0]", "`Task.frozen`"]
    refused(flag, "--mode=sample", cwd=tmp_path, exit_code=2, says=says)
    assert not (tmp_path / "runs" / "mine" / "samples").exists()


def test_command_writes_each_sample_and_a_grid(tmp_path):
    shades = "tf.ones([n, 2, 2, 1]) * tf.reshape(tf.linspace(-1.0, 0.9, n), [n, 1, 1, 1])"
    flag = write_task(tmp_path, loss=SAMPLES.replace("tf.fill([n, 2, 2, 1], OUTSIDE * self.net.w[0])", shades))
    passed(flag, cwd=tmp_path)
    passed(flag, "--mode=sample", "--samples=3", cwd=tmp_path)
    written = {path.name: path for path in (tmp_path / "runs" / "mine" / "samples").iterdir()}
    assert sorted(written) == ["sample-0.png", "sample-1.png", "sample-2.png", "samples.png"]
    images = [tf.io.decode_png(written[f"sample-{i}.png"].read_bytes()).numpy() for i in range(3)]
    assert [image.shape for image in images] == [(2, 2, 1)] * 3
    assert [sorted(set(image.flat)) for image in images] == [[0], [121], [242]]
    grid = tf.io.decode_png(written["samples.png"].read_bytes()).numpy()
    assert grid.shape == (8, 8, 1)
    np.testing.assert_array_equal(grid[[1, 1, 5, 5], [1, 5, 1, 5], 0], [0, 121, 242, 255])
