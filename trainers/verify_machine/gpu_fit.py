"""Compares this machine's NVIDIA GPUs and driver with the installed TensorFlow build, and says what to install."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Card(NamedTuple):
    """A GPU as its driver reports it."""

    name: str
    capability: tuple[int, int]  # CUDA's compute capability


def ask_driver() -> tuple[list[Card], tuple[int, int] | None]:
    """Returns the GPUs and the newest CUDA version that the driver supports. Without a driver: no GPU, `None`."""
    try:
        listed = _driver("--query-gpu=name,compute_cap", "--format=csv,noheader")
        cuda = re.search(r"CUDA Version: (\d+)\.(\d+)", _driver())
    except (OSError, subprocess.SubprocessError):
        return [], None
    rows = [line.rpartition(",") for line in listed.splitlines()]
    cards = [Card(name.strip(), _version(text)) for name, _, text in rows if re.fullmatch(r"\s*\d+\.\d+\s*", text)]
    return cards, (int(cuda[1]), int(cuda[2])) if cuda else None


def advice(
    built: Mapping[str, Any], cards: Sequence[Card], driver_cuda: tuple[int, int] | None, *, seen: int
) -> list[str]:
    """Returns a paragraph for each reason why TensorFlow can't use the GPUs, or begins slowly on them.

    `built` is `tf.sysconfig.get_build_info()`, and `seen` the number of GPUs that TensorFlow found.
    """
    if not cards:
        return []
    if not built.get("is_cuda_build"):
        return [f"TensorFlow is built without CUDA, so it uses none of {len(cards)} GPUs: `pip install -e '.[gpu]'`."]
    cuda = str(built["cuda_version"])
    if driver_cuda and driver_cuda[0] < _version(cuda)[0]:
        return [
            f"The NVIDIA driver supports CUDA {driver_cuda[0]}.{driver_cuda[1]}, and TensorFlow is built with {cuda}: "
            f"install a driver for CUDA {_version(cuda)[0]} or newer."
        ]
    said = [text for card in sorted(set(cards)) if (text := _unfit(card, built["cuda_compute_capabilities"]))]
    if not seen and not said:
        said.append(
            f"TensorFlow sees none of {len(cards)} GPUs, which it is built for: install CUDA's libraries by "
            "`pip install -e '.[gpu]'`, and look whether `CUDA_VISIBLE_DEVICES` hides the GPUs."
        )
    return said


def _unfit(card: Card, compiled_for: Sequence[str]) -> str | None:
    """Returns what is wrong between a GPU and a build's capabilities: `sm_XY` is code, `compute_XY` has PTX, too."""
    code = [_capability(text) for text in compiled_for]
    portable = [_capability(text) for text in compiled_for if text.startswith("compute_")]
    if any(each[0] == card.capability[0] and each <= card.capability for each in code):
        return None
    which = f"`{card.name}` has compute capability {card.capability[0]}.{card.capability[1]}"
    if any(each <= card.capability for each in portable):
        return (
            f"{which}, for which this TensorFlow holds no code: the driver compiles each kernel at its first use, in "
            "minutes. Set `CUDA_CACHE_MAXSIZE=4294967296` to keep all of them for later runs."
        )
    least = min(code)
    return (
        f"{which}, and this TensorFlow needs {least[0]}.{least[1]} or more: install a TensorFlow that is built for it, "
        "or use another GPU."
    )


def _capability(text: str) -> tuple[int, int]:
    """Returns the capability of "sm_89" or "compute_120": the last digit is the minor version."""
    digits = text.rpartition("_")[2]
    return int(digits[:-1]), int(digits[-1])


def _version(text: str) -> tuple[int, int]:
    major, minor = text.strip().split(".")[:2]
    return int(major), int(minor)


def _driver(*arguments: str) -> str:
    command = ["nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
