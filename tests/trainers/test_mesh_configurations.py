"""Every shipped configuration trains and evaluates on a mesh as on one device, or raises an error."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.errors import ConfigurationError
from core.task.loss import means, weighted_sums
from core.testing import Run, on_virtual_cpus, on_virtual_mesh
from models import vae
from models.classifiers import resnet
from tests.commands import CHECKOUT, CONFIGS, refused
from tests.models.test_invariance import TINY
from tools.invariance.stand_ins import write_images
from tools.invariance.subjects import CHANGES, LAYOUTS, REFUSED_ON_MESHES, config_names, configured
from trainers.evaluation.averaged_weights import averaged_task
from trainers.evaluation.evaluator import Evaluator

SMALL = {
    **TINY,
    "digits_conditional_gan": TINY["digits_gan"],
    "digits_dcgan": ("dcgan_networks.channels = [4, 8]", "Gan.latent_size = 4"),
    "digits_pix2pix": (
        "Pix2Pix.generator_channels = [4, 8]",
        "Pix2Pix.discriminator_channels = [4]",
        "Pix2Pix.l1_weight = 1.0",
    ),
}
# `digits_flow` is a `digits_edm` with another formulation, `digits_conditional_gan` a `digits_gan` with more in it and
# the same layouts. `tests/models/language/test_on_meshes.py` trains both shapes of language model, and `text_tiny` by
# the command.
REPEATED = {"mnist_linear", "mnist_mlp", "digits_flow", "digits_guided", "digits_gan"}
REPEATED |= {name for name in config_names() if name.startswith("text_")} - {"text_t5"}


def computed(experiment, source):
    """Returns the figures of eight and four examples, computed without a trace."""
    averaged = averaged_task(experiment)
    averaged.update()
    batches = (source.gather(tf.range(*rows, dtype=tf.int64)) for rows in ((0, 8), (8, 12)))
    sums = [weighted_sums(averaged.task.evaluate(batch))[1] for batch in batches]
    return means(tf.nest.map_structure(tf.add, *sums))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*config_names()} - {*REFUSED_ON_MESHES} - REPEATED))
def test_configuration_is_the_same_on_a_mesh(name, tmp_path, monkeypatch):
    """Takes two steps, with dropout if the task allows it, and an evaluation whose last batch is smaller."""
    monkeypatch.setattr(vae, "EVALUATION_DRAWS", 2)  # each of them is traced
    subject = configured(CONFIGS / f"{name}.gin", tmp_path, SMALL.get(name, ()))
    batch = {key: np.asarray(x) for key, x in subject.batch.items()}
    held_out = ArraySource({key: x[:12] for key, x in batch.items()}, name="held out")
    outcomes, experiments = [], []
    layouts = LAYOUTS.get(name.replace("conditional_", ""), ())
    mesh = on_virtual_mesh(2, 2 if layouts else 1, layouts)
    for strategy in (on_virtual_cpus(1), mesh):
        experiment = subject.experiment(strategy)
        outcomes.append(Run(experiment.assembly, batch).train(2))
        experiments.append(experiment)
    expected, found = outcomes
    for one, other in (
        (found.variables, expected.variables),
        (found.figures, expected.figures),
        (found.norms, expected.norms),
    ):
        assert one.keys() == other.keys()
        for path, value in other.items():
            np.testing.assert_allclose(one[path], value, rtol=1e-5, atol=1e-5, err_msg=path)
    figures = Evaluator(experiments[1], held_out, global_batch_size=8).evaluate()
    assert figures == pytest.approx(computed(experiments[0], held_out), rel=1e-5, abs=1e-5)


@pytest.mark.long
def test_evaluation_that_cannot_be_on_a_mesh_is_refused(tmp_path):
    subject = configured(CONFIGS / "digits_ddpm.gin", tmp_path, SMALL["digits_ddpm"])
    experiment = subject.experiment(on_virtual_mesh(2, 1))
    with pytest.raises(ConfigurationError, match=REFUSED_ON_MESHES["digits_ddpm"]):
        Evaluator(experiment, experiment.eval_source).evaluate()


LATE = {"digits_resnet", "digits_stylegan2", "digits_vit"}  # after seconds of tracing


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(LATE))
def test_step_that_cannot_be_on_a_mesh_is_refused_once_it_is_traced(name, tmp_path, monkeypatch):
    monkeypatch.setitem(resnet.BLOCKS, 18, (1,))
    subject = configured(CONFIGS / f"{name}.gin", tmp_path, SMALL.get(name, ()))
    experiment = subject.experiment(on_virtual_mesh(2, 1))
    with pytest.raises(ConfigurationError, match=REFUSED_ON_MESHES[name]):
        Run(experiment.assembly, subject.batch)


# Refused as others are.
ELSEWHERE = ("cyclegan", "digits_gan_by_batch_size", "digits_gan_sampling_on_every_replica")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ELSEWHERE else [])
        for name in sorted({*REFUSED_ON_MESHES} - {"digits_ddpm"} - LATE)
    ],
)
def test_configuration_that_cannot_be_on_a_mesh_is_refused(name, tmp_path):
    flags = [f"--gin_file={CONFIGS / path}.gin" for path in (name, "runtime/mesh")]
    if name == "cyclegan":
        write_images(tmp_path)
        flags.append(f"--gin_param=directory = '{tmp_path}'")
    flags += [f"--gin_param={change}" for change in {**SMALL, **CHANGES}.get(name, ())]
    refused(*flags, cwd=tmp_path, exit_code=2, says=[REFUSED_ON_MESHES[name]])


def test_docs_name_the_configurations_that_meshes_refuse():
    page = (CHECKOUT / "docs" / "choose-a-strategy.md").read_text()
    assert [name for name in REFUSED_ON_MESHES if f"`{name}`" not in page] == []
