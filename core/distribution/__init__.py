"""Where a run computes: strategies built from gin, and the one door between their replicas."""

from core.distribution.agreement import make_agreement
from core.distribution.drift import make_drift_check
from core.distribution.exchange import Exchange
from core.distribution.ledger import Collective, Ledger
from core.distribution.membership import is_chief, joined, must_agree, naming_lost_peers
from core.distribution.strategies import STRATEGIES, mirrored, multi_worker, one_device, tpu

__all__ = [
    "STRATEGIES",
    "Collective",
    "Exchange",
    "Ledger",
    "is_chief",
    "joined",
    "make_agreement",
    "make_drift_check",
    "mirrored",
    "multi_worker",
    "must_agree",
    "naming_lost_peers",
    "one_device",
    "tpu",
]
