"""A run's `config/given.gin` is its configuration: every shipped one, started from it, has the same hash.

Runtime files are left out: they are combined with these.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import gin
import pytest

from tests.commands import CHECKOUT, CONFIGS
from tools.invariance.subjects import CHANGES, STAND_INS, config_names
from trainers import hooks
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import Configuration, read
from trainers.gin_audit.identity import config_hash, identity
from trainers.session import NOT_IDENTITY
from trainers.settings import Settings

OVERRIDES = [
    "Trainer.steps = %many",
    "many = %more",
    "more = 70000",
    "Trainer.section_deadline = 1e308",
    "Trainer.log_every = None",
]
FOLDERS = {
    "cifar10_speed": "cifar10.directory",
    "cyclegan": "unpaired_folders.directory",
    "mnist_linear": "mnist.directory",
    "mnist_mlp": "mnist.directory",
}


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    gin.clear_config()


def bound(file: str, params: Sequence[str] = ()) -> tuple[Configuration, dict[str, str], str]:
    """Returns the configuration after its experiment is made, with all effective bindings and the identity's hash."""
    configuration = read([file], params, [CHECKOUT])
    configuration.bind([Experiment, Settings, Evaluator], required=[Experiment, Settings], register=hooks.register)
    Experiment()
    Settings()
    return configuration, identity(), config_hash(identity(NOT_IDENTITY))


# One of each kind: a path of strange letters, scopes and groups, schedules and macros, references, a list of hooks.
PLAIN = {"mnist_linear", "digits_conditional_gan", "text_tiny", "digits_gan_by_batch_size", "digits_simclr"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in PLAIN else [pytest.mark.long]) for name in config_names()]
)
def test_config_that_ships_is_the_same_from_its_given_file(name: str, tmp_path: Path) -> None:
    params = [*OVERRIDES, *CHANGES.get(name, ())]
    if name in FOLDERS:
        folder = tmp_path / "ä [b] %s '\"\\ # @c\n"
        folder.mkdir()
        STAND_INS[FOLDERS[name]](folder)
        params.append(f"{FOLDERS[name]} = {str(folder)!r}")
    first, everything, digest = bound(str(CONFIGS / f"{name}.gin"), params)
    file = tmp_path / "runs" / "a [b]\n#" / "given.gin"
    file.parent.mkdir(parents=True)
    file.write_text(first.given, "utf-8")
    again, *found = bound(os.fspath(file))
    assert found == [everything, digest]
    assert {b.name: b.value for b in again.bindings}.items() <= {b.name: b.value for b in first.bindings}.items()
    assert everything["Trainer.steps"] == "70000"
