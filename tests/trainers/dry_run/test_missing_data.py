"""A dry run without its data: examples have the shapes that the task declares."""

import tensorflow as tf

from core.optimizers import sgd
from core.random import Rng
from models import LanguageModel
from trainers.dry_run.build import AsTheTaskReads


def test_texts_have_the_length_that_the_task_declares():
    sizes = {"vocabulary": 11, "context": 8, "num_layers": 1, "size": 4, "num_heads": 2}
    source = AsTheTaskReads(LanguageModel(rng=Rng.from_seed(0), optimizer=sgd(0.1), **sizes), "No file is there.")
    assert source.spec == {name: tf.TensorSpec([8 + 1], tf.int32) for name in ("tokens", "document", "bytes")}
    assert {name: x.shape for name, x in source.gather(tf.range(3)).items()} == dict.fromkeys(source.spec, (3, 8 + 1))
