"""Replica consistency check of a mesh: compares devices that hold the same shard."""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from core.distribution.drift import fingerprints_of, refuse_drift
from core.parallel.mesh.strategy import MeshStrategy


def device_drift_check(strategy: MeshStrategy, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
    """Returns a function that raises a `DriftError`, with the variables and devices that differ, if any do.

    The check sends nothing between devices of a process; processes exchange only fingerprints.
    """
    alike = {path: strategy.first_alike(v) for path, v in variables.items()}
    alike = {path: first for path, first in alike.items() if len(set(first)) < len(first)}  # the others have no copy
    firsts = np.array(list(alike.values())).T

    @tf.function(autograph=False)
    def fingerprints(parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return fingerprints_of([functools.partial(tf.identity, part) for part in parts])

    def check() -> None:
        if not alike:
            return
        rows = []
        for parts in zip(*(strategy.local_parts(variables[path]) for path in alike), strict=True):
            with tf.device(parts[0].device):
                rows.append(fingerprints(parts))
        table = strategy.rows_of_devices(tf.stack(rows)).numpy()
        differs = table != np.take_along_axis(table, firsts, axis=0)
        refuse_drift(differs, "device", "others of the mesh with the same part do", list(alike))

    return check
