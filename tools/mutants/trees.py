"""Temporary copies of a revision, each with a separate environment and a process that runs its tests.

The environment shares the running one's packages, but its first folder is the copy: processes that tests start import
the copy, whatever their working directory.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
# Imports of the server before it forks: packages that tests use and that run no TensorFlow operation.
PYTEST = "pytest coverage hypothesis _hypothesis_pytestplugin pytest_timeout _pytest.unittest _pytest.skipping"
IMPORTS = (
    f"{PYTEST} numpy gin absl.app absl.testing.absltest rich.console rich.table rich.progress tensorflow"
    " jax jax.numpy optax flax.linen scipy.stats scipy.optimize scipy.signal safetensors yaml"
)
LATER = 1_000_000  # seconds between a source's time and its mutants': bytecode of one never matches the other


class Ended(NamedTuple):
    """Exit of a test run, and its notes (`tools.mutants.plugin`)."""

    code: int
    late: bool
    seconds: float
    notes: list[dict[str, Any]]


def commit(revision: str) -> str:
    """Returns the commit of a revision."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: `{revision}` isn't a revision of this checkout; name a commit, a branch or a tag.")
    return done.stdout.strip()


class Tree:
    """The files of a commit in a folder, and a server that runs their tests in forks."""

    def __init__(self, root: Path, sha: str, origin: Path = CHECKOUT, imports: str = IMPORTS):
        self.root, self.tree, self.imports, self.planted = root, root / "tree", imports, 0
        if not (root / "ready").exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            _git("clone", "--quiet", "--shared", "--no-checkout", str(origin), str(self.tree))
        _git("-C", str(self.tree), "checkout", "--quiet", "--force", "--detach", sha)
        self.python = _environment(root / "env", self.tree)
        (root / "ready").touch()
        self.server: subprocess.Popen[bytes] | None = None

    def run(
        self,
        files: Sequence[str],
        tests: Sequence[str] | None = None,
        arguments: Sequence[str] = (),
        limit: float = 600.0,
        environment: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> Ended:
        """Runs the tests of some files, or the named ones in their order, without those in `without`."""
        scratch = self.root / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "tmp").mkdir(parents=True)
        settings = {"TMPDIR": str(scratch / "tmp"), "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch), "TEST_SEED": "1"}
        request = {
            "files": list(files),
            "tests": None if tests is None else list(tests),
            "without": list(without),
            "arguments": [*arguments, f"--basetemp={scratch / 'pytest'}"],
            "limit": limit,
            "notes": str(scratch / "notes"),
            "log": str(scratch / "log"),
            "environment": {**settings, **(environment or {})},
        }
        answer = self._ask(request)
        with contextlib.suppress(FileNotFoundError):
            lines = (scratch / "notes").read_text().splitlines()
            return Ended(**answer, notes=[json.loads(x) for x in lines])
        raise RuntimeError(f"pytest hasn't begun: {(scratch / 'log').read_text()[-2000:]}")

    @contextlib.contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """Changes the text of a file for a while."""
        file = self.tree / path
        was, stat = file.read_bytes(), file.stat()
        self.planted += 1
        try:
            file.write_text(text)
            os.utime(file, (stat.st_atime, int(stat.st_mtime) + LATER + self.planted))
            yield
        finally:
            file.write_bytes(was)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def close(self) -> None:
        """Ends the server."""
        if self.server:
            self.server.kill()
            self.server.wait()
            self.server = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.server is None:
            kept = {key: x for key, x in os.environ.items() if not key.startswith(("TF_", "PYTEST", "PYTHON"))}
            with (self.root / "server.log").open("wb") as log:
                self.server = subprocess.Popen(
                    [self.python, HERE / "zygote.py", *self.imports.split()],
                    cwd=self.tree, env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    bufsize=0, start_new_session=True,
                )  # fmt: skip
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(f"{json.dumps(request)}\n".encode())
        if not (line := self.server.stdout.readline()):
            told = (self.root / "server.log").read_text()[-2000:]
            self.close()
            raise RuntimeError(f"the server of {self.tree} has ended: {told}")
        return dict(json.loads(line))


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, stdout=subprocess.DEVNULL)


def _environment(folder: Path, tree: Path) -> Path:
    """Makes an environment with the packages of this one, which imports `tree` first; returns its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        for script in Path(sys.executable).parent.iterdir():  # ruff, tensorboard
            if not (other := folder / "bin" / script.name).exists():
                other.symlink_to(script)
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    shutil.copy(HERE / "hook.py", packages / "tapeloop_mutant_hook.py")
    also = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})"
    (packages / "tapeloop_mutants.pth").write_text(f"{tree}\n{also}\nimport tapeloop_mutant_hook\n")
    return python
