"""What each configuration sends between its replicas is what `docs/gans.md` says."""

import re

import pytest

from core.testing import Run, on_virtual_cpus
from tests.commands import CHECKOUT, CONFIGS
from tools.invariance.subjects import configured

ROW = re.compile(r"^\| `(digits_\w+)` \| ((?:\w+ (?:gradients|figures|values|statistics)(?:, )?)+) \|$", re.MULTILINE)
LISTED = dict(ROW.findall((CHECKOUT / "docs" / "gans.md").read_text()))


def test_every_generative_configuration_is_listed():
    others = {"digits_linear", "digits_mlp", "digits_convnet", "digits_simclr"}
    assert LISTED.keys() == {path.stem for path in CONFIGS.glob("digits_*.gin")} - others


LARGE = {"digits_cyclegan", "digits_ddpm", "digits_pix2pix"}  # which take as long as all others


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LARGE else n for n in LISTED])
def test_collectives_are_as_documented(name, tmp_path):
    subject = configured(CONFIGS / f"{name}.gin", tmp_path)
    made = Run(subject.make(on_virtual_cpus(2)), subject.batch).collectives
    assert ", ".join(f"{entry.phase} {entry.what}" for entry in made) == LISTED[name]
