"""The old name of `core.cluster`. Version 0.4 removes it."""

import warnings

from core.cluster import is_chief, joined, must_agree, naming_lost_peers

__all__ = ["is_chief", "joined", "must_agree", "naming_lost_peers"]

warnings.warn("`core.workers` is `core.cluster` now: import that, for 0.4 has no other.", FutureWarning, stacklevel=2)
