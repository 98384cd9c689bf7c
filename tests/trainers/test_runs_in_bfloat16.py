"""Runs in `Trainer.precision`: resume, evaluation, samples, exports, and bad values."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from core.graphs import everything
from core.optimizers import sgd
from core.precision import Precision
from core.random import Rng
from core.task import Loss, Served
from core.testing import on_virtual_cpus
from tests.commands import CONFIGS, fork_server, launch, passed, refused
from tests.products import product_dtype
from tests.toys import Line
from tests.trainers.hooks.hooks_lab import Maker
from tests.trainers.trainer_lab import HELD_OUT, POINTS, Small, hashes, make, newest, train
from trainers.evaluation.evaluator import Evaluator
from trainers.export.program import Program
from trainers.hooks import Norms
from trainers.hooks.samples import make_sampler

NARROW = {"precision": "bfloat16", "eval_source": HELD_OUT, "microbatches": 2}


@pytest.mark.parametrize("local", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "local steps"])
def test_run_resumes_to_the_bit(local, tmp_path):
    given = {**NARROW, "checkpoint_every": 20}
    if local:
        given |= {"strategy": on_virtual_cpus(2), "local_steps": 5, "outer": sgd(0.9, momentum=0.5)}
    whole = make(tmp_path, "whole", **given)
    train(whole)
    resumed = make(tmp_path, "resumed", **given)
    resumed.state.restore(newest(whole, up_to=20))
    train(resumed)
    assert hashes(resumed) == hashes(whole)


@pytest.mark.long
def test_evaluation_computes_in_the_dtype_and_sums_in_float32(tmp_path):
    trainer = make(tmp_path, task=Small, **NARROW)
    task, examples = trainer.experiment.task, HELD_OUT.gather(tf.range(len(HELD_OUT), dtype=tf.int64))
    found = Evaluator(trainer.experiment, HELD_OUT).evaluate()["loss"]
    narrow = task.evaluate({key: tf.cast(x, tf.bfloat16) for key, x in examples.items()}).per_example
    assert found == pytest.approx(float(tf.reduce_mean(tf.cast(narrow, tf.float32))), rel=1e-6)
    wide = make(tmp_path, task=Small, **{**NARROW, "precision": {"net": "bfloat16"}})
    exact = float(tf.reduce_mean(wide.experiment.task.evaluate(examples).per_example))
    assert Evaluator(wide.experiment, HELD_OUT).evaluate()["loss"] == pytest.approx(exact, rel=1e-6)


def test_samples_are_drawn_in_the_dtype_and_returned_in_float32():
    seen = []

    class Draws(Maker):
        def sample(self, rng, n):
            image = rng.rows.normal(n, 4, 4, 1)
            seen.append(image.dtype)
            return {"image": image}

    task = Draws(rng=None)
    image = make_sampler(task, 0, 3, narrowing=Precision("bfloat16").narrowing("sample", {}))()["image"]
    assert (seen, image.dtype) == ([tf.bfloat16], tf.float32)
    wide = make_sampler(task, 0, 3)()["image"]
    assert np.array_equal(image, tf.cast(tf.cast(wide, tf.bfloat16), tf.float32))


class Serves(Line):
    def serve(self, features):
        return {"predict": Served(lambda batch: {"y": self.net(batch["x"])}, {"x": features["x"]})}


@pytest.mark.parametrize(
    ("precision", "inner"),
    [("bfloat16", "bfloat16"), ({"net": "float16"}, "float32"), ({"serve": "float16"}, "float16")],
)
def test_exports_keep_float32_signatures(precision, inner):
    program = Program(Serves(rng=Rng.from_seed(0)), POINTS.spec, Precision(precision))
    _, functions = program.exported("float32")
    for function in (program.functions["predict"], functions["predict"]):
        assert function.structured_outputs["y"].dtype == tf.float32
        products = [op for op in everything(function.graph.get_operations()) if op.type == "MatMul"]
        assert {product_dtype(op).name for op in products} == {inner}


@pytest.mark.long
def test_norms_are_those_of_the_narrow_step(tmp_path):
    hook = Norms(every=10)
    trainer = make(tmp_path, hooks=[hook], **{**NARROW, "steps": 10})
    train(trainer)
    step = hook._watch._step
    assert [plan.narrowing.dtype for plan in step.plans] == [tf.bfloat16]


class Mixes(Line):
    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(batch["x"] * self.net.w[:, 0], 1) + tf.reduce_sum(self.net.b))


def test_mixed_dtypes_are_refused_with_their_line(tmp_path):
    with pytest.raises(Exception, match=r"phase `net` computes in bfloat16.*mixes that with float32 at .*self.net.w"):
        make(tmp_path, task=Mixes, precision="bfloat16")


MLP, LINEAR = (f"--gin_file={CONFIGS / name}.gin" for name in ("digits_mlp", "digits_linear"))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("'half'", ["`Trainer.precision` is 'half'", "'bfloat16'"]),
        ("'int8'", ["`Trainer.precision` is 'int8'"]),
        ("{'nett': 'bfloat16'}", ["names `nett`", "Did you mean"]),
    ],
)
def test_bad_values_are_refused_before_the_first_step(tmp_path, value, says):
    refused(MLP, f"--gin_param=Trainer.precision = {value}", cwd=tmp_path, exit_code=2, says=says)


@pytest.mark.long
def test_every_mode_computes_in_the_precision(tmp_path):
    steps = ("--gin_param=Trainer.steps = 20", "--gin_param=Trainer.evaluate_every = 20")
    flags = (LINEAR, *steps, "--gin_param=Trainer.checkpoint_every = 10", "--workdir=run")
    narrow = (*flags, "--gin_param=Trainer.precision = 'bfloat16'")
    passed(*narrow, cwd=tmp_path)
    assert "bfloat16" in (tmp_path / "run" / "config" / "operative.gin").read_text()
    refused(*flags, "--gin_param=Trainer.steps = 40", cwd=tmp_path, exit_code=2, says=["Trainer.precision"])
    assert "Warning" not in passed(*narrow, "--mode=evaluate", cwd=tmp_path).stdout
    passed(*narrow, "--mode=evaluate_continuously", cwd=tmp_path)
    lines = ((tmp_path / "run" / f"{name}.jsonl").read_text().splitlines() for name in ("metrics", "evaluations"))
    own, other = ({x["step"]: x["loss"] for x in map(json.loads, found) if x["split"] == "eval"} for found in lines)
    assert other[20] == own[20]
    assert "in bfloat16" in passed(*narrow, "--mode=summary", cwd=tmp_path).stdout
    estimated = passed(*narrow, "--mode=dry_run", "--gin_param=DryRun.peak = 1e12", cwd=tmp_path).stdout
    assert "computed in bfloat16" in " ".join(estimated.split())  # the title of a table, on two lines
    passed(*narrow, "--mode=export", cwd=tmp_path)
    eager = [flag for flag in narrow if flag != "--workdir=run"]
    passed(*eager, "--eager", "--workdir=eager", cwd=tmp_path)


@pytest.mark.long
def test_parameter_servers_train_in_the_precision(tmp_path):
    servers = f"--gin_file={CONFIGS / 'runtime' / 'parameter_server.gin'}"
    flags = (MLP, servers, "--gin_param=Trainer.steps = 20", "--gin_param=Trainer.evaluate_every = 20", "--workdir=run")
    narrow = "--gin_param=Trainer.precision = 'bfloat16'"
    passed("--workers=2", "--ps=1", "--", *flags, narrow, cwd=tmp_path, run=launch)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["precision"] == "bfloat16"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]["loss"] < 2.25


@pytest.mark.long
def test_measurements_are_of_the_precision(tmp_path):
    flags = (LINEAR, "--gin_param=Trainer.precision = 'bfloat16'")
    fewer_trials = ("steps = 20", "chunk_steps = 20", "log_every = 20", "compile = 'off'")
    flags += ("--workdir=run", *(f"--gin_param=Trainer.{text}" for text in fewer_trials))
    short = {"module": "tests.short_measures", "arguments": {}}
    shortly = functools.partial(fork_server().run, before=short)
    passed(*flags, "--mode=diagnose", cwd=tmp_path, run=shortly)
    assert json.loads((tmp_path / "run" / "diagnosis.json").read_text())["verdict"]["sentence"]
    passed(*flags, "--mode=tune", cwd=tmp_path, run=shortly)
    found = json.loads((tmp_path / "run" / "tune.json").read_text())
    assert found["complete"]
    assert "void" not in {row["verdict"] for row in found["tried"]}
