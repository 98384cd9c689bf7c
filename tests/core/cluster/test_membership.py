"""TensorFlow errors in a worker are attributed to a lost peer, or stay unchanged."""

import types

import pytest
import tensorflow as tf

from core.cluster import membership
from core.cluster.topology import Cluster
from core.errors import PeerLostError

LOST = "worker 1 (b:2222) was lost"


@pytest.fixture
def worker(monkeypatch):
    """Makes this process a worker, whose peers say `word` when asked."""

    def make(word, workers=("a:2222", "b:2222")):
        peers = types.SimpleNamespace(wait_for_word=lambda seconds: word)
        joined = types.SimpleNamespace(cluster=Cluster(workers, 0), heartbeat=peers, timeout=0.0)
        monkeypatch.setattr(membership, "_joined", joined)

    return make


def failing(error):
    with membership.naming_lost_peers():
        raise error(None, None, "what TensorFlow says")


KINDS = [tf.errors.InternalError, tf.errors.FailedPreconditionError, tf.errors.UnavailableError]


@pytest.mark.parametrize("error", KINDS)
def test_a_lost_peer_is_named(worker, error):
    worker(LOST)
    with pytest.raises(PeerLostError, match="worker 1"):
        failing(error)


@pytest.mark.parametrize("error", KINDS[:2])
def test_where_all_are_there_the_error_is_its_own(worker, error):
    worker(None)
    with pytest.raises(error, match="what TensorFlow says"):
        failing(error)


def test_a_connection_that_fails_is_the_cluster_s(worker):
    worker(None)
    with pytest.raises(PeerLostError, match="lost each other"):
        failing(tf.errors.UnavailableError)


@pytest.mark.parametrize("error", KINDS)
def test_single_worker_loses_no_peer(worker, error):
    worker(LOST, workers=("a:2222",))
    with pytest.raises(error):
        failing(error)
