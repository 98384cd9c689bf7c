"""Runs with corrupted events, whose faults the TensorBoard checks must find."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.summary.writer.record_writer import RecordWriter

from tools.browser import boards

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Fault(NamedTuple):
    """A change to a tag's values, and the report that it must cause."""

    split: str
    tag: str
    spoil: Callable[[Any], bool]  # tells whether a value stays
    said: str


def dropped(_: Any) -> bool:
    return False


def changed(value: Any) -> bool:
    value.simple_value *= 1.001
    return True


def emptied(value: Any) -> bool:
    value.image.encoded_image_string = b""
    return True


def cut(value: Any) -> bool:
    value.tensor.string_val[0] = value.tensor.string_val[0][:500]
    return True


FAULTS = {
    "digits_vae": [
        Fault("eval", "loss", dropped, "draws 1 lines of `loss`"),
        Fault("train", "gradient_norm", changed, "says that `gradient_norm` of digits_vae/events/train"),
        Fault("train", "learning_rate", dropped, "has no chart of `learning_rate`"),
        Fault("train", "examples_per_second", changed, "HParams says that `examples_per_second` of digits_vae/train"),
        Fault("samples", "samples", dropped, "shows no picture of `samples`"),
        Fault("samples", "reconstructions", emptied, "shows no picture of `reconstructions`"),
        Fault("weights", "encoder/layers/0/w", dropped, "has no histogram of `encoder/layers/0/w`"),
        Fault("", "configuration", cut, "doesn't show the whole configuration of digits_vae"),
    ],
    "text_tiny": [
        Fault("samples", "texts", dropped, "shows no text that text_tiny has written"),
        Fault("", "configuration", dropped, "doesn't show the whole configuration of text_tiny"),
        Fault("", SESSION_START_INFO_TAG, dropped, "HParams has no row of text_tiny"),
    ],
}


def unseen(chromium: "Browser", runs: Path, folder: Path) -> Iterator[str]:
    """Yields a sentence for each fault that isn't found in copies of `runs`."""
    for name, faults in FAULTS.items():
        shutil.copytree(runs / name, folder / name)
        for fault in faults:
            _spoil(folder / name / "events" / fault.split, fault)
    found = list(boards.faults(chromium, folder, None))
    for fault in (fault for faults in FAULTS.values() for fault in faults):
        if not any(fault.said in text for text in found):
            yield f"nothing is said of `{fault.tag}` {fault.spoil.__name__} in {fault.split or 'events'}"


def _spoil(events: Path, fault: Fault) -> None:
    """Rewrites the events of a folder with the fault in them."""
    for path in events.glob("events.*"):
        kept = [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
        writer = RecordWriter(path.open("wb"))
        for event in kept:
            values = [value for value in event.summary.value if value.tag != fault.tag or fault.spoil(value)]
            if event.HasField("summary"):
                del event.summary.value[:]
                event.summary.value.extend(values)
            writer.write(event.SerializeToString())
        writer.close()
