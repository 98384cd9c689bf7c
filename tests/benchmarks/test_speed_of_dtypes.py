"""`benchmarks.precision`: Tapeloop's program runs in both dtypes, and missing peers are reported."""

import re
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.precision import __main__ as precision
from benchmarks.precision import losses
from benchmarks.precision.works import WORKS


@pytest.mark.long
def test_program_runs_in_both_dtypes_and_a_missing_peer_is_a_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    assert precision.main(["--works=mlp", "--programs=ours,torch", "--pairs=1"]) == 0
    said = capsys.readouterr().out
    assert "perceptron, 4 layers of 1,024" in said
    assert "Tapeloop" in said
    assert "isn't installed" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("fpu avx512f avx512_bf16 amx_bf16 amx_tile", "instructions for bfloat16: amx_bf16, avx512_bf16"),
        ("fpu avx2", "no instructions for bfloat16"),
    ],
)
def test_instructions_of_the_processor_are_named(flags, said, monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "CPU_INFO", Path(tmp_path / "cpuinfo"))
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    assert precision.instructions() == said


def test_losses_that_differ_too_much_fail(monkeypatch, capsys):
    def fake(name, precision, microbatches, *, steps, seed):
        more = 0.05 if precision == "bfloat16" and name == "digits_gan" else 0.02 * (microbatches - 1)
        return {"loss": 1.0 + 0.1 * seed + more}

    monkeypatch.setattr(losses, "losses", fake)
    monkeypatch.setattr(losses, "CONFIGURATIONS", ("digits_convnet",))
    assert precision.main(["--works=", "--losses"]) == 0
    assert re.search(r"\+0\.00% .*\+0\.0% to \+0\.0% .*\+1\.82%", capsys.readouterr().out)
    monkeypatch.setattr(losses, "CONFIGURATIONS", ("digits_convnet", "digits_gan"))
    assert precision.main(["--works=", "--losses"]) == 1


def test_works_name_sizes_of_one_kind():
    for work in WORKS.values():
        assert bool(work.sizes) != bool(work.size)
