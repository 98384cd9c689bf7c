"""Communication between processes: how the workers of a run find each other, watch each other, and act together."""

from core.cluster.membership import is_chief, joined, must_agree, naming_lost_peers

__all__ = ["is_chief", "joined", "must_agree", "naming_lost_peers"]
