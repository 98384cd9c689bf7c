"""The works: sizes, data and batches that all programs of a work share."""

from typing import NamedTuple


class Work(NamedTuple):
    """Sizes of a work; a step has `batch` examples, and one run takes `steps` steps."""

    what: str
    target: float  # steps in bfloat16 for one in float32
    batch: int
    steps: int
    sizes: tuple[int, ...] = ()  # of the perceptron
    size: int = 0  # of the transformer
    heads: int = 8
    blocks: int = 4
    context: int = 128
    vocabulary: int = 256


WORKS = {
    "mlp": Work("perceptron, 4 layers of 1,024, batch 512", 1.5, 512, 10, sizes=(1024, 1024, 1024, 1024, 1024, 10)),
    "transformer": Work("transformer, 4 blocks of 512, 128 tokens, batch 16", 1.3, 16, 2, size=512),
}
