"""Between processes: how the workers of one run meet, watch each other, and act together."""

from core.cluster.membership import is_chief, joined, must_agree, naming_lost_peers

__all__ = ["is_chief", "joined", "must_agree", "naming_lost_peers"]
