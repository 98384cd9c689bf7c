"""The list of collectives, on workers whose replicas aren't the first ones."""

from core.distribution import Collective, Ledger


def test_a_later_worker_lists_its_own_ends_and_what_none_notes():
    ledger = Ledger()
    ledger.add(Collective("d", "values", "float32", 4))  # moved by the host, not by a replica
    for replica in (2, 3):
        ledger.add(Collective("d", "gradients", "float32", 8, replica=replica))
    assert [(entry.what, entry.bytes, entry.replica) for entry in ledger.collectives] == [
        ("values", 4, None),
        ("gradients", 8, 2),
    ]
