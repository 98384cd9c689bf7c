"""Every configuration that ships does what it says, through the real command."""

import gzip
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.commands import CONFIGS, refused, run
from tools.quality import TARGETS, missed_targets

ACCURACY = [name for name, targets in TARGETS.items() if "accuracy" in targets]
CONFIGURATIONS = {  # how each is tested
    "accuracy": set(ACCURACY),
    "mnist": {"mnist_linear", "mnist_mlp"},
    "samples": {"digits_gan"},
    "folder of the user's": {"cyclegan"},
    "summary": {
        "digits_conditional_gan",
        "digits_cyclegan",
        "digits_dcgan",
        "digits_ddpm",
        "digits_gan_by_batch_size",
        "digits_gan_generator_on_one_device",
        "digits_gan_sampling_on_every_replica",
        "digits_pix2pix",
        "digits_simclr",
        "digits_vae",
        "text_markov",
        "text_nano",
        "text_tiny",
    },
    "summary in a test of its own": {"text_small"},
    "dry run": {"text_70b"},  # in tests/trainers/test_dry_run.py: no machine of ours holds it
    "runtime": {"runtime/one_device", "runtime/mirrored", "runtime/multi_worker", "runtime/tpu", "runtime/mesh"},
    "a test of its own": {
        "runtime/mesh_transformer",
        "runtime/mesh_sequence",
        "runtime/local_steps",
        "runtime/parameter_server",
    },
}


def test_every_configuration_is_in_one_row_of_the_table_and_says_what_it_is():
    listed = sorted(name for names in CONFIGURATIONS.values() for name in names)
    assert listed == sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.glob("**/*.gin"))
    for path in CONFIGS.glob("**/*.gin"):
        assert path.read_text().startswith("# "), f"say on the first line what {path.name} is"


@pytest.mark.long
def test_the_papers_cyclegan_combines_with_replicas(tmp_path):
    for domain in ("trainA", "trainB", "testA", "testB"):
        folder = tmp_path / "images" / domain
        folder.mkdir(parents=True)
        for i in range(2):
            png = tf.io.encode_png(tf.fill([300, 300, 3], tf.cast(i, tf.uint8)))
            (folder / f"{i}.png").write_bytes(png.numpy())
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("cyclegan", "runtime/mirrored")]
    bindings = [f"--gin_param=directory = '{tmp_path / 'images'}'", "--gin_param=Trainer.global_batch_size = 2"]
    small = ["--gin_param=CycleGan.width = 4", "--gin_param=CycleGan.discriminator_channels = [4, 4]"]
    done = run(*files, *bindings, *small, "--mode=summary", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "generators" in done.stdout


@pytest.mark.long
def test_four_replicas_reach_the_accuracy_of_one_device(tmp_path):
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_mlp", "runtime/mirrored")]
    done = run(*files, "--gin_param=mirrored.replicas = 4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs" / "digits_mlp" / "result.json").read_text())
    assert missed_targets({"digits_mlp": [result["evaluation"]]}) == []


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


@pytest.mark.parametrize("name", ["one_device", "mirrored", "mesh"])
def test_runtime_files_combine_with_any_experiment(name, tmp_path):
    flags = (f"--gin_file={CONFIGS / 'digits_mlp.gin'}", f"--gin_file={CONFIGS / 'runtime' / name}.gin")
    done = run(*flags, "--gin_param=steps = 200", "--gin_param=Trainer.microbatches = 4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "digits_mlp" / "result.json").exists()


def test_replicas_may_send_gradients_in_half_the_bytes(tmp_path):
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/mirrored")]
    done = run(*files, "--gin_param=Trainer.reduce_gradients_in = 'bfloat16'", "--mode=summary", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "bfloat16" in done.stdout
    wrong = "--gin_param=Trainer.reduce_gradients_in = 'int8'"
    refused(*files, wrong, "--mode=summary", cwd=tmp_path, exit_code=2, says=["reduce_gradients_in", "int8"])


# Which take as long as all others.
LARGE = {"digits_cyclegan", "digits_ddpm", "digits_pix2pix", "text_markov", "text_nano", "text_tiny"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] if n in LARGE else []) for n in sorted(CONFIGURATIONS["summary"])]
)
def test_generative_configurations_are_whole(name, tmp_path):
    flags = (f"--gin_file={CONFIGS / name}.gin", f"--gin_file={CONFIGS / 'runtime' / 'mirrored'}.gin")
    done = run(*flags, "--mode=summary", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "between 2 replicas" in done.stdout


@pytest.mark.long
def test_the_gan_writes_every_digit(tmp_path):
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
    """Four files in MNIST's format, two of them gzipped, with 256 and 64 images that a linear model can tell apart."""
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


@pytest.mark.parametrize("name", sorted(CONFIGURATIONS["mnist"]))
def test_mnist_is_read_from_a_folder(name, tmp_path):
    (tmp_path / "mnist").mkdir()
    write_idx(tmp_path / "mnist")
    steps = "Trainer.steps = 100" if name == "mnist_linear" else "steps = 600"
    done = run(f"--gin_file={CONFIGS / name}.gin", f"--gin_param={steps}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs" / name / "result.json").read_text())
    assert result["evaluation"]["accuracy"] > 0.95
