"""Commands whose files are damaged between two runs: each ends with code 4 and the file's name, and harms no run."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.commands import passed, refused
from tests.trainers.resume_lab import outcome

GIN = """
import core.data
import models

Experiment.task = @MlpClassifier
MlpClassifier.sizes = [48, 3]
MlpClassifier.optimizer = @sgd()
sgd.learning_rate = 0.1
Experiment.train_source = @{source}()
{source}.features = {{'image': ('image', 4), 'label': 'int'}}
Trainer.global_batch_size = 16
Trainer.chunk_steps = 5
Trainer.log_every = 10
"""
IMAGES = [tf.io.encode_png(np.random.RandomState(i).randint(0, 256, [4, 4, 3], np.uint8)).numpy() for i in range(48)]


def records():
    for number, image in enumerate(IMAGES):
        features = {
            "image": tf.train.Feature(bytes_list={"value": [image]}),
            "label": tf.train.Feature(int64_list={"value": [number % 3]}),
            "noise": tf.train.Feature(bytes_list={"value": [np.random.RandomState(number).bytes(4000)]}),
        }
        yield tf.train.Example(features={"feature": features}).SerializeToString()


def write_arrow(folder):
    import datasets

    columns = datasets.Features(image=datasets.Image(decode=False), label=datasets.Value("int64"))
    images = [{"bytes": image, "path": None} for image in IMAGES]
    rows = {"image": images, "label": [number % 3 for number in range(48)]}
    datasets.Dataset.from_dict(rows, features=columns).save_to_disk(folder, num_shards=2)


def write_shards(folder):
    from webdataset import ShardWriter

    folder.mkdir()
    with ShardWriter(f"{folder}/%d.tar", maxcount=20, verbose=0) as file:
        for number, image in enumerate(IMAGES):
            file.write({"__key__": f"{number:02}", "png": image, "cls": number % 3})


def write_array_records(folder):
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir()
    file = ArrayRecordWriter(f"{folder}/a.array_record", "group_size:1")
    for record in records():
        file.write(record)
    file.close()


def prepare(folder):
    import tensorflow_datasets as tfds

    class Small(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {"image": tfds.features.Image(shape=(4, 4, 3)), "label": np.int64}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, image in enumerate(IMAGES):
                yield number, {"image": tf.io.decode_png(image).numpy(), "label": number % 3}

    Small(data_dir=folder, file_format="tfrecord").download_and_prepare()


@dataclasses.dataclass(frozen=True)
class Case:
    """A source of `data`; `damage` changes the content of a file, and `says` is in the error besides its name."""

    source: str
    write: Callable[[Path], object]
    bindings: str
    file: str
    damage: Callable[[bytes], bytes]
    says: str


def spoil_image(content):
    """Changes the compressed pixels of one image, of which nothing but decoding tells."""
    place = content.index(IMAGES[30]) + 45
    return content[:place] + bytes(8) + content[place + 8 :]


CASES = {
    "truncated arrow": Case(
        "hugging_face",
        write_arrow,
        "hugging_face.directory = 'data'",
        "data-00001-of-00002.arrow",
        lambda x: x[:-8],
        "is cut off",
    ),
    "undecodable image": Case(
        "webdataset",
        write_shards,
        "webdataset.files = 'data/*.tar'\nwebdataset.stored_as = {'image': 'png', 'label': 'cls'}",
        "1.tar",
        spoil_image,
        "sample `30` of",
    ),
    "damaged record": Case(
        "array_record",
        write_array_records,
        "array_record.files = 'data/*'",
        "a.array_record",
        lambda x: x[:100_000] + bytes([x[100_000] ^ 1]) + x[100_001:],
        "is damaged: Corrupted",
    ),
    "another version": Case(
        "tfds",
        prepare,
        "tfds.directory = 'data/small/1.0.0'",
        "small/1.0.0/dataset_info.json",
        lambda x: x.replace(b"48", b"50"),
        "holds 48 records, but",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_damage_ends_the_command_and_the_repaired_run_as_if_it_never_was(case, tmp_path):
    case.write(tmp_path / "data")
    (tmp_path / "run.gin").write_text(f"{GIN.format(source=case.source)}{case.bindings}\n")
    file = tmp_path / "data" / case.file

    def command(run, name, steps, **expected):
        param = f"--gin_param=Trainer.steps = {steps}"
        return run("--gin_file=run.gin", f"--workdir={name}", param, cwd=tmp_path, **expected)

    command(passed, "whole", 40)
    command(passed, "mended", 20)
    content, state = file.read_bytes(), file.stat()
    file.write_bytes(case.damage(content))
    command(refused, "mended", 40, exit_code=4, says=[str(file), case.says])
    file.write_bytes(content)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert "resuming from step 20" in command(passed, "mended", 40).stdout
    assert outcome(tmp_path / "mended")[:2] == outcome(tmp_path / "whole")[:2]
