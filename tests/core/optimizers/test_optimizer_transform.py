"""`chain`, `named`, `observer` and `Optimizer`: composition, names, and written results."""

import doctest
import pathlib
import textwrap
import types

import numpy as np
import pytest
import tensorflow as tf

import core.optimizers.optimizer
from core.optimizers import (
    Optimizer,
    adam,
    chain,
    clip_by_global_norm,
    clip_by_value,
    ema,
    named,
    observer,
    polyak,
    schedules,
    sgd,
    stateful,
    stateless,
)
from core.testing.replicas import on_virtual_cpus
from tests.commands import fork_server


def parameters() -> dict[str, tf.Variable]:
    return {"w": tf.Variable([[1.0, 2.0], [3.0, 4.0]]), "b": tf.Variable([0.5, -0.5])}


GRADIENTS = {"w": tf.constant([[1.0, -1.0], [2.0, 0.0]]), "b": tf.constant([3.0, 4.0])}


def test_a_chain_of_chains_is_flat_and_applies_left_to_right() -> None:
    double = stateless("double", lambda gradients, params, step: {path: 2.0 * g for path, g in gradients.items()})
    add = stateless("add", lambda gradients, params, step: {path: g + 1.0 for path, g in gradients.items()})
    nested = chain(chain(double, add), chain(double))
    assert [part.name for part in nested.parts] == ["double", "add", "double"]
    updates, _ = nested.update({"w": tf.constant(3.0)}, {}, {"w": tf.constant(0.0)}, step=tf.constant(0))
    assert float(updates["w"]) == (3.0 * 2.0 + 1.0) * 2.0


def test_parts_of_one_name_are_numbered_and_named_ones_stay_one_part() -> None:
    both = chain(sgd(0.1, momentum=0.9), named("slow", chain(sgd(0.2, momentum=0.5))), sgd(0.3, momentum=0.9))
    assert set(Optimizer(both, {"b": tf.Variable([0.0])}).slots) == {
        "sgd/momentum",
        "slow/sgd/momentum",
        "sgd_2/momentum",
    }


def test_a_chain_refuses_what_is_no_transform() -> None:
    with pytest.raises(TypeError, match=r"`chain` was given 0.1; each argument is a transform"):
        chain(sgd(0.1), 0.1)  # type: ignore[arg-type]


def test_state_passes_through_parts_that_have_none() -> None:
    count = stateful(
        "count", lambda p: {"n": {"": tf.constant(0)}}, lambda g, s, p, t: (g, {"n": {"": s["n"][""] + 1}})
    )
    optimizer = Optimizer(chain(clip_by_value(1.0), count, sgd(0.1)), parameters())
    optimizer.apply(GRADIENTS)
    optimizer.apply(GRADIENTS)
    assert optimizer.variables["count/n"].numpy() == 2
    assert optimizer.step.numpy() == 2


def test_the_kernel_is_used_behind_pure_parts_and_before_observers_only() -> None:
    assert chain(clip_by_global_norm(1.0), adam(0.1), ema(0.9), polyak()).fused
    assert chain(adam(0.1), clip_by_value(1.0)).fused is None
    assert chain(adam(0.1), ema(0.9), clip_by_value(1.0)).fused is None
    assert chain(clip_by_value(1.0), ema(0.9)).fused is None
    assert named("mine", chain(adam(0.1))).fused


def test_kernel_and_rule_leave_the_same_weights_slots_and_averages() -> None:
    whole = chain(clip_by_global_norm(1.0), sgd(0.1, momentum=0.9, nesterov=True), ema(0.9))
    ends = []
    for fused in (True, False):
        optimizer = Optimizer(whole, parameters())
        for _ in range(3):
            optimizer.apply(GRADIENTS, fused=fused)
        ends.append({path: v.numpy() for path, v in {**optimizer.parameters, **optimizer.variables}.items()})
    assert ends[0].keys() == ends[1].keys() >= {"sgd/momentum/w", "ema/average/b", "step"}
    for path, value in ends[0].items():
        np.testing.assert_allclose(value, ends[1][path], rtol=1e-6)


def test_an_observer_sees_the_parameters_after_the_update() -> None:
    seen = observer("seen", lambda params: {"last": dict(params)}, lambda state, params, step: {"last": params})
    for fused in (True, False):
        optimizer = Optimizer(chain(sgd(0.1), seen), parameters())
        optimizer.apply(GRADIENTS, fused=fused)
        np.testing.assert_array_equal(optimizer.slots["seen/last"]["w"], optimizer.parameters["w"])


def test_the_last_shadow_counts_and_there_may_be_none() -> None:
    assert Optimizer(adam(0.1), parameters()).shadow() is None
    optimizer = Optimizer(chain(sgd(0.1), ema(0.5), polyak()), parameters())
    for _ in range(3):
        optimizer.apply(GRADIENTS)
    shadow = optimizer.shadow()
    assert shadow
    np.testing.assert_allclose(shadow["b"], optimizer.slots["polyak/average"]["b"])


