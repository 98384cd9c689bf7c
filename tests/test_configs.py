"""Every shipped configuration keeps its promise, with the real command."""

import gzip
import json
import re

import numpy as np
import pytest
import tensorflow as tf

import core
from tests.commands import CHECKOUT, CONFIGS, refused, run
from tools.quality import TARGETS, missed_targets
from trainers.main import main

TEXTS = ("text_bert", "text_lstm", "text_markov", "text_nano", "text_nano_soap", "text_t5", "text_tiny")
MINUTES = {"digits_resnet", "digits_vit"}  # of training: `tools.quality` takes them, tests their parts
ACCURACY = [name for name, targets in TARGETS.items() if "accuracy" in targets and name not in MINUTES]
CONFIGURATIONS = {  # how each is tested
    "accuracy": set(ACCURACY),
    "parts": MINUTES,
    "mnist": {"mnist_linear", "mnist_mlp"},
    "in its model's test": {"cifar10_speed"},
    "samples": {"digits_gan"},
    "folder of the user's": {"cyclegan"},
    "summary": {
        "digits_conditional_gan",
        "digits_cyclegan",
        "digits_dcgan",
        "digits_ddpm",
        "digits_edm",
        "digits_flow",
        "digits_guided",
        "digits_gan_by_batch_size",
        "digits_gan_generator_on_one_device",
        "digits_gan_sampling_on_every_replica",
        "digits_pix2pix",
        "digits_simclr",
        "digits_stylegan2",
        "digits_vae",
        "digits_vqvae",
        *TEXTS,
    },
    "summary in a test of its own": {"text_small"},
    "dry run": {"text_70b"},  # in tests/trainers/test_dry_run.py: too large for the project's machines
    "runtime": {"runtime/one_device", "runtime/mirrored", "runtime/multi_worker", "runtime/tpu", "runtime/mesh"},
    "a test of its own": {
        "runtime/mesh_transformer",
        "runtime/mesh_sequence",
        "runtime/local_steps",
        "runtime/parameter_server",
    },
}


def test_configurations_are_in_one_row_each_and_say_what_they_are():
    listed = sorted(name for names in CONFIGURATIONS.values() for name in names)
    assert listed == sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.glob("**/*.gin"))
    for path in CONFIGS.glob("**/*.gin"):
        assert path.read_text().startswith("# "), f"say on the first line what {path.name} is"


