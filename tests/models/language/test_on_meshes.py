"""The transformer with Megatron's sharding trains to the same numbers."""

import functools
import json

import numpy as np
import pytest

from benchmarks.layouts import shipped
from core.errors import ConfigurationError
from core.optimizers import adamw, chain, clip_by_global_norm, sgd
from core.testing import Run, assemble, on_virtual_cpus, on_virtual_mesh
from models import LanguageModel
from tests.commands import CHECKOUT, CONFIGS, passed
from trainers import hooks
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import read
from trainers.settings import Settings
from trainers.trainer import Trainer
from trainers.workdir import Workdir

MEGATRON, TABLE_CUT = shipped("mesh_transformer"), shipped("mesh_transformer", table="model,-")
SEQUENCE = shipped("mesh_sequence", "output_layouts")
# Without rotary positions a key bias has a gradient of rounding size only, which AdamW turns into full steps.
GPT = {"positions": "rotary"}
LLAMA = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "num_kv_heads": 2}
ROWS, TIME, VOCABULARY, STEPS = 8, 8, 32, 4


def make(**settings):
    def task(*, rng):
        optimizer = chain(clip_by_global_norm(0.5), adamw(1e-3))
        sizes = {"vocabulary": VOCABULARY, "context": TIME, "num_layers": 1, "size": 16, "num_heads": 4, "dropout": 0.1}
        return LanguageModel(rng=rng, optimizer=optimizer, **sizes, **settings)

    return task


def texts(rows=ROWS, time=TIME):
    random = np.random.RandomState(0)
    shape = rows, time + 1
    return {
        "tokens": random.randint(0, VOCABULARY, shape).astype("i4"),
        "document": np.sort(random.randint(-1, 3, shape)).astype("i4"),
        "bytes": random.randint(1, 3, shape).astype("i4"),
    }


@functools.cache
def on_one_device(**settings):
    return Run(assemble(make(**settings), on_virtual_cpus(1)), texts()).train(STEPS)


def assert_same_on(rows, parts, settings, layouts, *, microbatches=1, outputs=(), recompute=False):
    """One device recomputes nothing, which changes no number."""
    expected = on_one_device(**settings)
    mesh = on_virtual_mesh(rows, parts, layouts, output_layouts=outputs)
    found = Run(assemble(make(**settings, recompute=recompute), mesh), texts(), microbatches=microbatches).train(STEPS)
    assert_equal(found, expected)


