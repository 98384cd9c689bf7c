"""Assertions for your own step functions and tasks, which need neither the trainer nor gin.

    def test_my_task():
        task = SpiralTask(rng=Rng.from_seed(0), optimizer=adamw(1e-2))
        assert_task(task, batch)  # every check that one batch allows
        assert_step_function(task.loss, batch)
        assert_updates_only(task, "net", task.net, batch)
        assert_overfits(task, batch)

    def test_my_task_on_many_replicas():
        make_task = functools.partial(SpiralTask, optimizer=adamw(1e-2))  # called with `rng=`, once for each number
        assert_replica_invariant(make_task, batch, replicas=(1, 2, 4))
        assert_accumulation_invariant(make_task, batch, microbatches=(1, 2, 4))
        assert_collectives(make_task, batch, {"net": {"gradients": 1}})

    def test_my_function():
        assert_traces_once(my_function, (x, tf.constant(1)), (x, tf.constant(2)))

    def test_my_network_at_any_width():
        assert_mup(make_task, batch)  # called with a width and `rng=`

    def test_my_source():
        assert_source(Points(100))

Each assertion raises an `AssertionError` that says what was found and what to do. `assert_task` runs those that need
one batch only: `assert_pure`, `assert_rows`, `assert_sums`, `assert_padding`, `assert_causal`, `assert_targets`,
`assert_draws`, `assert_float32`, `assert_gradients`, `assert_all_trained`. `docs/testing-your-step.md` shows each.

The assertions about replicas, accumulation and collectives run the engine on virtual CPU devices. A `conftest.py` with
`pytest_plugins = ["core.testing.pytest_plugin"]` makes four such devices.
"""

from core.testing.causality import assert_causal
from core.testing.collectives import assert_collectives
from core.testing.draws import assert_draws
from core.testing.gradients import assert_gradients
from core.testing.invariance import assert_accumulation_invariant, assert_mesh_invariant, assert_replica_invariant
from core.testing.learning import assert_overfits, assert_updates_only
from core.testing.padding import assert_padding
from core.testing.precision import assert_float32
from core.testing.purity import assert_pure
from core.testing.replicas import Outcome, Run, assemble, on_virtual_cpus, on_virtual_mesh
from core.testing.rows import assert_rows
from core.testing.sources import assert_source
from core.testing.step_function import assert_step_function
from core.testing.sums import assert_sums
from core.testing.targets import assert_targets
from core.testing.task_assertions import assert_task
from core.testing.tracing import assert_traces_once
from core.testing.trained import assert_all_trained
from core.testing.widths import assert_mup

__all__ = [
    "Outcome",
    "Run",
    "assemble",
    "assert_accumulation_invariant",
    "assert_all_trained",
    "assert_causal",
    "assert_collectives",
    "assert_draws",
    "assert_float32",
    "assert_gradients",
    "assert_mesh_invariant",
    "assert_mup",
    "assert_overfits",
    "assert_padding",
    "assert_pure",
    "assert_replica_invariant",
    "assert_rows",
    "assert_source",
    "assert_step_function",
    "assert_sums",
    "assert_targets",
    "assert_task",
    "assert_traces_once",
    "assert_updates_only",
    "on_virtual_cpus",
    "on_virtual_mesh",
]
