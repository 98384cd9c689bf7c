"""The transformer, its matrices cut as Megatron cuts them, trains to the same numbers."""

import numpy as np
import pytest

from core.optimizers import adamw, chain, clip_by_global_norm
from core.testing import Run, assemble, on_virtual_cpus, on_virtual_mesh
from models import LanguageModel

MEGATRON = [
    ("*/attention/out/w", "model,-"),
    ("*/attention/[qkv]*/?", "...,model"),
    ("*/feed_forward/down/w", "model,-"),
    ("*/feed_forward/[gu]*/?", "...,model"),
    ("*/tokens/w", "model,-"),
]
# Without rotary positions a bias of the keys has no gradient but rounding, of which AdamW makes steps.
GPT = {"positions": "rotary"}
LLAMA = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "kv_heads": 2}
ROWS, TIME, VOCABULARY = 8, 8, 32


def make(settings):
    def task(*, rng):
        optimizer = chain(clip_by_global_norm(0.5), adamw(1e-3))
        sizes = {"vocabulary": VOCABULARY, "context": TIME, "layers": 2, "size": 16, "heads": 4, "dropout": 0.1}
        return LanguageModel(rng=rng, optimizer=optimizer, **sizes, **settings)

    return task


def texts():
    random = np.random.RandomState(0)
    shape = ROWS, TIME + 1
    return {
        "tokens": random.randint(0, VOCABULARY, shape).astype("i4"),
        "document": np.sort(random.randint(-1, 3, shape)).astype("i4"),
        "bytes": random.randint(1, 3, shape).astype("i4"),
    }


def assert_same_on(rows, parts, settings, layouts, *, microbatches=1):
    expected = Run(assemble(make(settings), on_virtual_cpus(1)), texts()).train(20)
    assembly = assemble(make(settings), on_virtual_mesh(rows, parts, layouts))
    found = Run(assembly, texts(), microbatches=microbatches).train(20)
    for one, other in ((found.variables, expected.variables), (found.figures, expected.figures)):
        for name, value in other.items():
            np.testing.assert_allclose(one[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_on_two_by_two_twenty_steps_are_those_of_one_device():
    """With dropout, clipping and AdamW, and the table of tokens cut by its rows."""
    assert_same_on(2, 2, GPT, MEGATRON, microbatches=2)


@pytest.mark.long
@pytest.mark.parametrize("settings", [GPT, LLAMA, {**GPT, "recompute": True}], ids=["gpt", "llama", "recompute"])
@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("layouts", [MEGATRON, MEGATRON[:-1]], ids=["table cut", "table whole"])
def test_on_every_mesh(rows, parts, settings, layouts):
    assert_same_on(rows, parts, settings, layouts)
