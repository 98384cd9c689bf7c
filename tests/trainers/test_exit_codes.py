"""Exit codes by the cause of an error, and the messages about full disks and full memory."""

import signal
import subprocess

import gin
import numpy as np
import pytest
import tensorflow as tf

from core import checkpoint
from core.errors import TapeloopError
from tests.commands import refused, run
from tests.trainers.command_lab import run_into_pipes, write_task
from trainers.errors.exit_report import exit_code_of, reason_of, report
from trainers.modes import resume_check

HOOK = """
from trainers.hooks import Hook

@gin.configurable
class Raises(Hook):
    def __call__(self, run):
        {body}
"""
HOOKED = "--gin_param=Trainer.hooks = [@Raises()]"
RAISED = {  # and more by the command, in `test_exit_table.py`
    "package": ("np.zeros([2]).reshape(3)", "ValueError: cannot reshape array"),
    "python": ("__import__('json').loads('x')", "JSONDecodeError"),
    "tensorflow": ("tf.constant('x', tf.int32)", "TypeError: Cannot convert"),
    "exit 3": ("__import__('sys').exit(3)", "error: `sys.exit(3)` was called"),
    "generator": ("raise GeneratorExit", "GeneratorExit"),
    "assertion": ("assert not 'mine'", "AssertionError"),
}


@pytest.mark.parametrize("name", RAISED)
def test_error_of_a_users_line_is_the_users(name, tmp_path, capsys):
    body, says = RAISED[name]
    with pytest.raises(BaseException) as caught:
        exec(compile(body, f"{tmp_path}/mine.py", "exec"), {"__name__": "mine", "np": np, "tf": tf})
    assert report(caught.value, verbose=False) == exit_code_of(caught.value) == 1
    stderr = capsys.readouterr().err
    assert "Traceback (most recent call last)" in stderr
    assert f"{tmp_path}/mine.py" in stderr
    assert says in stderr
    assert says.removeprefix("error: ") in reason_of(caught.value)


def test_full_disk_in_a_configurable_is_no_room(capsys):
    @gin.configurable(module="exit_codes")
    def inner():
        open("/dev/full", "w").write("x" * 10**6)  # noqa: SIM115

    @gin.configurable(module="exit_codes")
    def outer():
        inner()

    with pytest.raises(OSError, match="No space left") as caught:
        outer()
    assert report(caught.value, verbose=False) == 8
    assert capsys.readouterr().err.startswith("error: a file can't be written: No space left on device.")


def test_shape_error_in_a_loss_is_the_users(tmp_path):
    done = run(write_task(tmp_path, loss="return Loss(y @ y)"), cwd=tmp_path)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "Traceback (most recent call last)" in done.stderr
    assert f"{tmp_path}/mine.py" in done.stderr
    assert done.stderr.count('  File "') == done.stderr.count("/mine.py") == 1
    assert "lines of Tapeloop, TensorFlow and others are hidden: `--verbose` shows them" in done.stderr


def test_verbose_shows_a_whole_traceback(tmp_path, capsys):
    with pytest.raises(KeyError) as caught:
        exec(compile("tf.nest.map_structure({}.__getitem__, [1])", f"{tmp_path}/mine.py", "exec"), {"tf": tf})
    for verbose in (False, True):
        report(caught.value, verbose=verbose)
        assert ("/tensorflow/" in capsys.readouterr().err) == verbose


ON_REPLICAS = """context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync == 2:
            raise {error}
        return Loss(tf.square(y))"""


@pytest.mark.parametrize(
    ("error", "says"), [("ValueError('mine')", "ValueError: mine"), ("SystemExit(0)", "`sys.exit(0)` was called")]
)
def test_error_on_one_of_several_replicas_is_the_users(error, says, tmp_path):
    flag = write_task(tmp_path, loss=ON_REPLICAS.format(error=error))
    replicas = ("--gin_param=Experiment.strategy = @mirrored()", "--gin_param=mirrored.replicas = 2")
    done = run(flag, *replicas, cwd=tmp_path)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert says in done.stderr
    assert f"{tmp_path}/mine.py" in done.stderr


# From here on no file of the process can grow, as on a full disk.
FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))"
FILES = {
    "figures": (f"{FULL}; run.report('eval', {{{{'x': 1.0}}}})", ["metrics.jsonl` can't be written: File too large"]),
    "a picture": (
        f"{FULL}; from core.disk import write_whole; write_whole({{{{run.workdir.path / 'x.png': b'x' * 20}}}})",
        ["x.png` can't be written: File too large"],
    ),
    "a file of their own": ("open('/dev/full', 'w').write('x' * 10**6)", ["No space left on device", "mine.py:"]),
    "TensorFlow's": ("tf.io.write_file('/dev/full', 'x' * 10**6)", ["`/dev/full` can't be written"]),
}


def first_and_the_long(names):
    """Marks all but the first of these as long."""
    first, *others = names
    return [first, *(pytest.param(name, marks=pytest.mark.long) for name in others)]


