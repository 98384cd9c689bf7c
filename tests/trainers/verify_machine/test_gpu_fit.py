"""The advice of `verify_machine` for GPUs, drivers and TensorFlow builds that don't fit together."""

import os
import re

import pytest
import tensorflow as tf

from trainers.verify_machine.gpu_fit import Card, advice, ask_driver
from trainers.verify_machine.lab import Lab, Machine, markdown

BUILT = {
    "is_cuda_build": True,
    "cuda_version": "12.5.1",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
}
H100, A100, V100 = Card("H100", (9, 0)), Card("A100", (8, 0)), Card("V100", (7, 0))
BLACKWELL, ORIN, KEPLER = Card("B200", (10, 0)), Card("Orin", (8, 7)), Card("K80", (3, 7))


@pytest.mark.parametrize(
    ("cards", "driver_cuda", "seen", "said"),
    [
        ([], None, 0, None),
        ([H100], (12, 8), 1, None),
        ([H100], (12, 2), 1, None),  # within a major version, an older driver serves
        ([H100], (13, 0), 1, None),
        ([A100, ORIN, V100], (12, 8), 3, None),
        (
            [H100, H100],
            (11, 4),
            0,
            r"supports CUDA 11\.4, and TensorFlow is built with 12\.5\.1: install a driver",
        ),
        ([H100, H100], (12, 8), 0, r"sees none of 2 GPUs.*`pip install -e '\.\[gpu\]'`"),
        ([KEPLER, KEPLER], (12, 8), 0, r"`K80` has compute capability 3\.7, and this TensorFlow needs 6\.0 or more"),
        ([H100, BLACKWELL], (12, 8), 2, r"`B200` has compute capability 10\.0.*compiles each kernel at its first use"),
        ([H100], None, 1, None),
    ],
)
def test_each_misfit_is_a_paragraph(cards, driver_cuda, seen, said):
    found = advice(BUILT, cards, driver_cuda, seen=seen)
    if said is None:
        assert found == []
    else:
        (text,) = found
        assert re.search(said, text)


def test_build_without_cuda_is_named():
    (text,) = advice({"is_cuda_build": False}, [H100], (12, 8), seen=0)
    assert text == "TensorFlow is built without CUDA, so it uses none of 1 GPUs: `pip install -e '.[gpu]'`."


def test_installed_build_has_what_is_compared():
    built = tf.sysconfig.get_build_info()
    assert not built["is_cuda_build"] or advice(built, [Card("old", (3, 5))], (99, 0), seen=0)


SMI = """#!/bin/sh
case "$*" in
*query*) printf 'NVIDIA H100, 9.0\\nTesla K80, 3.7\\nbroken, [N/A]\\n';;
*) echo '| NVIDIA-SMI 550.54  Driver Version: 550.54  CUDA Version: 12.4 |';;
esac
"""


@pytest.mark.parametrize("driver", ["present", "absent", "fails"])
def test_driver_is_asked(tmp_path, monkeypatch, driver):
    if driver != "absent":
        (tmp_path / "nvidia-smi").write_text(SMI if driver == "present" else "#!/bin/sh\nexit 9\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin" if driver != "absent" else str(tmp_path))
    found = [Card("NVIDIA H100", (9, 0)), Card("Tesla K80", (3, 7))], (12, 4)
    assert ask_driver() == (found if driver == "present" else ([], None))


def test_report_holds_the_advice(tmp_path):
    machine = Machine("CPU", ("CPU:0",), {}, ("x86_64",), ("install a driver",))
    assert "- x86_64\n- install a driver\n" in markdown(Lab(tmp_path, machine, 2), [])
