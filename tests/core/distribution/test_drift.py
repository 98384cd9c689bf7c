"""The replica consistency check names replicas and variables that differ."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

from core.distribution import make_drift_check
from core.distribution.drift import fingerprint
from core.errors import DriftError
from core.testing import on_virtual_mesh


def variables(strategy):
    with strategy.scope():
        return {
            "net/w": tf.Variable(tf.ones([3, 4])),
            "net/half": tf.Variable(tf.ones([2], tf.bfloat16)),
            "count": tf.Variable(7, dtype=tf.int64),
            "flag": tf.Variable([True, False]),
        }


def test_the_replica_and_the_variable_are_named():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], tf.distribute.ReductionToOneDevice())
    found = variables(strategy)
    check = make_drift_check(strategy, found)
    for path, variable in found.items():
        check()
        component = strategy.experimental_local_results(variable)[2]
        right = component.numpy()
        component.assign(tf.cast(tf.zeros(component.shape), component.dtype))
        with pytest.raises(DriftError, match=f"^replica 2 of 3 no longer hold.*`{path}` \\(1 of 4"):
            check()
        component.assign(right)


def test_one_bit_and_a_change_of_places_show():
    random = np.random.RandomState(0).randint(0, 2**31, 1000).astype("int32")
    seen = {int(fingerprint(tf.bitcast(tf.constant(random), tf.float32)))}
    for bit in range(31):
        other = random.copy()
        other[17] ^= 1 << bit
        seen.add(int(fingerprint(tf.bitcast(tf.constant(other), tf.float32))))
    seen.add(int(fingerprint(tf.bitcast(tf.constant(random[::-1].copy()), tf.float32))))
    assert len(seen) == 33


def test_a_large_tensor_is_the_sum_of_its_blocks():
    bits = np.random.RandomState(0).randint(-(2**31), 2**31, (3, 700_001)).astype("int32")
    weights = 2 * np.arange(bits.size, dtype="int64") + 1
    expected = np.sum(bits.ravel().astype("int64") * weights)  # modulo 2^64, as NumPy adds integers
    assert int(fingerprint(tf.bitcast(tf.constant(bits), tf.float32))) == expected


def test_variables_of_one_device_are_not_sent_to_the_others():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    alone = tf.Variable(tf.ones([3]))
    make_drift_check(strategy, {"alone": alone})()
    found = variables(strategy)
    check = make_drift_check(strategy, {"alone": alone, **found})
    check()
    strategy.experimental_local_results(found["count"])[1].assign(8)
    with pytest.raises(DriftError, match="`count` \\(1 of 4"):
        check()


def test_negative_zero_is_another_zero():
    assert int(fingerprint(tf.constant([0.0]))) != int(fingerprint(-tf.zeros([1])))


def plant(strategy, variable, device):
    """Alters a mesh variable on one device alone."""
    handle, part = dtensor.unpack(variable.handle)[device], strategy.local_parts(variable)[device]
    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=part + 1)


@pytest.mark.parametrize(
    ("axes", "altered", "named"),
    [
        (("-", "-"), 2, "device 2"),
        (("-", "-"), 0, "device 1, device 2, device 3"),  # which of two is right is unknown: the first counts
        (("model", "-"), 3, "device 3"),  # next to device 1
        (("-", "batch"), 3, "device 3"),  # next to device 2
    ],
)
def test_a_copy_on_one_device_of_a_mesh_is_compared_with_those_that_are_to_be_alike(axes, altered, named):
    strategy = on_virtual_mesh(2, 2)
    value = tf.reshape(tf.range(32.0), [4, 8])
    with strategy.scope(lambda _: axes):
        found = {"net/w": tf.Variable(value)}
    with strategy.scope():
        found |= {"count": tf.Variable(7, dtype=tf.int64), "flag": tf.Variable([True, False])}
    check = make_drift_check(strategy, found)
    check()
    plant(strategy, found["net/w"], altered)
    with pytest.raises(DriftError, match=f"^{named} of 4 no longer hold what others .* `net/w` \\(1 of 3"):
        check()


def test_a_write_that_is_under_way_is_waited_for():
    strategy = on_virtual_mesh(2, 2)
    with strategy.scope():
        w, product = tf.Variable(tf.eye(200)), tf.Variable(tf.zeros([200, 200]))
    check = make_drift_check(strategy, {"w": w, "product": product})

    @tf.function
    def work():
        x = w.read_value()
        for _ in range(30):
            x = tf.matmul(x, w)
        product.assign_add(x)

    for _ in range(10):
        work()
        check()


def test_parts_of_which_there_is_no_copy_may_hold_anything():
    strategy = on_virtual_mesh(2, 2)
    with strategy.scope(lambda _: ("model", "batch")):
        w = tf.Variable(tf.ones([4, 8]))
    check = make_drift_check(strategy, {"w": w})
    plant(strategy, w, 1)
    check()
