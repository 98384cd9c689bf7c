"""A command in a fork behaves as in a separate process, and the fork server leaves nothing behind."""

import os
import re
import subprocess
import sys

import pytest

from core.parallel.mesh import mesh
from core.parallel.mesh.devices import make_mesh
from tests.commands import CHECKOUT, ForkServer, environment, fork_server, run, run_process
from tests.pages import bash

ENDINGS = {
    "fails": "raise RuntimeError('no')",
    "leaves": "import sys; sys.exit('no')",
    "leaves at once": "import os; print('flushed', flush=True); print('lost'); os._exit(7)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "cleans up": "import atexit; atexit.register(print, 'last'); raise ValueError('no')",
}


@pytest.mark.parametrize(
    "name",
    [name if name == "fails" else pytest.param(name, marks=pytest.mark.long) for name in ENDINGS],
)
def test_fork_ends_as_a_process_does(name, tmp_path):
    (tmp_path / "mine.py").write_text(ENDINGS[name])
    (tmp_path / "mine.gin").write_text("import mine\nTrainer.stps = 3\n")
    forked, real = (way("--gin_file=mine.gin", cwd=tmp_path) for way in (run, run_process))
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert last_line(forked.stderr) == last_line(real.stderr)  # a traceback starts elsewhere


def last_line(stderr):
    """Returns the last line that isn't from TensorFlow's import, which a fork lacks."""
    return [x for x in stderr.splitlines() if not re.match(r"WARNING: All log messages|[IWE]\d{4} ", x)][-1:]


def test_command_that_takes_too_long_is_ended(tmp_path):
    (tmp_path / "mine.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    (tmp_path / "mine.gin").write_text("import mine\n")
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run("--gin_file=mine.gin", cwd=tmp_path, timeout=2.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(late.value.output), 0)
    assert run("--mode=trian", cwd=tmp_path).returncode == 2


def test_other_settings_of_tensorflow_have_a_process_of_their_own(tmp_path, monkeypatch):
    fork_server()
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" else "0")
    monkeypatch.setattr(ForkServer, "run", None)
    assert run("--mode=trian", cwd=tmp_path).returncode == 2


def test_other_variables_reach_a_fork(tmp_path, monkeypatch):
    """A test may have imported MLflow since, which sets some: hundreds of commands would become processes."""
    (tmp_path / "mine.py").write_text("import os; print(os.environ.get('MINE'), 'TAPELOOP_OPEN_PORTS' in os.environ)")
    (tmp_path / "mine.gin").write_text("import mine\n")
    monkeypatch.setattr("tests.commands.run_process", None)
    assert run("--gin_file=mine.gin", cwd=tmp_path).stdout == "None True\n"
    monkeypatch.setenv("MINE", "now")
    monkeypatch.delenv("TAPELOOP_OPEN_PORTS")
    assert run("--gin_file=mine.gin", cwd=tmp_path).stdout == "now False\n"


def test_mesh_of_this_process_is_no_other_setting(monkeypatch):
    monkeypatch.delenv("DTENSOR_USE_ALL_TO_ALL_RELAYOUT", raising=False)
    before = environment()
    make_mesh(mesh(batch=1))
    assert environment() == before


def test_fork_server_ends_with_its_client():
    serve = [sys.executable, "-c", "from tests.fork_server import serve; serve()"]  # without TensorFlow's import
    with subprocess.Popen(serve, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as server:
        server.stdin.write(b"{}\n")
        pid, code = (int(server.stdout.readline()) for _ in range(2))
        assert (pid != server.pid, code) == (True, 0)
        server.stdin.close()
        assert server.wait(60) == 0


def test_python_of_a_shell_is_forwarded_with_its_streams_variables_and_ends(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, signal, sys\n"
        "print(sys.argv[1:], os.environ['MINE'], sys.stdin.read(), 'tensorflow' in sys.modules)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1:] == ['dies'] else sys.exit(3)\n"
    )
    text = """
        export MINE=x
        echo first > both
        echo a word | python mine.py some 'of them' >> both || test $? = 3
        MINE=y python -m mine dies < /dev/null > died || test $? = 137
        TF_MINE=1 python mine.py < /dev/null > other || test $? = 3
        python -c 'print(1)' | python -c 'import sys; print(sys.stdin.read())' > spoken & wait
    """
    with fork_server().listening(tmp_path / "listening") as python:
        done = subprocess.run(
            bash(text, python), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done
    found = {name: (tmp_path / name).read_text().split("\n") for name in ("both", "died", "other", "spoken")}
    assert found == {
        "both": ["first", "['some', 'of them'] x a word", " True", ""],
        "died": ["['dies'] y  True", ""],
        "other": ["[] x  False", ""],
        "spoken": ["1", "", ""],
    }


def test_forked_launch_starts_forks_that_end_as_processes_do(tmp_path):
    (tmp_path / "mine.py").write_text(ENDINGS["fails"])
    (tmp_path / "mine.gin").write_text("import mine\n")
    streams = {name: tmp_path / name for name in ("stdout", "stderr")}
    for path in streams.values():
        path.touch()
    arguments = ["--workers=1", "--open_ports", "--", "--gin_file=mine.gin"]
    fork_server().begin(
        *arguments,
        cwd=tmp_path,
        before={"module": "tests.forked_launch", "arguments": {}},
        command="trainers.launch",
        **{name: str(path) for name, path in streams.items()},
    )
    assert fork_server().answer(60.0) == 1
    assert "[worker 0] RuntimeError: no\n" in (said := streams["stderr"].read_text()), said
    assert "worker 0 ended with 1" in said
