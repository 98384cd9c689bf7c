"""Flags of `--mode=export`."""

from absl.flags import DEFINE_string, FlagValues

from trainers.export.asked import asked
from trainers.modes import evaluate_flags
from trainers.process.flags import refuse_address

FLAGS = {
    "format": (DEFINE_string, "saved_model", "format of `--mode=export`: saved_model, tflite, or both with a comma"),
    "weights": (DEFINE_string, "float32", "type of exported weights: float32, bfloat16 or int8"),
    "export_dir": (DEFINE_string, None, "the folder for an export (default: `export/<step>` in the workdir)"),
    **evaluate_flags.FLAGS,
}


def check(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for an invalid format, weight type, export folder or checkpoint."""
    refuse_address(flags, "export_dir")
    evaluate_flags.check(flags)
    asked(flags.format, flags.weights)
