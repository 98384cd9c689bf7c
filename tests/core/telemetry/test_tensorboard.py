"""TensorBoard's own plugins read configurations, histograms, images and texts."""

import io

import numpy as np
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

from core.telemetry import TensorBoard


def read(folder):
    return EventAccumulator(str(folder), size_guidance={"histograms": 0, "images": 0, "tensors": 0}).Reload()


def written(folder):
    writer = TensorBoard(folder, 0)
    writer.describe("Trainer.steps = 300", {"adamw.learning_rate": "0.001", "x.on": "True", "x.task": "@Mlp"})
    writer.histograms(
        7, {"layers/0/w": np.array([[0.0, 1.0], [1.0, 4.0], [np.nan, np.inf]], "float32"), "b": np.zeros([3])}
    )
    picture = io.BytesIO()
    Image.new("RGB", (5, 3)).save(picture, "PNG")
    writer.image(7, "samples", picture.getvalue())
    writer.text(7, "texts", "One.\n\n# no heading")
    writer.close()


def test_the_configuration_is_a_text_and_hyperparameters(tmp_path):
    written(tmp_path)
    events = read(tmp_path)
    (text,) = events.Tensors("configuration")
    assert text.tensor_proto.string_val[0].decode() == "```\nTrainer.steps = 300\n```"
    data = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    session = parse_session_start_info_plugin_data(data)
    assert session.group_name == "/".join(tmp_path.parts[-3:-1])  # its row goes by the folder of the run
    found = session.hparams
    assert found["adamw.learning_rate"].number_value == 0.001
    assert found["x.on"].bool_value is True
    assert found["x.task"].string_value == "@Mlp"


def test_histograms_have_the_moments_of_the_values(tmp_path):
    written(tmp_path)
    events = read(tmp_path / "weights")
    (event,) = events.Histograms("layers/0/w")
    found = event.histogram_value
    assert (event.step, found.min, found.max, found.num, found.sum, found.sum_squares) == (7, 0.0, 4.0, 4, 6.0, 18.0)
    assert sum(found.bucket) == 4
    assert len(found.bucket) == len(found.bucket_limit)
    assert np.searchsorted(found.bucket_limit, [1.01])[0] == int(np.argmax(found.bucket))  # two ones
    assert events.Histograms("b")[0].histogram_value.num == 3  # of values that are all the same


def test_pictures_and_texts_are_samples(tmp_path):
    written(tmp_path)
    events = read(tmp_path / "samples")
    (image,) = events.Images("samples")
    assert (image.step, image.width, image.height) == (7, 5, 3)
    (text,) = events.Tensors("texts")
    assert text.tensor_proto.string_val[0].decode() == "    One.\n    \n    # no heading\n"  # as it stands
