"""Files of `torch.save`, read without PyTorch: every value in its place, and no file trusted."""

import base64
import io
import pickle
import zipfile
import zlib

import numpy as np
import pytest

from core.errors import CheckpointError
from core.weights import open_state_dict

# PyTorch 2.14 wrote both files, the second with `_use_new_zipfile_serialization=False`, of
# OrderedDict(a.weight=arange(8.0)[2:].reshape(2, 3).T, a.bias=Parameter(bfloat16 [0.5, -2]), n=tensor(7)).
ZIPPED = (
    "eNqllT1v00AYx8/Oaw195SW0QAkSQypBajtOk1BKgoXMYCSSAFXEErmJSSzcOOdcWlEhUQm1wAdgRXwLRjqzwYAYQEJiqJhgREzc2Y1ru0qitqdc"
    "TrGe///55e55zkU5EAQgGgUHxgSYAopZa2pr6nxdQUqy/USXxDHwyDM26VrN0HW1hjSj1WHumXXVVOu3tRpiIJgrQypRId5Kcl3VGk0E6RoysGmy"
    "2kWa3mGqprrS1fR6FamtjmFW13gGBhKJSgRrOjhSaagwaEsYSTcUdN9+yMBQhcIxLAxXAnittbswIkcRjJZkWg7I9DYckSk5sA2Z103CcQLBk2U4"
    "WglbMCua0oFjfVDaiqmsqkg1GTjexDDNHoBoEXALDsOExcDByWZEphGcKslAprfgKZnagqftvGcQPFuGsVfWj3Mv4XQZzliqFjzvMb9rtBqO8QUr"
    "hIcXsTGF4Cw2npuzDS8hGC/Dy91kUY5ES8L35Q0cSmax70nGwC3nJJOPDXNVQdU11ezgE5PEJd+BHnJwBOP9728vCDCZ/TFmQGYfY+9wq4quNVqr"
    "agtJYuooJAsCAcivw180TkEPBJgEeQdg5SlSDVKskrh4nB3QNYR0lTBsLf2cJtUVHsgwBm56umqelcTrxwCwXTfz+KuAP3hu4vkOzx08fxQI2bMC"
    "sxHHAfEhZFe8ZJwkxoeS4S3dITmoD7E32BgEh+QoeHPwknjjWAUY2XMmDO0vuwZJGh3IMA4WHQanCzJHhUgxJPOnt42Hw+tvFvD7DWD9/Y5qargD"
    "NhRye1a1uiQmDwnCZoWckM1mhUxuIc0K2UwqzbICn+O5nJDms1yKZdl0issQyuf/dkcTmCNhUVIE1uF03yQTB8j97wG/2n0BxDzKjxTod/f4TdxN"
    "POMxKdFgwM3h93E34qTH57PLx7kA/HJ3t4x55MsB4Otdv9bdBV7tH7+W82vd1evVPgj6tLxf666/cY/2q0vbZ9/dZTHrEZdDYEjBFuVw+GqvvAPX"
    "HOWIb71D2+vfUK9dw1bn5nsbZz0LhW3NiBVvx/4HEDTqlQ=="
)
STREAM = (
    "eNp1kstu00AUQO2x82CgpeVdXi07ZxO1iZvEq1YIdTO8ajazQZbrjOJBxpM7HheBVCmblsI3sGDJZ/RT2PIJSCy4TkKhUhj5jj3Xd+45GntCPtPs"
    "15e9nxtvvr1ca0/Isx8OzkdgeXzFsqyxVkYlKosOhS6kysHGAr6EbzJpTCYikQ9lnAM55RST5v1YRIX8IApwjsD1eA2TRaq0gRoj3MGVzA3Umcvd"
    "qofKR9BgblkiM0FMJhKDlIK+0EOhxfCJTAwFqxWC7fEm7ojb74QcpQZIYpRO0nZUGpkVNNLioJTZMDIiL5SODjsUHM/jjYqPlfFIgDvbQvcyFZtX"
    "sySFGl/GmsAfdH2/19/yB71+B+pT1WRcol3zuYHmPiPMYeQELjGbOSdAP6WV1WUDV0JY4vWp2oGMC1j+j9g41vFbYYSmcDVFtfSPzuOpz1bv3Gjl"
    "r1F3u9PtB8F2B1bTBiNocm2fWYwcw3VmH8ONmcVNA7dCuH06Xdz5CGsh3OU29sjh3gXUUzzvc8z9Cxh/Mwh6A3iAGBsxDxHTas3arxvYCOFR9Y1e"
    "V//FAjt7US+y6GQd0SbWfOxYZ/b8sTG/N61/x2QHp128MCYYXzHOML7v/gYKn7Qv"
)


def content(text):
    return zlib.decompress(base64.b64decode(text))


def read_all(path):
    found = open_state_dict(path)
    return {name: found.read(name) for name in found.types}


def write_zip(path, pickled):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)


@pytest.mark.parametrize("text", [ZIPPED, STREAM], ids=["zip", "stream"])
def test_tensors_of_both_formats_are_those_that_pytorch_wrote(text, tmp_path):
    (tmp_path / "a.pth").write_bytes(content(text))
    found = open_state_dict(tmp_path / "a.pth")
    assert {name: str(kind) for name, kind in found.types.items()} == {
        "a/weight": "float32[3,2]",
        "a/bias": "bfloat16[2]",
        "n": "int64[]",
    }
    values = read_all(tmp_path / "a.pth")
    assert values["a/weight"].tolist() == [[2.0, 5.0], [3.0, 6.0], [4.0, 7.0]]
    assert values["a/bias"].astype(np.float32).tolist() == [0.5, -2.0]
    assert values["n"].tolist() == 7


class Command:
    def __reduce__(self):
        return print, ("a file ran code",)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Command(), "it needs the class `__builtin__.print`"),
        ([1], "holds 'list', no state dict"),
        ({"epoch": 3}, "`'epoch'`, which is no tensor"),
    ],
)
def test_anything_else_than_tensors_is_refused_unread(value, says, tmp_path, capsys):
    write_zip(tmp_path / "a.pth", pickle.dumps(value, protocol=2))
    with pytest.raises(CheckpointError, match=says) as error:
        open_state_dict(tmp_path / "a.pth")
    assert "`torch.save(model.state_dict(), path)`" in str(error.value)
    assert capsys.readouterr().out == ""


def test_a_tensor_outside_of_its_storage_is_refused(tmp_path):
    pickled = zipfile.ZipFile(io.BytesIO(content(ZIPPED))).read("archive/data.pkl")
    write_zip(tmp_path / "a.pth", pickled.replace(b"K\x02K\x03K\x02\x86", b"K\x03K\x03K\x02\x86"))  # an offset of 3
    with pytest.raises(CheckpointError, match=r"the tensor `'a\.weight'` outside of its storage"):
        open_state_dict(tmp_path / "a.pth")


@pytest.mark.parametrize("text", [ZIPPED, STREAM], ids=["zip", "stream"])
def test_a_file_that_is_cut_short_is_refused(text, tmp_path):
    (tmp_path / "a.pth").write_bytes(content(text)[:-12])
    with pytest.raises(CheckpointError, match=r"a\.pth` (can't be read as a file of `torch\.save`|is cut short)"):
        read_all(tmp_path / "a.pth")
