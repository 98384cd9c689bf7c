"""Foreign weight files: each axis and bit in its place, and no file trusted."""

import json
import os
import struct
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.errors import CheckpointError, ConfigurationError
from core.module import Module
from core.random import Rng
from core.weights import begin_with, npz_weights, safetensors_weights

TO_OURS = {"": "net", "*/weight": "*/w", "*/bias": "*/b"}
NAMES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}


def write_safetensors(path, arrays, *, cut=0, **header):
    """Writes the format by its specification, so that damaged files can be written as well."""
    kinds = {np.dtype(dtype): name for name, dtype in NAMES.items()}
    content, entries = b"", {}
    for name, x in arrays.items():
        places = [len(content), len(content) + x.nbytes]
        entries[name] = {"dtype": kinds[x.dtype], "shape": list(x.shape), "data_offsets": places}
        content += x.tobytes()
    text = json.dumps({**entries, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[: len(content) - cut])


def write_npz(path, arrays):
    np.savez(path, **arrays)


@pytest.fixture
def linear():
    task = tf.Module()
    task.net = Module()
    task.net.out = layers.Linear(4, 5, rng=Rng.from_seed(1))
    return task


def torch_arrays(dtype=np.float32):
    rng = np.random.default_rng(0)
    return {"out.weight": rng.normal(size=[5, 4]).astype(dtype), "out.bias": rng.normal(size=[5]).astype(dtype)}


@pytest.mark.parametrize(
    ("write", "weights", "name"),
    [(write_npz, npz_weights, "a.npz"), (write_safetensors, safetensors_weights, "a.safetensors")],
)
def test_names_and_axes_of_others_are_led_to_ours(write, weights, name, linear, tmp_path):
    arrays = torch_arrays()
    write(tmp_path / name, arrays)
    path = str(tmp_path / name)
    begun = begin_with(weights(path, rename=TO_OURS, transpose={"*/w": [1, 0]}), linear)
    assert linear.net.out.w.numpy().tobytes() == arrays["out.weight"].T.tobytes()
    assert linear.net.out.b.numpy().tobytes() == arrays["out.bias"].tobytes()
    assert begun.record["variables"] == {"net/out/b": "out/bias", "net/out/w": "out/weight"}
    assert begun.record["path"] == path
    assert begun.line == f"begins with `{path}`: 2 of 2 variables"
    with pytest.raises(CheckpointError, match=r"misshapen  net/out/w  float32\[4,5\]  float32\[5,4\]") as error:
        begin_with(weights(path, rename=TO_OURS), linear)
    assert "If its axes have another order there, set `transpose`, such as {'net/out/w': [1, 0]}." in str(error.value)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_narrow_floats_are_widened_with_a_note(dtype, linear, tmp_path):
    arrays = torch_arrays(dtype)
    write_safetensors(tmp_path / "a", arrays)
    begun = begin_with(safetensors_weights(str(tmp_path / "a"), rename=TO_OURS, transpose={"*/w": [1, 0]}), linear)
    assert begun.line.endswith(f"2 of 2 variables, 2 of them widened from {np.dtype(dtype).name}")
    assert linear.net.out.b.numpy().tolist() == arrays["out.bias"].astype(np.float32).tolist()


def test_other_types_arent_rounded_to_ours(linear, tmp_path):
    write_safetensors(tmp_path / "a", torch_arrays(np.float64))
    with pytest.raises(CheckpointError, match=r"misshapen  net/out/b  float32\[5\]    float64\[5\]") as error:
        begin_with(safetensors_weights(str(tmp_path / "a"), rename=TO_OURS, transpose={"*/w": [1, 0]}), linear)
    assert "Values aren't rounded: write `net/out/b` and all others of dtype float64 as float32." in str(error.value)
    assert "If axes" not in str(error.value)


def test_a_bfloat16_that_numpy_has_forgotten_is_named(linear, tmp_path):
    write_npz(tmp_path / "a.npz", torch_arrays(ml_dtypes.bfloat16))
    with pytest.raises(CheckpointError, match=r"float32\[5\]    void16\[5\](.|\n)*write `net/out/b` .* as float32"):
        begin_with(npz_weights(str(tmp_path / "a.npz"), rename=TO_OURS), linear)


def test_pickles_arent_loaded(linear, tmp_path):
    np.savez(tmp_path / "a.npz", **{"out.weight": np.array([print], object)})
    with pytest.raises(CheckpointError, match="a pickle runs code while it loads"):
        begin_with(npz_weights(str(tmp_path / "a.npz")), linear)


def test_bytes_of_another_order_are_read(linear, tmp_path):
    arrays = torch_arrays(np.dtype(">f4"))
    write_npz(tmp_path / "a.npz", arrays)
    begin_with(npz_weights(str(tmp_path / "a.npz"), rename=TO_OURS, transpose={"*/w": [1, 0]}), linear)
    assert linear.net.out.w.numpy().tolist() == arrays["out.weight"].T.tolist()


@pytest.mark.parametrize(
    ("transpose", "message"),
    [
        ({"*/w": [0, 0]}, r"'\*/w': \[0, 0\], but `net/out/w` has 2 axes: give each of them once, as \[1, 0\]"),
        ({"*/w": [1, "0"]}, r"but `net/out/w` has 2 axes"),
        ({"*/v": [1, 0]}, r"`transpose` has the pattern '\*/v', which matches no variable"),
        ({"*/w": [1, 0], "net/*/w": [0, 1]}, "names `net/out/w` by two patterns"),
    ],
)
def test_axes_that_are_none_are_refused(transpose, message, linear, tmp_path):
    write_npz(tmp_path / "a.npz", torch_arrays())
    with pytest.raises(ConfigurationError, match=message):
        begin_with(npz_weights(str(tmp_path / "a.npz"), rename=TO_OURS, transpose=transpose), linear)


def damage(path, kind):
    whole = torch_arrays()
    if kind == "missing":
        return
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "no header":
        path.write_bytes(b"\xff" * 64)
    elif kind == "a huge header":
        path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    elif kind == "no JSON":
        path.write_bytes(struct.pack("<Q", 4) + b"{{}}")
    elif kind == "cut short":
        write_safetensors(path, whole, cut=3)
    elif kind == "a bomb":
        write_safetensors(path, whole, x={"dtype": "F32", "shape": [1 << 40], "data_offsets": [100, 100 + (4 << 40)]})
    elif kind == "overlapping":
        write_safetensors(path, whole, x={"dtype": "F32", "shape": [5], "data_offsets": [0, 20]})
    elif kind == "not finite":  # in what is read last
        write_safetensors(path, {**whole, "out.weight": np.full([5, 4], np.nan, np.float32)})
    elif kind == "an escape":
        write_safetensors(path, {**whole, "\x1b[31m": whole["out.bias"]})
    elif kind == "an endless name":
        write_safetensors(path, {**whole, "x" * 501: whole["out.bias"]})


KINDS = ("missing", "empty", "a pipe", "a folder", "no header", "a huge header", "no JSON", "cut short", "a bomb")


@pytest.mark.parametrize("kind", [*KINDS, "overlapping", "not finite", "an escape", "an endless name"])
def test_a_bad_file_is_named_and_nothing_is_lost(kind, linear, tmp_path):
    path = tmp_path / "weights.safetensors"
    damage(path, kind)
    before = linear.net.out.b.numpy().tolist()
    with pytest.raises(CheckpointError) as error:
        begin_with(safetensors_weights(str(path), rename=TO_OURS, transpose={"*/w": [1, 0]}), linear)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert linear.net.out.b.numpy().tolist() == before


def test_a_bad_npz_is_no_error_of_data(linear, tmp_path):
    write_npz(tmp_path / "a.npz", torch_arrays())
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"Write or download it again|isn't an `.npz` file"):
        begin_with(npz_weights(str(tmp_path / "a.npz")), linear)


def test_missing_package_is_named_with_its_extra(linear, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ConfigurationError, match=r"pip install -e '\.\[weights\]'"):
        begin_with(safetensors_weights(str(tmp_path / "a")), linear)
