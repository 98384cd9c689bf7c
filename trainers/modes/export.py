"""`--mode=export`: exports the task's serving functions with a checkpoint's weights, for use without this project."""

import json
from pathlib import Path

import gin
import tensorflow as tf

from core import checkpoint
from core.checkpoint.files import file_sha256
from core.checkpoint.manifest import MANIFEST
from core.cluster.topology import cluster_from_environment
from core.disk import remove_unfinished_folders
from core.errors import ConfigurationError
from core.precision import SERVE
from core.task import Task
from core.weights import merge_all
from trainers.evaluation.averaged_weights import averaged_task, restore
from trainers.experiment import HERE, Experiment, given_precision
from trainers.export.asked import asked, check_computed
from trainers.export.folder import write_export
from trainers.export.program import Program
from trainers.options.sizes import size
from trainers.session import Session


def run(session: Session) -> int:
    """Writes a folder with the formats of `--format`, and prints their sizes."""
    # On the CPU, which multiplies float32 exactly, and whose memory a training on the GPU leaves free.
    tf.config.set_visible_devices([], "GPU")
    flags = session.flags
    wanted = asked(flags.format, flags.weights)
    _check_alone()
    session.bind(required=[Experiment])
    for parameter, value in HERE.items():
        gin.bind_parameter(f"Experiment.{parameter}", value)
    experiment = Experiment()
    experiment.compute_in(given_precision())
    check_computed(wanted, experiment.precision.of(SERVE).name)
    session.configuration.check_consumed()
    manifest = session.required_checkpoint()
    if changes := session.changes_of_experiment(manifest):
        print(f"Warning: `{manifest.path}` belongs to a run with another configuration:\n{changes}", flush=True)
    exports = session.workdir.path / "export"
    remove_unfinished_folders(exports)
    name = manifest.path.name if wanted.weights == "float32" else f"{manifest.path.name}-{wanted.weights}"
    target = Path(flags.export_dir or exports / name)
    if target.exists():
        raise ConfigurationError(
            f"`{target}` exists already: remove it, or name another folder with `--export_dir=DIR`."
        )
    task = restored(experiment, manifest)
    merge_all(task)
    source = experiment.shown_source
    origin = {
        "task": type(task).__name__,
        "step": manifest.step,
        "checkpoint_sha256": file_sha256(manifest.path / MANIFEST),
        "config_hash": manifest.config_hash,
    }
    write_export(target, Program(task, source.spec, experiment.precision), source, wanted, origin)
    formats = json.loads((target / "export.json").read_text("utf-8"))["formats"]
    sizes = ", ".join(f"{kind} of {size(entry['bytes'])}" for kind, entry in formats.items())
    print(
        f"exported step {manifest.step} in {wanted.weights}, compared in a fresh process: {sizes}, in `{target}`",
        flush=True,
    )
    return 0


def _check_alone() -> None:
    cluster = cluster_from_environment()
    if cluster is not None and len(cluster.workers) > 1:
        raise ConfigurationError(
            f"`--mode=export` runs as one process, but this one was started as {cluster.name(cluster.index)} of "
            f"{len(cluster.workers)}: leave out `trainers.launch`, or unset `TF_CONFIG`."
        )


def restored(experiment: Experiment, manifest: checkpoint.Manifest) -> Task:
    """Returns the task with the weights that evaluation uses. Skips checkpoint variables of training alone."""
    learnt = {path.partition("/")[0] for path in experiment.variables}
    others = {path.partition("/")[0] for path in manifest.variables} - learnt
    partial = [f"{name}/*" for name in sorted(others)]
    restore(manifest, experiment.variables, assembly=experiment.assembly, partial=partial, say=print)
    averaged = averaged_task(experiment)
    averaged.update()
    return averaged.task
