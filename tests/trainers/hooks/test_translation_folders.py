"""CycleGAN on the user's folders, by the real command line: from files to translated files, and what is refused."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.commands import CONFIGS, refused, run

SMALL = [
    "directory = 'faces'",
    "unpaired_folders.size = 16",
    "unpaired_folders.load_size = 18",
    "CycleGan.image_shape = [16, 16, 3]",
    "CycleGan.width = 4",
    "CycleGan.blocks = 1",
    "CycleGan.discriminator_channels = [4, 4]",
    "CycleGan.pool_size = 2",
    "Trainer.steps = 4",
    "Trainer.chunk_steps = 2",
    "Trainer.log_every = 2",
    "Trainer.evaluate_every = 4",
    "Trainer.checkpoint_every = 4",
    "Translations.every = 4",
]
FLAGS = [f"--gin_file={CONFIGS / 'cyclegan.gin'}", *(f"--gin_param={text}" for text in SMALL), "--workdir=run"]
COUNTS = {"trainA": 3, "trainB": 5, "testA": 2, "testB": 1}


@pytest.fixture
def faces(tmp_path):
    """Different counts, sizes and formats; some images grey, one tiny, one large."""
    random = np.random.RandomState(0)
    for name, count in COUNTS.items():
        (tmp_path / "faces" / name).mkdir(parents=True)
        for i in range(count):
            size = [30, 20] if i else ([7, 5] if name == "trainA" else [400, 300])
            image = random.randint(0, 256, [*size, 1 if i == 1 else 3]).astype("uint8")
            encode, suffix = (tf.io.encode_png, "png") if i % 2 else (tf.io.encode_jpeg, "jpg")
            (tmp_path / "faces" / name / f"{i}.{suffix}").write_bytes(encode(image).numpy())
    return tmp_path / "faces"


def test_folders_are_learnt_from_and_a_folder_is_translated(faces):
    where = faces.parent
    done = run(*FLAGS, cwd=where)
    assert done.returncode == 0, done.stderr
    assert (where / "run" / "samples" / "step-000000004.png").exists()
    shutil.copy(faces / "testA" / "0.jpg", faces / "testA" / "1.jpg")  # beside 1.png
    done = run(*FLAGS, "--mode=sample", "--images=faces/testA", cwd=where)
    assert done.returncode == 0, done.stderr
    translated = {path.name: path for path in (where / "run" / "samples" / "translated").glob("*.png")}
    assert sorted(translated) == ["0.png", "1.jpg.png", "1.png.png"]
    for path in translated.values():
        assert tf.io.decode_png(path.read_bytes()).shape == [16, 16, 3]
    assert translated["0.png"].read_bytes() == translated["1.jpg.png"].read_bytes()


def test_folders_that_are_no_data_are_refused(faces):
    where = faces.parent
    damaged = faces / "trainB" / "2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:100])
    refused(*FLAGS, cwd=where, exit_code=4, says=["2.jpg"])
    for path in (faces / "trainB").iterdir():
        path.unlink()
    refused(*FLAGS, cwd=where, exit_code=4, says=["trainB"])
    (faces / "trainB").rmdir()
    refused(*FLAGS, cwd=where, exit_code=4, says=["trainB"])
