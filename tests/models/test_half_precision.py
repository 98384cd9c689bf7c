"""Every shipped task in bfloat16 and float16: finite, with gradients near those of float32, and narrow products."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from core.graphs import everything, frames
from core.optimizers import sgd
from core.precision import Precision
from core.random import Rng
from core.task import Compute, Task
from core.task.loss import checked, weighted_sums
from core.testing import on_virtual_cpus
from core.testing.precision import check_narrow_sums
from core.testing.traced import Step
from models.diffusion import Ddpm
from models.translation.image_pool import ImagePool
from tests.commands import CONFIGS
from tests.models.test_invariance import TINY
from tests.products import product_dtype
from tools.invariance.subjects import ROWS, configured

SUBJECTS = [
    "digits_mlp",
    "digits_linear",
    "digits_convnet",
    "digits_dcgan",
    "digits_conditional_gan",
    "digits_cyclegan",
    "digits_pix2pix",
    "digits_ddpm",
    "digits_edm",
    "digits_simclr",
    "digits_stylegan2",
    "digits_vae",
    "digits_vqvae",
    "digits_vit",
    "text_tiny",
    "text_lstm",
    "text_bert",
    "text_t5",
]
PLAIN = ("digits_mlp", "digits_vae")
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
PRODUCTS = ("MatMul", "BatchMatMul", "Conv2D", "Conv3D", "Einsum")
# Products in float32 in every phase: of losses and metrics, of kernels with their vectors, of an augmentation's pixels,
# and convolutions whose CPU kernel wouldn't sum in float32 itself. Scores may exceed float16.
WIDE = ("core/losses/", "core/layers/weight_norm.py", "core/data/augment.py", "core/layers/windows.py", "_contrast")
WIDE += ("models/quantizers.py",)  # distances
WIDE += ("models/gan/style_layers.pymodulated",)  # the lengths of kernels, which are squared
SCORES = ("core/layers/attend", "core/layers/dense_attention", "core/layers/tiled_attention")


def gradients(
    task: Task, batch: dict[str, tf.Tensor], dtype: str, *, differentiated: bool = True
) -> dict[str, tuple[tf.Tensor, list[tf.Tensor]]]:
    """Calls the phases as the engine does; returns each update's loss and its gradients."""
    values, computed, found = dict(batch), {}, {}
    for phase in task.phases():
        specs = {key: tf.TensorSpec(x.shape, x.dtype) for key, x in values.items()}
        history = isinstance(phase, Compute) and phase.state is not None
        narrowing = Precision("float32" if history else dtype).narrowing(phase.name, specs)
        rng = Rng.from_seed(0, step=5, progress=0.5).fold(phase.name)._replace(dtype=narrowing.dtype)
        with narrowing.computing(), tf.GradientTape(watch_accessed_variables=differentiated) as tape:
            if isinstance(phase, Compute):
                made = phase.fn(narrowing.narrowed(values), rng)
                values |= made[0] if history else made
                computed[phase.name] = lambda phase=phase, inputs=dict(values), rng=rng, narrowing=narrowing: phase.fn(
                    narrowing.narrowed(inputs), rng
                )
                continue
            through = computed[phase.through]() if phase.through else {}
            loss = checked(phase.loss(narrowing.narrowed(values) | through, rng), phase.name, ROWS)
            target, _ = weighted_sums(loss)
        variables = [v for v in phase.variables().values() if v.trainable]
        slopes = tape.gradient(target, variables) if differentiated else []
        found[phase.name] = target, [tf.convert_to_tensor(g) for g in slopes]
        assert loss.per_example.dtype == tf.float32
        values |= loss.outputs
    return found


def flat(tensors: list[tf.Tensor]) -> np.ndarray:
    return np.concatenate([np.ravel(x).astype(np.float64) for x in tensors])


@pytest.mark.filterwarnings("error:.* adds .* terms")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n not in PLAIN)) for n in SUBJECTS])
def test_shipped_task_computes_in_half_precision_without_long_narrow_sums(name, tmp_path):
    """A sum that is too long in float16 is so in bfloat16, whose warnings fail here too."""
    made = configured(CONFIGS / f"{name}.gin", tmp_path, TINY.get(name, ()))
    task = made.make(on_virtual_cpus(1)).task
    batch = {key: tf.convert_to_tensor(x) for key, x in made.batch.items()}
    exact = tf.function(lambda: gradients(task, batch, "float32"), autograph=False)()
    for dtype, rounding in ROUNDING.items():
        wide = WIDE + SCORES * (dtype == "float16")
        traced = tf.function(lambda dtype=dtype: gradients(task, batch, dtype), autograph=False).get_concrete_function()
        for phase, (loss, found) in traced().items():
            assert all(g.dtype == tf.float32 for g in found)
            a, b = flat(found), flat(exact[phase][1])
            assert np.isfinite(a).all()
            assert a @ b > 0.99 * np.linalg.norm(a) * np.linalg.norm(b)
            np.testing.assert_allclose(loss, exact[phase][0], rtol=4 * rounding)
        made = (op for op in everything(traced.graph.get_operations()) if "gradient_tape" not in op.name)
        products = [op for op in made if op.type.startswith(PRODUCTS)]
        assert any(product_dtype(op) == dtype for op in products)
        for op in (op for op in products if product_dtype(op) != dtype):
            files = [frame.filename + frame.name for frame in frames(op)]
            assert any(place in file for file in files for place in wide), (op.type, files)
    forward = tf.function(lambda: gradients(task, batch, "bfloat16", differentiated=False), autograph=False)
    operations = forward.get_concrete_function().graph.get_operations()
    check_narrow_sums(SimpleNamespace(name=name, operations=operations))
    if type(task).evaluate is not Task.evaluate:
        check_narrow_sums(Step(task, None, batch, precision=Precision("bfloat16")))


def test_draws_that_choose_are_float32_in_every_phase(monkeypatch):
    rng = Rng.from_seed(0)
    narrow = rng._replace(dtype=tf.bfloat16)
    pool = ImagePool(3, [1])
    pool.images.assign([[1.0], [2.0], [3.0]])
    pool.count.assign(3)
    images = tf.cast(tf.range(4.0, 40.0)[:, tf.newaxis], tf.bfloat16)
    np.testing.assert_array_equal(pool(images, narrow)[0], pool(images, rng)[0])

    steps = []
    monkeypatch.setattr(Ddpm, "_error", lambda self, x, t, noise: steps.append(t) or tf.zeros(tf.shape(t)))
    task = Ddpm(rng=rng, image_shape=[8, 8, 1], channels=8, optimizer=sgd(0.1))
    for drawn in (rng, narrow):
        task.loss({"image": tf.zeros([64, 8, 8, 1], tf.bfloat16)}, drawn)
    np.testing.assert_array_equal(*steps)
