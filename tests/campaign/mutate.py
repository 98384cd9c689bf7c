"""`python -m tests.campaign.mutate KIND SEED FIRST COUNT`: hands a reader of ours mutated input, within bounds.

Each mutant's number is printed before it is tried, so that a crash or a hang has a name; then what was wrong with it,
if the reader neither took it nor refused it by an error that is meant for users.
"""

import gzip
import io
import json
import random
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

from core.errors import TapeloopError
from tests.campaign import subject
from tests.commands import CONFIGS

MEMORY = 6 << 30  # bytes, of which TensorFlow has taken its share before
SECONDS = 20  # for one mutant, which takes milliseconds if all is well
INTERESTING = (
    b"\0",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"9" * 400,
    b"-1",
    b"1e999",
    b"[" * 3000,
    b"{",
    b'"',
    b"../../x",
)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Changes some of it: bits, pieces cut out, doubled or put elsewhere, numbers made absurd."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        a, b = sorted(chance.randrange(len(found) + 1) for _ in range(2))
        b = min(b, a + chance.choice((1, 4, 64, 4096)))
        kind = chance.randrange(6)
        if kind == 0 and a < len(found):
            found[a] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[a:b]
        elif kind == 2:
            found[a:a] = found[a:b] * chance.choice((1, 2, 50))
        elif kind == 3:
            found[a:b] = chance.randbytes(b - a)
        elif kind == 4:
            found[a:b] = chance.choice(INTERESTING)
        else:
            del found[a:]
    return bytes(found)


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
    path.write_bytes(content)
    image_headers.image_size(path)
    image_files.read_images(tf.constant([str(path)]), 8)


def read_manifest(content: bytes, folder: Path) -> None:
    from core.checkpoint import newest

    place = folder / "step-000000010"
    place.mkdir(exist_ok=True)
    (place / "manifest.json").write_bytes(content)
    (place / "variables.index").write_bytes(b"x")
    newest(folder, warn=lambda text: None)


def read_message(content: bytes, folder: Path) -> None:
    from core.workers.channel import Channel

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
    from core.workers.cluster import cluster_from_environment

    cluster_from_environment({"TF_CONFIG": content.replace(b"\0", b"").decode(errors="surrogateescape")})


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


KINDS: dict[str, tuple[Callable[[], bytes], Callable[[bytes, Path], None]]] = {
    "gin": (lambda: subject.GIN.replace("import watched\n", "").encode(), read_gin),
    "idx": (_idx, read_idx),
    "idx_gz": (lambda: gzip.compress(_idx()), read_idx_gz),
    "npz": (_npz, read_npz),
    "png": (lambda: _image("encode_png"), read_image),
    "jpeg": (lambda: _image("encode_jpeg"), read_image),
    "manifest": (_manifest, read_manifest),
    "message": (_message, read_message),
    "cluster": (_cluster, read_cluster),
}


def main(kind: str, seed: int, first: int, count: int) -> None:
    """Tries mutants one after the other."""
    make, read = KINDS[kind]
    content = make()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))

    def hang(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {SECONDS} s")

    signal.signal(signal.SIGALRM, hang)
    with tempfile.TemporaryDirectory() as scratch:
        read(content, Path(scratch))  # what isn't mutated is read
        for number in range(first, first + count):
            print(number, flush=True)
            signal.alarm(SECONDS)
            try:
                read(mutated(content, random.Random(f"{seed}/{kind}/{number}")), Path(scratch))
                print("read", flush=True)
            except TapeloopError:
                print("refused", flush=True)
            except BaseException as error:
                print(f"wrong: {type(error).__name__}: {str(error)[:300]!r}", flush=True)
            signal.alarm(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
