"""Asynchronous training through the real command: what it makes, beside what one device makes."""

import numpy as np
import pytest

from tests.commands import run
from tests.served.lab import RUNTIME, Served, counted, counting, figures, flags, hashes, values


def test_one_worker_is_the_synchronous_run_to_the_bit_and_each_goes_on_from_the_other(tmp_path):
    asynchronous, whole = tmp_path / "asynchronous", tmp_path / "whole"
    for steps, runtime in ((20, [RUNTIME]), (30, []), (40, [RUNTIME])):
        arguments = flags(f"Trainer.steps = {steps}", workdir=asynchronous, files=runtime)
        with Served(tmp_path, servers=2) as served:
            done = served.train(*arguments) if runtime else run(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert run(*flags("Trainer.steps = 40", workdir=whole), cwd=tmp_path).returncode == 0
    assert hashes(asynchronous) == hashes(whole)
    for name in ("loss", "learning_rate"):
        assert [line[name] for line in figures(asynchronous)] == [line[name] for line in figures(whole)]
    assert figures(asynchronous, "eval")[-1:] == figures(whole, "eval")
    assert all(line["staleness_max"] == 0.0 for line in figures(asynchronous) if line["step"] != 30)


def test_two_workers_take_each_step_once(tmp_path):
    with Served(tmp_path, workers=2) as served:
        done = served.train(*counting(tmp_path, "Trainer.steps = 300"))
    assert done.returncode == 0, done.stderr
    assert max(line["staleness_max"] for line in figures(tmp_path / "run")) > 0.0  # the two did work side by side
    assert counted(tmp_path / "run") == {"w": 300.0, "step": 300}


@pytest.mark.long
def test_phases_of_a_gan_see_each_other_as_in_the_synchronous_run(tmp_path):
    asynchronous, whole = tmp_path / "asynchronous", tmp_path / "whole"
    bindings = ["Trainer.steps = 6", "Gan.d_steps = 2", "Trainer.microbatches = 2"]
    with Served(tmp_path, servers=2) as served:
        arguments = flags(*bindings, name="digits_gan", workdir=asynchronous, files=[RUNTIME])
        done = served.train(*arguments, timeout=400)
    assert done.returncode == 0, done.stderr
    done = run(*flags(*bindings, name="digits_gan", workdir=whole), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, expected = values(asynchronous), values(whole)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=0.0, atol=2e-6, err_msg=path)