@pytest.mark.long
def test_cyclegan_of_the_paper_combines_with_replicas(tmp_path):
    for domain in ("trainA", "trainB", "testA", "testB"):
        folder = tmp_path / "images" / domain
        folder.mkdir(parents=True)
        for i in range(2):
            png = tf.io.encode_png(tf.fill([300, 300, 3], tf.cast(i, tf.uint8)))
            (folder / f"{i}.png").write_bytes(png.numpy())
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("cyclegan", "runtime/mirrored")]
    bindings = [f"--gin_param=directory = '{tmp_path / 'images'}'", "--gin_param=Trainer.global_batch_size = 2"]
    small = ["CycleGan.width = 4", "CycleGan.blocks = 1", "CycleGan.discriminator_channels = [4, 4]"]
    bindings += [f"--gin_param={text}" for text in small]
    done = run(*files, *bindings, "--mode=summary", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "generators" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", ACCURACY)
def test_digits_reach_their_accuracy(name, tmp_path):
    done = run(f"--gin_file={CONFIGS / name}.gin", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs" / name / "result.json").read_text())
    assert missed_targets({name: [result["evaluation"]]}) == []


@pytest.mark.parametrize(
    ("name", "says"), [("multi_worker", "`multi_worker` finds no cluster"), ("tpu", "where no TPU answers")]
)
def test_runtime_files_say_what_they_miss(name, says, tmp_path):
    flags = (f"--gin_file={CONFIGS / 'digits_mlp.gin'}", f"--gin_file={CONFIGS / 'runtime' / name}.gin")
    refused(*flags, cwd=tmp_path, exit_code=2, says=[says])


@pytest.mark.long
@pytest.mark.parametrize("name", ["one_device", "mirrored", "mesh"])
def test_runtime_files_combine_with_any_experiment(name, tmp_path):
    flags = (f"--gin_file={CONFIGS / 'digits_linear.gin'}", f"--gin_file={CONFIGS / 'runtime' / name}.gin")
    few = ("Trainer.steps = 8", "Trainer.microbatches = 4")
    done = run(*flags, *(f"--gin_param={binding}" for binding in few), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs" / "digits_linear" / "result.json").read_text())
    assert (result["step"], result["exit_code"]) == (8, 0)


MIRRORED = f"--gin_file={CONFIGS / 'runtime' / 'mirrored.gin'}"


@pytest.fixture
def summary(tmp_path, capsys):
    """Returns the command's summary of a configuration on two replicas, or its refusal."""

    def printed(name, *more, code=0):
        flags = [f"--gin_file={CONFIGS / name}.gin", MIRRORED, *more, "--mode=summary", f"--workdir={tmp_path}"]
        assert main(flags) == code
        return capsys.readouterr()[bool(code)]

    return printed


def test_gradients_may_be_sent_in_half_the_bytes(summary):
    assert "bfloat16" in summary("digits_linear", "--gin_param=Trainer.reduce_gradients_in = 'bfloat16'")
    said = summary("digits_linear", "--gin_param=Trainer.reduce_gradients_in = 'int8'", code=2)
    assert "reduce_gradients_in" in said
    assert "int8" in said


SENT = re.compile(r"^\| `(digits_\w+)` \| ((?:\w+ (?:gradients|figures|values|statistics)(?:, )?)+) \|$", re.MULTILINE)
LISTED = dict(SENT.findall((CHECKOUT / "docs" / "gans.md").read_text()))
# `text_tiny` for all texts: the same task with other sizes.
ELSEWHERE = {"digits_simclr": "net rows, net rows, net rows, net gradients", "text_tiny": "net gradients"}
FEWER = {  # layers and channels: what is sent depends on phases and placements alone
    "digits_cyclegan": ["CycleGan.width = 4", "CycleGan.blocks = 1", "CycleGan.discriminator_channels = [4]"],
    "digits_dcgan": ["dcgan_networks.channels = [4, 4]"],
    "digits_edm": ["diffusion_mlp.blocks = 1"],
    "digits_flow": ["diffusion_mlp.blocks = 1"],
    "digits_guided": ["diffusion_mlp.blocks = 1"],
    "digits_pix2pix": ["Pix2Pix.generator_channels = [4, 4]", "Pix2Pix.discriminator_channels = [4]"],
    "digits_simclr": ["SimClr.channels = [8]"],
    "digits_stylegan2": ["StyleGan2.mapping_layers = 1", "Experiment.eval_source = None"],  # `gans.md` evaluates it
    "text_tiny": ["LanguageModel.num_layers = 1"],
}
# One of each way to run stays plain: on every replica, and through one device.
PLAIN = {"digits_gan", "digits_gan_generator_on_one_device"}


def test_page_lists_every_generative_configuration():
    elsewhere = {*ELSEWHERE, *TEXTS}
    assert LISTED.keys() == CONFIGURATIONS["summary"] - elsewhere | CONFIGURATIONS["samples"]


@pytest.mark.parametrize(
    ("name", "sent"),
    [pytest.param(*x, marks=[pytest.mark.long] if x[0] not in PLAIN else []) for x in {**LISTED, **ELSEWHERE}.items()],
)
def test_generative_configuration_sends_what_its_page_says(name, sent, summary):
    fewer = [f"--gin_param={text}" for text in FEWER.get(name, [])]
    _, table = summary(name, *fewer).split("between 2 replicas")
    assert ", ".join(map(" ".join, re.findall(r"^│ (\w+) +│ (\w+) +│", table, re.MULTILINE))) == sent


@pytest.mark.long
def test_gan_writes_every_digit(tmp_path):
    flags = [f"--gin_file={CONFIGS / 'digits_gan.gin'}", "--workdir=run"]
    done = run(*flags, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    evaluation = json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"]
    assert missed_targets({"digits_gan": [evaluation]}) == []
    grids = sorted((tmp_path / "run" / "samples").glob("step-*.png"))
    assert grids
    done = run(*flags, "--mode=sample", "--samples=9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run" / "samples").glob("sample-*.png"))) == 9


def write_idx(folder, *, seed=0):
    """Writes four MNIST files, two of them gzipped, with 256 and 64 images that a linear model can separate."""
    random = np.random.RandomState(seed)
    prototypes = random.randint(0, 256, [10, 28, 28])
    for split, count in (("train", 256), ("t10k", 64)):
        labels = (np.arange(count) % 10).astype("uint8")
        images = np.clip(prototypes[labels] + random.randint(-30, 30, [count, 28, 28]), 0, 255).astype("uint8")
        for kind, array, open_file in (("images-idx3", images, gzip.open), ("labels-idx1", labels, open)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            suffix = ".gz" if open_file is gzip.open else ""
            with open_file(folder / f"{split}-{kind}-ubyte{suffix}", "wb") as file:
                file.write(header + array.tobytes())


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CONFIGURATIONS["mnist"]))
def test_mnist_is_read_from_a_folder(name, tmp_path):
    (tmp_path / "mnist").mkdir()
    write_idx(tmp_path / "mnist")
    steps = ["Trainer.steps = 100"] if name == "mnist_linear" else ["steps = 200", "warmup_cosine.warmup_steps = 50"]
    flags = [f"--gin_file={CONFIGS / name}.gin", *(f"--gin_param={x}" for x in steps)]
    done = run(*flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workdir = tmp_path / "runs" / name
    assert json.loads((workdir / "result.json").read_text())["evaluation"]["accuracy"] > 0.95
    (manifest,) = workdir.glob("checkpoints/*/manifest.json")
    for record in (workdir / "run.json", manifest):
        assert json.loads(record.read_text())["versions"]["tapeloop"] == core.__version__
