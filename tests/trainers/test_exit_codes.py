"""Who is to blame for what ends a run: each code from outside, and the same one in `result.json`."""

import json

import pytest
from command_lab import gin, write_task

from tests.commands import refused, run

HOOK = """
from trainers.hooks import Hook

@gin.configurable
class Raises(Hook):
    def __call__(self, run):
        {body}
"""
HOOKED = "--gin_param=Trainer.hooks = [@Raises()]"
RAISED = {
    "value": ("raise ValueError('mine')", "ValueError: mine"),
    "type": ("len(3)", "TypeError: object of type 'int' has no len()"),
    "os": ("open('nowhere.txt')", "FileNotFoundError"),
    "key": ("{{}}['nothing']", "KeyError: 'nothing'"),
    "package": ("np.zeros([2]).reshape(3)", "ValueError: cannot reshape array"),
    "python": ("__import__('json').loads('x')", "JSONDecodeError"),
    "tensorflow": ("tf.constant('x', tf.int32)", "TypeError: Cannot convert"),
    "recursion": ("self(run)", "RecursionError"),
    "exit 0": ("raise SystemExit(0)", "error: `sys.exit(0)` was called"),
    "exit 3": ("__import__('sys').exit(3)", "error: `sys.exit(3)` was called"),
    "exit text": ("__import__('sys').exit('done')", "error: `sys.exit('done')` was called"),
    "their own": ("raise type('Mine', (BaseException,), {{}})('mine')", "Mine: mine"),
    "generator": ("raise GeneratorExit", "GeneratorExit"),
}


def result(tmp_path):
    return json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())


@pytest.mark.parametrize("name", RAISED)
def test_what_a_hook_raises_is_the_users(name, tmp_path):
    body, says = RAISED[name]
    done = run(write_task(tmp_path, outside=HOOK.format(body=body.format())), HOOKED, cwd=tmp_path)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "Traceback (most recent call last)" in done.stderr
    assert f"{tmp_path}/mine.py" in done.stderr
    assert says in done.stderr
    assert result(tmp_path)["exit_code"] == 1
    assert result(tmp_path)["reason"] != ""


PLACES = {
    "loss": {"loss": "raise ValueError('mine')"},
    "loss exits": {"loss": "raise SystemExit(0)"},
    "shapes in a loss": {"loss": "return Loss(y @ y)"},
    "constructor": {"init": "raise TypeError('mine')"},
    "constructor exits": {"init": "raise SystemExit(0)"},
    "module exits": {"outside": "raise SystemExit(0)"},
}


@pytest.mark.parametrize("mode", ["train", "evaluate", "sample", "summary"])
@pytest.mark.parametrize("name", PLACES)
def test_what_the_task_raises_is_the_users_in_every_mode(name, mode, tmp_path):
    done = run(write_task(tmp_path, **PLACES[name]), f"--mode={mode}", cwd=tmp_path)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "Traceback (most recent call last)" in done.stderr
    assert f"{tmp_path}/mine.py" in done.stderr


def test_what_tapeloop_refuses_is_configuration_and_names_the_users_line(tmp_path):
    flag = write_task(tmp_path, init="from core.layers import Linear; Linear(0, 3, rng=rng)")
    refused(flag, cwd=tmp_path, exit_code=2, says=["mine.py:"])
