"""Communication between the processes of a run: addresses, rendezvous, heartbeats, port guards, server processes."""

from core.cluster.membership import is_chief, joined, must_agree, naming_lost_peers

__all__ = ["is_chief", "joined", "must_agree", "naming_lost_peers"]
