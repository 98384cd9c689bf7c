"""Explains a full memory or disk: reads TensorFlow's, NumPy's and Python's errors, and says what to reduce."""

import math
import re
import traceback

from core.disk import disk_full
from core.errors import NoRoomError
from trainers.options.sizes import size

_TENSOR = re.compile(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+) on (\S+)")
_BYTES = re.compile(r"Out of memory while trying to allocate (\d+) bytes", re.IGNORECASE)
_NODE = re.compile(r"\{\{node ([^}]+)\}\}|\[Op:(\w+)\]")
_FILE = re.compile(r"(\S+); (No space left on device|Disk quota exceeded|File too large)")
# A Python exception in a function called by TensorFlow, as text in TensorFlow's error.
_PYTHON = re.compile(r"\bMemoryError: ?([^\n]*)")
_PYTHON_FILE = re.compile(r"\bOSError: \[Errno (\d+)\] [^\n:]*(?:: '([^'\n]+)')?")
_WIDTHS = {"half": 2, "bfloat16": 2, "double": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16}
_NARROW = ("bool", "int8", "uint8", "float8")

# Activities by a file in the traceback, each with its remedy. The first match counts.
_TRAINING = (
    "training",
    "Lower `Trainer.global_batch_size`, use more `Trainer.microbatches` (with independent rows, results stay the same) "
    "or keep fewer activations by `Experiment.recompute`",
)
_SECTIONS = {
    "trainers/gin_audit/audit.py": ("importing a module that the configuration names", "Free memory on this machine"),
    "core/checkpoint/": ("restoring or saving a checkpoint", "Free memory on this machine or device"),
    "trainers/loop/input.py": (
        "reading a batch",
        "Lower `Trainer.global_batch_size` or `Trainer.chunk_steps`, or reduce what the source holds in memory",
    ),
    "trainers/evaluation/evaluator.py": ("evaluating", "Lower `Evaluator.global_batch_size`"),
    "trainers/modes/sample.py": ("sampling", "Request fewer images with `--samples`"),
    "trainers/hooks/": ("a hook was running", "Reduce the hook's number of examples or samples"),
    "trainers/experiment.py": ("making the task and its sources", "Make them smaller, or use a larger device"),
}


def explain_no_room(error: BaseException) -> NoRoomError | None:
    """Returns the error to show if `error` means that memory or a disk is full, else `None`."""
    if isinstance(error, OSError):
        return disk_full(_as_raised(error))
    text = str(error)
    if not isinstance(error, MemoryError):
        # TensorFlow's classes are recognised by name: this file is loaded before TensorFlow may be imported.
        classes = {c.__name__ for c in type(error).__mro__}
        found = _PYTHON_FILE.search(text) if "OpError" in classes else None
        if found and (full := disk_full(OSError(int(found[1]), "", found[2]))):
            return full
        if "OpError" in classes and (found := _FILE.search(text)):
            return NoRoomError(
                f"`{found[1]}` can't be written: {found[2]}. Make room there (`df -h`); the same command then resumes "
                "from the last checkpoint."
            )
        if "ResourceExhaustedError" not in classes:
            return None
    doing, remedy = _section(error)
    return NoRoomError(f"out of memory while {doing}: {_what(text)}. {remedy}.")


def _as_raised(error: OSError) -> OSError:
    """Returns the original error, because gin replaces an exception with one that has only the message."""
    first = error.__context__
    if not isinstance(first, OSError) or type(error).__bases__ != (type(first),):
        return error
    return _as_raised(first) if type(error).__qualname__ == type(first).__qualname__ else error


def _section(error: BaseException) -> tuple[str, str]:
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return next((s for part, s in _SECTIONS.items() if any(part in name for name in files)), _TRAINING)


def _what(text: str) -> str:
    """Describes the allocation that failed: the tensor's shape, type, bytes, device and operation, as far as known."""
    node = next((name for found in _NODE.findall(text) for name in found if name), None)
    made_by = f", made by the operation `{node}`," if node else ""
    if found := _TENSOR.search(text):
        shape, dtype, device = found.groups()
        count = math.prod(map(int, filter(None, shape.split(","))))
        where = device.rpartition("device:")[2]
        taken = size(count * (1 if dtype.startswith(_NARROW) else _WIDTHS.get(dtype, 4)))
        return f"a tensor of shape [{shape}] and type {dtype}{made_by} takes {taken}, more than is free on `{where}`"
    if found := _BYTES.search(text):
        return f"there is no room for {size(int(found[1]))}{made_by.rstrip(',')}"
    if found := _PYTHON.search(text):
        text = found[1]
    return text.strip().split("\n")[0].rstrip(".") or "Python can't allocate memory"