def test_a_missing_gradient_is_named() -> None:
    optimizer = Optimizer(sgd(0.1), parameters())
    with pytest.raises(ValueError, match=r"`gradients` has none for the parameter `b`"):
        optimizer.apply({"w": GRADIENTS["w"]})
    with pytest.raises(ValueError, match=r"`gradients` has none for the parameter `b`"):
        optimizer.apply({**GRADIENTS, "b": None})  # type: ignore[dict-item]


def test_a_gradient_that_is_none_is_not_answered_with_its_own_name() -> None:
    near = Optimizer(sgd(0.1), {"weight": tf.Variable(0.0)})
    with pytest.raises(ValueError, match=r"none for the parameter `weight`\. Give one"):
        near.apply({"weight": None})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"Did you mean `weights`\?"):
        near.apply({"weights": tf.constant(1.0)})


def test_there_is_something_to_update_and_it_is_of_floats() -> None:
    with pytest.raises(ValueError, match=r"`parameters` is empty, so there is nothing to update; give"):
        Optimizer(sgd(0.1), {})
    with pytest.raises(ValueError, match=r"`parameters` has `n`, which is int32; .* make it a variable of floats"):
        Optimizer(sgd(0.1), {"n": tf.Variable(1)})


@pytest.mark.parametrize("dtype", [tf.int32, tf.complex64])
def test_a_gradient_that_is_not_of_floats_is_refused(dtype: tf.DType) -> None:
    table = {"w": tf.Variable(tf.zeros([2, 2]))}
    rows = tf.IndexedSlices(tf.cast(tf.ones([1, 2]), dtype), tf.constant([1]), tf.constant([2, 2]))
    for gradient in (tf.cast(tf.ones([2, 2]), dtype), rows):
        with pytest.raises(ValueError, match=rf"`gradients` has {dtype.name} for the parameter `w`; gradients are flo"):
            Optimizer(sgd(0.1), table).apply({"w": gradient})
    np.testing.assert_array_equal(table["w"], np.zeros([2, 2]))


def test_duplicate_rows_of_a_sparse_gradient_are_summed_before_the_rule() -> None:
    rows = tf.IndexedSlices(tf.constant([[1.0, 1.0], [2.0, 3.0]]), tf.constant([1, 1]), tf.constant([2, 2]))
    table = {"w": tf.Variable(tf.zeros([2, 2]))}
    Optimizer(chain(clip_by_value(3.5), sgd(1.0)), table).apply({"w": rows})
    np.testing.assert_array_equal(table["w"], [[0.0, 0.0], [-3.0, -3.5]])


def test_gradients_of_half_precision_are_widened() -> None:
    params = parameters()
    Optimizer(sgd(0.1), params).apply({path: tf.cast(g, tf.bfloat16) for path, g in GRADIENTS.items()})
    np.testing.assert_allclose(params["b"], [0.2, -0.9], rtol=1e-6)


@pytest.mark.long
def test_replicas_apply_kernels_under_a_flag_as_one_device_does(tmp_path: pathlib.Path) -> None:
    script = textwrap.dedent("""
        import numpy as np
        import tensorflow as tf
        from core.optimizers import Optimizer, adamw, chain, clip_by_global_norm, ema, lion

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        for rule in (adamw(0.1), lion(0.1)):
            ends = []
            for strategy in (
                tf.distribute.get_strategy(),
                tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()),
            ):
                with strategy.scope():
                    w = tf.Variable([1.0, -2.0, 3.0])
                    optimizer = Optimizer(chain(clip_by_global_norm(1.0), rule, ema(0.9)), {"w": w})

                def replica(i):
                    gradient = w.read_value() + tf.cast(i, tf.float32)
                    optimizer.apply({"w": gradient}, apply_if=i != 2)

                @tf.function
                def loop(n):
                    for i in tf.range(n):
                        strategy.run(replica, args=(i,))

                loop(tf.constant(5))
                assert optimizer.step.numpy() == 4
                for v in [w, *optimizer.variables.values()]:
                    values = [x.numpy() for x in strategy.experimental_local_results(v)]
                    assert all(np.array_equal(values[0], x) for x in values)
                    ends.append(values[0])
            half = len(ends) // 2
            assert all(np.array_equal(a, b) for a, b in zip(ends[:half], ends[half:], strict=True))
        print("equal")
    """)
    (tmp_path / "replicas.py").write_text(script)
    done = fork_server().run(command="replicas", cwd=tmp_path, timeout=600)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("device", "dtype", "suits"), [("GPU", "float32", True), ("CPU", "float32", False), ("GPU", "bfloat16", False)]
)
def test_kernels_of_a_gpu_suit_small_variables_too(device, dtype, suits):
    small = types.SimpleNamespace(
        dtype=tf.as_dtype(dtype), shape=[3, 4], device=f"/job:localhost/replica:0/device:{device}:0"
    )
    assert core.optimizers.optimizer._suits_kernels([small]) is suits


def test_replicas_say_where_a_variable_is():
    with on_virtual_cpus(2).scope():
        variable = tf.Variable([1.0])
    assert variable.device.endswith("CPU:0")
    assert not core.optimizers.optimizer._suits_kernels([variable])


@pytest.mark.parametrize("module", [core.optimizers.optimizer, schedules], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted
    assert not result.failed
