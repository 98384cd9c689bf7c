"""Compares estimated collectives of a mesh with the collective log of a real step.

Known differences: DTensor sends many values together, padded by up to 512 bytes each to a multiple of 4,096 bytes in
all. The log lists a collective in a loop once, as the graph does.
"""

import numpy as np
import pytest

from core.optimizers import adamw, chain, clip_by_global_norm
from core.testing import Run, assemble, on_virtual_mesh
from models import LanguageModel
from models.classifiers.convnet import ConvNetClassifier
from models.classifiers.mlp import MlpClassifier
from tests.core.estimate.test_spread import MEGATRON, spread
from tests.models.language.test_on_meshes import SEQUENCE

ROWS, TIME, SIZE, BLOCKS = 8, 32, 64, 1
PADDED = 4096


def text(*, rng):
    optimizer = chain(clip_by_global_norm(1.0), adamw(1e-3))
    sizes = {"vocabulary": 257, "context": TIME, "num_layers": BLOCKS, "size": SIZE, "num_heads": 2}
    return LanguageModel(rng=rng, optimizer=optimizer, **sizes)


def recomputing(*, rng):
    optimizer = chain(clip_by_global_norm(1.0), adamw(1e-3))
    sizes = {"vocabulary": 256, "context": TIME, "num_layers": BLOCKS, "size": SIZE, "num_heads": 2}
    return LanguageModel(rng=rng, optimizer=optimizer, recompute=True, **sizes)


def mlp(*, rng):
    return MlpClassifier(sizes=[64, 32, 10], optimizer=adamw(1e-3), rng=rng)


def convnet(*, rng):
    return ConvNetClassifier(image_shape=[8, 8, 1], channels=[2], hidden=4, optimizer=adamw(1e-3), rng=rng)


def texts():
    random = np.random.RandomState(0)
    shape = ROWS, TIME + 1
    return {
        "tokens": random.randint(0, 256, shape).astype("i4"),
        "document": np.sort(random.randint(-1, 3, shape)).astype("i4"),
        "bytes": random.randint(1, 3, shape).astype("i4"),
    }


def images():
    random = np.random.RandomState(0)
    return {"image": random.rand(ROWS, 8, 8, 1).astype("f4"), "label": random.randint(0, 10, ROWS).astype("i4")}


def on_paper_and_found(make, values, layouts, rows, parts, microbatches=1, outputs=()):
    """Returns the estimated transfers, and the log's entries."""
    features = [(key, (x.shape[1:], x.dtype)) for key, x in values.items()]
    on_paper = spread(make, features, layouts, microbatches=microbatches, outputs=outputs, batch=rows, model=parts)
    assert not on_paper.unknown
    run = Run(
        assemble(make, on_virtual_mesh(rows, parts, layouts, output_layouts=outputs)), values, microbatches=microbatches
    )
    run(0)
    return on_paper, run.collectives


def said_and_found(make, values, layouts, rows, parts, microbatches=1):
    """Returns numbers and bytes of the estimated sums by axis, and the log's bytes."""
    on_paper, collectives = on_paper_and_found(make, values, layouts, rows, parts, microbatches)
    assert {taken.kind for taken in on_paper.counts} == {"all-reduce"}
    said = {
        axis: (
            sum(count for taken, count in on_paper.counts.items() if taken.axis == axis),
            sum(size for taken, size in on_paper.bytes.items() if taken.axis == axis),
        )
        for axis in ("batch", "model")
    }
    found = {axis: [entry.bytes for entry in collectives if entry.axis == axis] for axis in said}
    assert sum(map(len, found.values())) == len(collectives)
    return said, found


def assert_gradients_agree(said, found):
    """Asserts that the gradients' bytes match, including the small sums of metrics."""
    count, size = said
    assert len(found) <= count
    assert size <= sum(found) <= size + 512 * count


@pytest.mark.long
@pytest.mark.parametrize(("make", "rows", "parts", "microbatches"), [(mlp, 2, 2, 2), (convnet, 2, 1, 1)])
def test_rows_of_images_sum_their_gradients(make, rows, parts, microbatches):
    """Once a step, for any microbatches: DTensor sums up when the accumulation loop is over."""
    said, found = said_and_found(make, images(), [], rows, parts, microbatches)
    assert (said["model"], found["model"]) == ((0, 0), [])
    assert_gradients_agree(said["batch"], found["batch"])


@pytest.mark.long
def test_texts_in_microbatches():
    said, found = said_and_found(text, texts(), MEGATRON, 2, 2, microbatches=2)
    assert_gradients_agree(said["batch"], found["batch"])
    activations = 4 * ROWS // 2 // 2 * TIME * SIZE
    rounds = [size for size in found["model"] if size // activations]
    assert rounds == [activations] * 4 * BLOCKS
    assert said["model"][1] // activations == 2 * len(rounds)


TABLE = ("*/tokens/w", "model,-")


@pytest.mark.long
def test_recomputed_texts_with_a_sharded_table_sum_their_activations():
    said, found = said_and_found(recomputing, texts(), [TABLE, *MEGATRON], 1, 2)
    assert (said["batch"], found["batch"]) == ((0, 0), [])
    activations = 4 * ROWS * TIME * SIZE
    size = said["model"][1]
    sums = 5 * BLOCKS + 2  # of what is looked up, and back from the logits
    assert size // activations == sum(x // activations for x in found["model"]) == sums
    assert 0 <= sum(found["model"]) - size <= 4 * PADDED  # norms of gradients


@pytest.mark.long
def test_norms_sharded_by_the_sequence():
    """CPUs join a sharded tensor with a sum of all of it, in which each device has zeros for the others' parts."""
    on_paper, collectives = on_paper_and_found(recomputing, texts(), MEGATRON, 1, 2, outputs=SEQUENCE)
    activations = 4 * ROWS * TIME * SIZE
    kinds = {"all-reduce": activations, "all-gather": activations // 2}
    said = {
        kind: sum(taken_bytes for taken, taken_bytes in on_paper.bytes.items() if taken.kind == kind) // size
        for kind, size in kinds.items()
    }
    found = sum(entry.bytes // activations for entry in collectives)
    assert sum(said.values()) == found
    assert said["all-gather"] > 0
