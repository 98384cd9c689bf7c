"""Readers of foreign input, each with a valid input to mutate."""

import contextlib
import gzip
import io
import json
import socket
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.commands import CONFIGS
from tools.campaign import meeting, subject


def read_gin(content: bytes, folder: Path) -> None:
    from trainers.gin_audit import audit

    (folder / "mutant.gin").write_bytes(content)
    audit.read([str(folder / "mutant.gin")], [], search=[CONFIGS.parent])


def read_idx(content: bytes, folder: Path) -> None:
    from core.data import idx

    (folder / "mutant").write_bytes(content)
    idx.read_idx(folder / "mutant", axes=3)


def read_idx_gz(content: bytes, folder: Path) -> None:
    from core.data import idx

    (folder / "mutant.gz").write_bytes(content)
    idx.read_idx(folder / "mutant.gz", axes=3)


def read_npz(content: bytes, folder: Path) -> None:
    from core.data import npz

    (folder / "mutant.npz").write_bytes(content)
    npz(str(folder / "mutant.npz"))


def read_image(content: bytes, folder: Path) -> None:
    import tensorflow as tf

    from core.data import image_files, image_headers

    path = folder / "mutant.png"
    path.write_bytes(_with_check_sums(content))
    image_headers.image_size(path)
    image_files.read_images(tf.constant([str(path)]), 8)


def _with_check_sums(content: bytes) -> bytes:
    """Fixes the checksums of a PNG, as far as its chunks are intact: decoders stop at a wrong one."""
    place, found = 8, bytearray(content)
    while content.startswith(b"\x89PNG") and place + 12 <= len(found):
        end = place + 8 + int.from_bytes(found[place : place + 4], "big")
        if end + 4 <= len(found):
            found[end : end + 4] = zlib.crc32(found[place + 4 : end]).to_bytes(4, "big")
        place = end + 4
    return bytes(found)


def read_manifest(content: bytes, folder: Path) -> None:
    from core.checkpoint import newest

    place = folder / "step-000000010"
    place.mkdir(exist_ok=True)
    (place / "manifest.json").write_bytes(content)
    (place / "variables.index").write_bytes(b"x")
    newest(folder, warn=lambda text: None)


def read_sealed_manifest(content: bytes, folder: Path) -> None:
    """Reads a manifest with a matching hash, whatever its content."""
    from core.checkpoint.manifest import manifest_text

    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(content)
        if isinstance(said, dict):
            content = manifest_text({key: x for key, x in said.items() if key != "sha256"}).encode()
    read_manifest(content, folder)


def read_message(content: bytes, folder: Path) -> None:
    from core.cluster.channel import Channel

    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.setblocking(False)
    sent = theirs.send(content)
    assert sent <= len(content)
    list(channel.messages())
    theirs.close()
    list(channel.messages())
    channel.close()


def read_cluster(content: bytes, folder: Path) -> None:
    from core.cluster.topology import cluster_from_environment

    cluster_from_environment({"TF_CONFIG": content.replace(b"\0", b"").decode(errors="surrogateescape")})


def read_tokens(content: bytes, folder: Path) -> None:
    from core.data import token_file

    path = folder / "x.tokens"
    path.write_bytes(content)
    source = token_file(str(path), 7)
    source.gather(np.arange(len(source)))


def read_tokenizer(content: bytes, folder: Path) -> None:
    from core.data import bpe

    path = folder / "x.json"
    path.write_bytes(content)
    tokenizer = bpe(str(path))
    tokenizer.decode(tokenizer.encode(b"the cat \xff sat"))


def _idx() -> bytes:
    return bytes([0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 4]) + bytes(range(80))


def _npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, image=np.zeros([4, 3, 3], np.uint8), label=np.arange(4))
    return stream.getvalue()


def _image(encode: str) -> bytes:
    import tensorflow as tf

    pixels = np.random.default_rng(0).integers(0, 256, [16, 16, 3]).astype(np.uint8)
    return bytes(getattr(tf.io, encode)(pixels).numpy())


def _manifest() -> bytes:
    content = {
        "step": 10,
        "examples": 640,
        "config_hash": "c0",
        "files": {
            "variables.index": {
                "bytes": 1,
                "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
            }
        },
        "variables": {"w": {"shape": [2], "dtype": "float32", "sha256": "0"}},
        "versions": {},
        "extra": {},
    }
    from core.checkpoint.manifest import manifest_text

    return manifest_text(content).encode()


def _message() -> bytes:
    content = json.dumps(
        {"index": 1, "workers": ["a:1", "b:2"], "about": {"configuration": "abc"}, "who": "me"}
    ).encode()
    return b"TAPE" + len(content).to_bytes(4, "big") + content


def _cluster() -> bytes:
    return json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}).encode()


def _tokens() -> bytes:
    from core.data.token_files import Header

    tokens = np.arange(60, dtype="<u2")
    return Header(257, 256, "bytes", len(tokens), 2).packed() + tokens.tobytes()


def _tokenizer() -> bytes:
    from core.data import train_bpe

    with tempfile.TemporaryDirectory() as folder:
        train_bpe([b"the cat sat on the mat. " * 30], Path(folder, "x.json"), vocabulary=270)
        return Path(folder, "x.json").read_bytes()


KINDS: dict[str, tuple[Callable[[], bytes], Callable[[bytes, Path], None]]] = {
    "gin": (lambda: subject.GIN.replace("import watched\n", "").encode(), read_gin),
    "idx": (_idx, read_idx),
    "idx_gz": (lambda: gzip.compress(_idx()), read_idx_gz),
    "npz": (_npz, read_npz),
    "png": (lambda: _image("encode_png"), read_image),
    "jpeg": (lambda: _image("encode_jpeg"), read_image),
    "tokens": (_tokens, read_tokens),
    "tokenizer": (_tokenizer, read_tokenizer),
    "manifest": (_manifest, read_manifest),
    "sealed_manifest": (_manifest, read_sealed_manifest),
    "message": (_message, read_message),
    "cluster": (_cluster, read_cluster),
    "insider": (meeting.hello, meeting.meet_beside_an_insider),
    "stranger": (meeting.hello, meeting.meet_beside_a_stranger),
    "relay": (lambda: bytes(range(64)), meeting.meet_through_a_relay),
}