def assert_equal(found, expected):
    for one, other in ((found.variables, expected.variables), (found.figures, expected.figures)):
        for name, value in other.items():
            np.testing.assert_allclose(one[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.long
def test_rows_longer_than_a_tile_train_as_on_one_device():
    """A mesh computes all scores at once, and counts positions by pairs."""

    def task(*, rng):
        sizes = {"vocabulary": VOCABULARY, "context": 1040, "num_layers": 1, "size": 16, "num_heads": 2}
        return LanguageModel(rng=rng, optimizer=sgd(0.1), **sizes)

    one, mesh = on_virtual_cpus(1), on_virtual_mesh(1, 2, MEGATRON)
    expected, found = (Run(assemble(task, strategy), texts(rows=2, time=1040)).train(1) for strategy in (one, mesh))
    assert_equal(found, expected)


@pytest.mark.long
def test_mesh_of_two_by_two_trains_as_one_device_does():
    """With dropout, clipping, AdamW and recomputed blocks, tokens sharded by rows, and norms by the sequence."""
    assert_same_on(2, 2, GPT, TABLE_CUT, microbatches=2, outputs=SEQUENCE, recompute=True)


def collectives(layouts, *, outputs=()):
    """Returns the transfers on 1x2 in one step of one block; with SGD, all sums are the network's own."""

    def task(*, rng):
        sizes = {"vocabulary": VOCABULARY, "context": TIME, "num_layers": 1, "size": 64, "num_heads": 4}
        return LanguageModel(rng=rng, optimizer=sgd(0.1), **sizes)

    step = Run(assemble(task, on_virtual_mesh(1, 2, layouts, output_layouts=outputs)), texts())
    step(0)
    assert {entry.axis for entry in step.collectives} == {"model"}
    return step.collectives


ACTIVATIONS = ROWS * TIME * 64 * 4  # bytes


def forward_products(found):
    return sum("MatMul" in entry.what and "gradient_tape" not in entry.what for entry in found)


@pytest.mark.long
def test_megatron_block_sums_activations_twice_forward_and_backward():
    """Nothing else is exchanged if the table is whole."""
    found = collectives(MEGATRON)
    assert [entry.bytes // ACTIVATIONS for entry in found] == [1] * 4
    assert sum(entry.bytes % ACTIVATIONS for entry in found) <= 4096  # the norm of gradients rides along
    assert forward_products(found) == 2


@pytest.mark.long
def test_sequence_layout_of_norms_makes_two_exchanges_of_each_sum():
    """A reduce-scatter and an all-gather; the last norm's output is gathered too."""
    found = collectives(MEGATRON, outputs=SEQUENCE)
    whole = [entry for entry in found if entry.bytes >= ACTIVATIONS]
    assert sum(entry.bytes // ACTIVATIONS for entry in whole) == 2 * 4 + 2
    assert all(entry.bytes % ACTIVATIONS <= 4096 for entry in whole)
    assert all(entry.bytes <= 4096 for entry in found if entry not in whole)


@pytest.mark.long
def test_table_layout_adds_two_sums_of_activations_and_three_of_numbers_a_token():
    """On top of the block's four: one at the lookup, one back from the logits, three of the loss."""
    found = collectives(TABLE_CUT)
    assert sum(entry.bytes == ACTIVATIONS for entry in found) == 4 + 2
    assert sum(entry.bytes == ROWS * TIME * 4 for entry in found) == 3
    assert len(found) == 4 + 2 + 3 + 1  # the last is the norm of the gradients
    # Forward, the block has two of these sums; the tokens are looked up by a product with the table, which is cut.
    assert forward_products(entry for entry in found if entry.bytes == ACTIVATIONS) == 2 + 1


@pytest.mark.long
def test_llama_trains_as_one_device_does():
    """With the layouts of GPT's tests, reduced on a mesh with one axis."""
    assert_same_on(1, 2, LLAMA, MEGATRON)


FEW = ["steps = 4", "warmup_cosine.warmup_steps = 1", "Trainer.chunk_steps = 2", "Trainer.microbatches = 2"]
# At the file's rate AdamW amplifies rounding between any two runs.
FEW += ["warmup_cosine.peak_rate = 1e-3", "Trainer.evaluate_every = 2", "Texts.every = 2"]
FEW += ["LanguageModel.num_layers = 1", "LanguageModel.size = 16"]


def trained(workdir, *flags, cwd):
    """Trains a small GPT by the command, and returns its evaluation."""
    flags = [f"--gin_file={CONFIGS / 'text_tiny.gin'}", *(f"--gin_param={binding}" for binding in FEW), *flags]
    passed(*flags, f"--workdir={workdir}", cwd=cwd, timeout=600)
    return json.loads((cwd / workdir / "result.json").read_text())["evaluation"]


@pytest.mark.long
def test_shipped_layouts_train_by_the_command_as_one_device_does(tmp_path):
    """With chunks, microbatches, evaluation and texts. The file includes `mesh_transformer.gin`."""
    expected = trained("plain", cwd=tmp_path)
    layouts = f"--gin_file={CONFIGS / 'runtime' / 'mesh_sequence.gin'}"
    found = trained("mesh", layouts, "--gin_param=mesh.batch = 2", cwd=tmp_path)
    assert found == pytest.approx(expected, rel=1e-5)
    texts = [(tmp_path / run / "samples" / "step-000000002.txt").read_bytes() for run in ("plain", "mesh")]
    assert texts[1] == texts[0]


ON_MESH = [str(CONFIGS / f"{name}.gin") for name in ("text_tiny", "runtime/mesh_transformer")]


@pytest.mark.parametrize(
    ("bindings", "says"),
    [
        (["table_layout = 'model,-'"], "`mesh.model` is 2, which doesn't divide the 257 of `net/tokens/w`"),
        (["mesh.layouts = [('*/tokens/w', 'model')]"], "1 dimensions, but `net/tokens/w` has the 2 of"),
        (["mesh.output_layouts = [('*/norms', '-,model,-')]"], "which matches no module that can be called"),
        (["mesh.output_layouts = [('*/norm_1', '-,model')]"], "2 dimensions, but `net/blocks/0/norm_1` has the 3"),
        (["mesh.output_layouts = [('net', '-,-,model')]"], "doesn't divide the 257 of `net`"),
        (["mesh.batch = 3", "mesh.model = 1"], "`Trainer.global_batch_size` is 32, which `mesh.batch` = 3 can't share"),
        (["mesh.batch = 1000"], "2000 devices were asked for"),
    ],
)
def test_mesh_that_does_not_fit_is_refused(bindings, says, tmp_path):
    narrow = [f"LanguageModel.{name} = {x}" for name, x in (("num_layers", 1), ("size", 32))]
    configuration = read(ON_MESH, [*narrow, *bindings], search=[CHECKOUT])
    configuration.bind([Experiment, Settings, Evaluator], required=[Experiment, Settings], register=hooks.register)
    with pytest.raises(ConfigurationError, match=says):
        Trainer(Experiment(), Workdir(tmp_path), Settings())
