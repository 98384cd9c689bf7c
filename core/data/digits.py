"""The embedded digits: 1,797 handwritten digits of 8x8 pixels (`embedded/ATTRIBUTION.md`).

>>> source = digits("test")
>>> len(source), source.spec["image"].shape
(360, TensorShape([8, 8, 1]))
"""

from pathlib import Path
from typing import Literal

import gin

from core.data.arrays import ArraySource
from core.data.npz_files import read_npz
from core.data.source import Source, check_split

_FILE = Path(__file__).parent / "embedded" / "digits.npz"


@gin.configurable
def digits(split: Literal["train", "test"] = "train") -> Source:
    """Reads `image` float32 [8, 8, 1] in [0, 1] and `label` int32: 1,437 digits for training, 360 for testing."""
    check_split("digits", split, ["train", "test"])
    arrays = read_npz(_FILE)
    mine = arrays["is_test"] == (split == "test")
    return ArraySource(
        {"image": arrays["images"][mine, :, :, None], "label": arrays["labels"][mine]},
        name="digits",
        place=str(_FILE),
        scale=1.0 / 16.0,
        highest_level=16,
    )