@pytest.mark.parametrize("name", first_and_the_long(FILES))
def test_a_full_disk_names_the_file(name, tmp_path):
    body, says = FILES[name]
    done = run_into_pipes(write_task(tmp_path, outside=HOOK.format(body=body.format())), HOOKED, cwd=tmp_path)
    assert done.returncode == 8, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    for text in says:
        assert text in done.stderr.split("\n")[0]


def test_a_full_disk_does_not_mask_the_first_error(tmp_path):
    body = f"{FULL}; from core.errors import NotFiniteError; raise NotFiniteError('the first')"
    done = run_into_pipes(write_task(tmp_path, outside=HOOK.format(body=body)), HOOKED, cwd=tmp_path)
    assert done.returncode == 3, (done.returncode, done.stderr)
    first, second = done.stderr.strip().split("\n")
    assert first == "error: the first See docs/troubleshooting.md#a-loss-that-isnt-finite."
    assert second.startswith("error, after that: `")
    assert "result.json` can't be written: File too large" in second
    assert not list((tmp_path / "runs" / "mine").glob("*.tmp"))


# From here on this process gets 2 GiB more and no further byte, as on a machine whose memory is used up.
SHORT = (
    HOOK
    + """
    def check(self, run):
        import resource
        has = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + 2**31, resource.RLIM_INFINITY))
"""
)
TENSOR = "return Loss(tf.square(y) + 0.0 * tf.reduce_sum(tf.random.stateless_normal([tf.shape(y)[0], 2**30], [0, 0])))"
NOISE = "tf.random.stateless_normal([2**26 * tf.shape(batch['x'])[0], 2**14], [0, 0])"
TOO_MUCH = f"return Loss(tf.square(y) + tf.reduce_sum({NOISE}))"
EVALUATE = "    def evaluate(self, batch):\n        y = self.net(batch['x'])\n"
MEMORY = {  # the quick one first: for room for a tensor TensorFlow waits up to 40 seconds
    "python": ({"outside": HOOK.format(body="bytearray(2**60)")}, ["while training", "Python can't allocate memory"]),
    "a loss": (
        {"loss": TOO_MUCH},
        ["while training", "shape [268435456,16384] and type float", "16 TiB", "Trainer.microbatches"],
    ),
    "a machine that is used up": (
        {"outside": SHORT.format(body="pass"), "loss": TENSOR},
        ["while training", "shape [4,1073741824] and type float", "takes 16 GiB", "more than is free on `CPU:0`"],
    ),
    "an evaluation": (
        {"loss": f"return Loss(tf.square(y))\n\n{EVALUATE}        {TOO_MUCH}"},
        ["while evaluating", "shape [268435456,16384] and type float", "Lower `Evaluator.global_batch_size`"],
    ),
    "a constructor": ({"init": "tf.zeros([2**40])"}, ["while making the task", "shape [1099511627776]", "4 TiB"]),
}


@pytest.mark.waits
@pytest.mark.parametrize("name", first_and_the_long(MEMORY))
def test_out_of_memory_names_what_there_was_no_room_for(name, tmp_path):
    parts, says = MEMORY[name]
    flags = [HOOKED] if "outside" in parts else []
    if name == "an evaluation":
        flags += ["--gin_param=Experiment.eval_source = @numbers()", "--gin_param=Evaluator.global_batch_size = 4"]
    refused(write_task(tmp_path, **parts), *flags, cwd=tmp_path, exit_code=8, says=["out of memory", *says])


def test_memory_error_while_restoring_blames_no_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, {"w": tf.Variable(1.0)}, step=1, examples=1, config_hash="c")
    manifest = checkpoint.newest(tmp_path, warn=pytest.fail)
    text = "OOM when allocating tensor with shape[3,5] and type double on /job:x/device:GPU:0 by allocator GPU_0_bfc"
    for error in (MemoryError(), tf.errors.ResourceExhaustedError(None, None, text)):
        monkeypatch.setattr(tf.train.Checkpoint, "read", raising(error))
        with pytest.raises(type(error)) as caught:
            checkpoint.restore(manifest, {"w": tf.Variable(2.0)})
        assert exit_code_of(caught.value) == 8
        assert reason_of(caught.value).startswith("out of memory while restoring or saving a checkpoint: ")
    assert "shape [3,5] and type double takes 120 bytes, more than is free on `GPU:0`" in reason_of(caught.value)


@pytest.mark.parametrize(("ended", "code"), [(1, 1), (4, 4), (8, 8), (-signal.SIGABRT, 134), (-signal.SIGKILL, 137)])
def test_resume_check_ends_as_its_run_does(ended, code, tmp_path, monkeypatch):
    done = subprocess.CompletedProcess([], ended, "", "error: torn\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(TapeloopError, match=f"a run ended with {ended} instead of 0: torn") as caught:
        resume_check._train([], tmp_path)
    assert exit_code_of(caught.value) == code


def raising(error):
    def call(*_, **__):
        raise error

    return call
