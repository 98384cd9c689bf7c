"""Speed of reading token windows from a file: `python -m benchmarks.tokens [--pairs=15] [--tokens=200]`

The file is in the system's cache, as after a first epoch with enough memory. The chunks are the trainer's: windows
shuffled by seed and epoch, with document and bytes of each token. The peer gathers tokens alone, from a tensor in
memory.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import interleaved, ratio
from core.data import Source, token_file, train_chunks
from core.data.token_files import Header

MILLION = 1_000_000
CHUNKS_A_RUN, CHUNK = 20, 50
BATCHES = {128: 32, 1024: 8}  # by length


class InMemory(Source):
    """The same token windows from a tensor, without documents and bytes."""

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        rows = (len(tokens) - 1) // length
        super().__init__("in memory", size=rows, place="memory")
        self._length = length
        self._tokens = tf.constant(tokens[: rows * length + 1].astype(np.int32))

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:
        return {"tokens": tf.TensorSpec([self._length + 1], tf.int32)}

    def gather(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        places = indices[:, None] * self._length + tf.range(self._length + 1, dtype=tf.int64)
        return {"tokens": tf.gather(self._tokens, places)}


def main() -> None:
    """Prints one row per length of windows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    parser.add_argument("--tokens", type=int, default=200, help="millions of tokens in the file (default: 200)")
    flags = parser.parse_args()
    table = Table("length", "batch", "ours, M tokens/s", "in memory, M tokens/s", "ratio of times", "95 % interval")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "random.tokens")
        tokens = written(path, flags.tokens * MILLION)
        for length, batch in BATCHES.items():
            runs = {
                "ours": chunks_of(token_file(str(path), length), batch),
                "peer": chunks_of(InMemory(tokens, length), batch),
            }
            seconds = interleaved(runs, pairs=flags.pairs)
            median, low, high = ratio(seconds["ours"], seconds["peer"])
            count = CHUNKS_A_RUN * CHUNK * batch * length
            speeds = [f"{count / np.median(seconds[name]) / MILLION:.0f}" for name in runs]
            table.add_row(str(length), str(batch), *speeds, f"{median:.2f}", f"{low:.2f} to {high:.2f}")
    Console(width=120).print(table)


def written(path: Path, count: int) -> np.ndarray:
    """Writes a file of random bytes as one document; returns its tokens."""
    tokens = np.random.RandomState(0).randint(0, 256, count).astype("<u2")
    with path.open("wb") as file:
        file.write(Header(257, 256, "bytes", count, 1).packed())
        file.write(tokens.tobytes())
    return tokens


def chunks_of(source: Source, batch: int) -> Callable[[], object]:
    """Takes chunks one after the other, without computing in between."""
    chunks = iter(train_chunks(source, global_batch_size=batch, microbatches=1, chunk_steps=CHUNK, seed=0))
    return lambda: [next(chunks) for _ in range(CHUNKS_A_RUN)]


if __name__ == "__main__":
    main()
