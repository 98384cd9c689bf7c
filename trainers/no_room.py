"""Out of memory, or of disk: what TensorFlow, NumPy and Python say of it, in terms of what to make smaller."""

import math
import re
import traceback

from core.errors import NoRoomError
from core.room import disk_full

_TENSOR = re.compile(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+) on (\S+)")
_BYTES = re.compile(r"Out of memory while trying to allocate (\d+) bytes", re.IGNORECASE)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}|\[Op:(\w+)\]")
_FILE = re.compile(r"(\S+); (No space left on device|Disk quota exceeded|File too large)")
_WIDTHS = {"half": 2, "bfloat16": 2, "double": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16}
_NARROW = ("bool", "int8", "uint8", "float8")

# What was going on, by a file that stands in the traceback, and what to make smaller then. The first that fits counts.
_TRAINING = (
    "training",
    "Lower `Trainer.global_batch_size`, cut the step into more `Trainer.microbatches` (where rows are independent, no "
    "number changes), or keep fewer activations, by `core.layers.recompute`",
)
_SECTIONS = {
    "trainers/gin_audit/imports.py": ("importing a module that the configuration names", "Free memory on this machine"),
    "core/checkpoint/": ("restoring or saving a checkpoint", "Free memory on this machine or device"),
    "trainers/evaluator.py": ("evaluating", "Lower `Evaluator.global_batch_size`"),
    "trainers/modes/sample.py": ("sampling", "Ask for fewer images, with `--samples`"),
    "trainers/hooks/": ("a hook was looking at the run", "Let the hook take fewer examples or samples at once"),
    "trainers/experiment.py": (
        "making the task and its sources",
        "Make them smaller, or use a larger device",
    ),
}


def explain_no_room(error: BaseException) -> NoRoomError | None:
    """Returns what to say where `error` says that memory or a disk is full; else `None`."""
    if isinstance(error, OSError):
        return disk_full(error)
    text = str(error)
    if not isinstance(error, MemoryError):
        # TensorFlow's class is known by its name: this file is read before TensorFlow may be imported.
        if not any(c.__name__ == "ResourceExhaustedError" for c in type(error).__mro__):
            return None
        full = _FILE.search(text)
        if full:
            return NoRoomError(
                f"`{full[1]}` can't be written: {full[2]}. Make room there (`df -h`); the same command then goes on "
                "from the last checkpoint."
            )
    doing, remedy = _section(error)
    return NoRoomError(f"out of memory while {doing}: {_what(text)}. {remedy}.")


def _section(error: BaseException) -> tuple[str, str]:
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return next((s for part, s in _SECTIONS.items() if any(part in name for name in files)), _TRAINING)


def _what(text: str) -> str:
    """Names what there was no room for: a tensor by shape, type, bytes, device and operation, as far as is known."""
    node = next((name for found in _NODE.findall(text) for name in found if name), None)
    made_by = f", made by the operation `{node}`," if node else ""
    if found := _TENSOR.search(text):
        shape, dtype, device = found.groups()
        count = math.prod(map(int, filter(None, shape.split(","))))
        where = device.rpartition("device:")[2]
        size = _size(count * (1 if dtype.startswith(_NARROW) else _WIDTHS.get(dtype, 4)))
        return f"a tensor of shape [{shape}] and type {dtype}{made_by} takes {size}, which `{where}` hasn't left"
    if found := _BYTES.search(text):
        return f"there is no room for {_size(int(found[1]))}{made_by.rstrip(',')}"
    return text.strip().split("\n")[0].rstrip(".") or "Python itself finds no room"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"
