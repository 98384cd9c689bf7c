"""Translation of the user's folders with the command: from files to translated files, and refused folders."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.commands import passed, refused

FOLDERS = ["unpaired_folders.size = 16", "unpaired_folders.load_size = 18", "Translations.every = 2"]
FOLDERS += [f"Trainer.{x} = 2" for x in ("steps", "chunk_steps", "log_every", "evaluate_every", "checkpoint_every")]
GAIN = """
import gin
import tensorflow as tf

from core.optimizers import sgd
from core.task import Loss, Update
from models.translation.task import Translation


@gin.configurable
class Gain(Translation):
    def __init__(self, *, rng):
        super().__init__([16, 16, 3], multiple=1, why="", crop_and_flip=True, paired=False)
        self.gain = tf.Variable(0.5, name="gain")

    def phases(self):
        return [*self.crops(), Update("gain", loss=self.loss, trains=self, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return self.distance(*self.images(batch))

    def evaluate(self, batch):
        return self.distance(*self.held_out(batch))

    def distance(self, a, b):
        return Loss(tf.reduce_mean(tf.square(self.translate(a) - b), [1, 2, 3]))

    def translate(self, image):
        return self.gain * image
"""
GIN = """
import gain
Experiment.task = @Gain
Experiment.train_source = @unpaired_folders()
Experiment.eval_source = @test/unpaired_folders()
unpaired_folders.directory = 'faces'
test/unpaired_folders.split = 'test'
Trainer.global_batch_size = 1
Trainer.hooks = [@Translations()]
Evaluator.global_batch_size = 1
"""
SHORT = [*(f"--gin_param={each}" for each in FOLDERS), "--workdir=run"]
COUNTS = {"trainA": 3, "trainB": 5, "testA": 2, "testB": 1}


@pytest.fixture
def faces(tmp_path):
    """Writes different counts, sizes and formats; some images grey, one tiny, one large."""
    random = np.random.RandomState(0)
    for name, count in COUNTS.items():
        (tmp_path / "faces" / name).mkdir(parents=True)
        for i in range(count):
            size = [30, 20] if i else ([7, 5] if name == "trainA" else [400, 300])
            image = random.randint(0, 256, [*size, 1 if i == 1 else 3]).astype("uint8")
            encode, suffix = (tf.io.encode_png, "png") if i % 2 else (tf.io.encode_jpeg, "jpg")
            (tmp_path / "faces" / name / f"{i}.{suffix}").write_bytes(encode(image).numpy())
    (tmp_path / "gain.py").write_text(GAIN)
    (tmp_path / "gain.gin").write_text(GIN)
    return tmp_path / "faces"


def test_folders_are_learnt_from_and_a_folder_is_translated(faces):
    where, flags = faces.parent, ["--gin_file=gain.gin", *SHORT]
    passed(*flags, cwd=where)
    assert (where / "run" / "samples" / "step-000000002.png").exists()
    shutil.copy(faces / "testA" / "0.jpg", faces / "testA" / "1.jpg")  # next to 1.png
    passed(*flags, "--mode=sample", "--images=faces/testA", cwd=where)
    translated = {path.name: path for path in (where / "run" / "samples" / "translated").glob("*.png")}
    assert sorted(translated) == ["0.png", "1.jpg.png", "1.png.png"]
    for path in translated.values():
        assert tf.io.decode_png(path.read_bytes()).shape == [16, 16, 3]
    assert translated["0.png"].read_bytes() == translated["1.jpg.png"].read_bytes()


def test_folders_that_are_no_data_are_refused(faces):
    where = faces.parent
    damaged = faces / "trainB" / "2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:100])
    refused("--gin_file=gain.gin", *SHORT, cwd=where, exit_code=4, says=["2.jpg"])
    shutil.rmtree(faces / "trainB")
    refused("--gin_file=gain.gin", *SHORT, cwd=where, exit_code=4, says=["trainB"])
