"""Strategies are built from gin settings; unavailable devices are refused."""

import sys
import threading
import types

import pytest
import tensorflow as tf

from core.cluster.topology import Cluster
from core.distribution import Exchange, mirrored, one_device
from core.distribution.probe import check_exchange
from core.distribution.strategies import _chosen, _multi_worker, copying_between
from core.errors import ConfigurationError, PeerLostError
from core.testing.replicas import on_virtual_mesh


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_virtual_devices_stand_in_for_gpus(replicas):
    strategy = mirrored(replicas=replicas)
    assert strategy.num_replicas_in_sync == replicas
    assert mirrored(devices=[f"CPU:{i}" for i in range(replicas)]).num_replicas_in_sync == replicas


@pytest.mark.parametrize(
    ("make", "kind", "instead"),
    [(tf.Variable, "variable", "Make it in `__init__`"), (tf.constant, "tensor", "Let it be a number")],
)
def test_devices_that_are_asked_for_too_late_name_what_a_module_has_made(make, kind, instead, monkeypatch):
    module = types.ModuleType("a.users")
    module.__file__, module.SCALE = "/somewhere/users.py", make(2.0)
    monkeypatch.setitem(sys.modules, "__a__.users", module)
    with pytest.raises(ConfigurationError, match=rf"`SCALE` of `__a__.users` \(users.py\) is a {kind}, .*{instead}"):
        mirrored(replicas=5)


def test_several_workers_that_are_asked_for_too_late_name_it_too(monkeypatch):
    def refuses(*_):
        raise RuntimeError("Collective ops must be configured at program startup")

    module = types.ModuleType("a.users")
    module.SCALE = tf.Variable(2.0)
    monkeypatch.setitem(sys.modules, "__a__.users", module)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", refuses)
    with pytest.raises(ConfigurationError, match=r"^`multi_worker` .*`SCALE` of `__a__.users`"):
        _multi_worker(Cluster(["localhost:1", "localhost:2"], 0))


def test_two_replicas_by_default():
    assert mirrored().num_replicas_in_sync == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"replicas": 0}, "`mirrored.replicas` is 0"),
        ({"replicas": 64}, "64 CPU devices were asked for, but TensorFlow has started with 4"),
        ({"replicas": 1_000_000}, "1000000 devices were asked for, .*at most 256"),
        ({"devices": ["CPU:999999999"]}, "1000000000 devices were asked for, .*at most 256"),
        ({"devices": []}, "name each device once"),
        ({"devices": ["CPU:0", "CPU:0"]}, "name each device once"),
        ({"devices": ["CPU:0"], "replicas": 2}, "leave `replicas` out"),
        ({"devices": ["GPU:7"]}, "names GPU:7; the GPUs of this machine are none"),
    ],
)
def test_devices_that_a_machine_does_not_have_are_refused(arguments, says):
    one_device().run(lambda: tf.constant(0.0))  # TensorFlow has started
    with pytest.raises(ConfigurationError, match=says):
        mirrored(**arguments)


def test_one_device_may_be_a_virtual_one():
    mirrored(2)
    assert one_device("CPU:1").run(lambda: tf.constant(1.0)).device.endswith("CPU:1")
    with pytest.raises(ConfigurationError, match=r"`one_device.device` is 'CPU:64', but this machine has CPU:0, CPU:1"):
        one_device("CPU:64")


def test_gpus_are_those_that_the_process_may_see_numbered_anew(monkeypatch):
    seen = [types.SimpleNamespace(name=f"/physical_device:{name}", device_type=name[:3]) for name in ("CPU:0", "GPU:1")]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: seen)
    assert _chosen(None, None) == ["GPU:0"]
    with pytest.raises(ConfigurationError, match=r"`mirrored.replicas` is 2, but the GPUs of this machine are GPU:0: "):
        _chosen(2, None)
    assert _chosen(None, ["CPU:0", "CPU:1"]) == ["CPU:0", "CPU:1"]  # a rehearsal at the same time


def test_virtual_mesh_uses_cpus_even_with_a_gpu(monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
    devices = on_virtual_mesh(2, 1).mesh.local_devices()
    assert [device.rpartition("/device:")[2] for device in devices] == ["CPU:0", "CPU:1"]


@pytest.mark.parametrize("replicas", [2, 3])
def test_gpus_without_nccl_add_up_any_mixture_of_types(replicas):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)], copying_between(replicas))
    exchange = Exchange(strategy)
    sizes = {tf.float32: 3, tf.float64: 2, tf.bfloat16: 4, tf.int64: 1}

    @tf.function
    def total():
        def replica():
            place = tf.distribute.get_replica_context().replica_id_in_sync_group + 1
            values = {dtype.name: tf.fill([size], tf.cast(place, dtype)) for dtype, size in sizes.items()}
            return exchange.sum(values, phase="net", what="gradients")

        return [strategy.experimental_local_results(x) for x in exchange.run(replica).values()]

    expected = replicas * (replicas + 1) / 2
    found = [copy.numpy().astype(float).tolist() for copies in total() for copy in copies]
    assert found == [[expected] * size for size in (3, 2, 4, 1) for _ in range(replicas)]


def test_types_that_nccl_does_not_add_up_are_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.NcclAllReduce(num_packs=0))
    with pytest.raises(ConfigurationError, match=r"`Trainer\.reduce_gradients_in` is 'bfloat16'"):
        Exchange(strategy, reduce_in=tf.bfloat16)


def test_a_mistake_is_no_silence():
    class Mistaken(tf.distribute.ReductionToOneDevice):
        def reduce_implementation(self, reduce_op, value, destinations, options):
            raise TypeError("'NoneType' is no device")

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], Mistaken())
    with pytest.raises(TypeError, match="is no device"):
        check_exchange(strategy)


def test_wrong_sums_are_fatal():
    class Doubling(tf.distribute.ReductionToOneDevice):
        def batch_reduce_implementation(self, reduce_op, pairs, options):
            return super().batch_reduce_implementation(reduce_op, [*pairs], options)

        def reduce_implementation(self, reduce_op, value, destinations, options):
            reduced = super().reduce_implementation(reduce_op, value, destinations, options)
            return tf.nest.map_structure(lambda x: 2.0 * x, reduced, expand_composites=True)

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], Doubling())
    with pytest.raises(ConfigurationError, match="communication between these devices gives wrong values"):
        check_exchange(strategy)


def test_a_silent_device_is_given_up():
    released = threading.Event()

    def held(y):
        released.wait(60)
        return y

    class Silent(tf.distribute.ReductionToOneDevice):
        def reduce_implementation(self, reduce_op, value, destinations, options):
            reduced = super().reduce_implementation(reduce_op, value, destinations, options)

            def late(x):
                return tf.ensure_shape(tf.numpy_function(held, [x], x.dtype), x.shape)

            return tf.nest.map_structure(late, reduced, expand_composites=True)

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], Silent())
    with pytest.raises(PeerLostError, match="didn't add up a first value within"):
        check_exchange(strategy, deadline=0.5)
    released.set()


def test_names_of_strategies_above_the_engine_are_found_here_too():
    from core import distribution
    from core.parallel.mesh import MeshPlan, mesh

    assert (distribution.mesh, distribution.MeshPlan) == (mesh, MeshPlan)
    with pytest.raises(AttributeError, match=r"`core\.distribution` has no attribute `meshes`"):
        distribution.meshes  # noqa: B018
