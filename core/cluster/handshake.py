"""Workers and chief show each other that they know the run's token, without telling it to who listens or asks.

Each proof answers a number that the other end has just drawn, and covers the whole hello: what was heard once serves
nobody a second time, or with another hello. Without a token the same is done with an empty one, and proves nothing.
"""

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

TOKEN = "TAPELOOP_TOKEN"  # in the environment of every worker: the same, and known to nobody else


def token_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """Returns the token of this worker's run; an empty one where none was given."""
    return (os.environ if environment is None else environment).get(TOKEN, "").strip()


def drawn() -> str:
    """Draws a number that was never drawn before."""
    return secrets.token_hex(16)


def proof(token: str, role: str, challenge: str, answer: str, hello: Mapping[str, Any]) -> str:
    """Returns what only who knows the token can say in this role, in answer to these two numbers, about this hello."""
    said = json.dumps([role, challenge, answer, hello], sort_keys=True)
    return hmac.new(token.encode(errors="surrogateescape"), said.encode(), "sha256").hexdigest()


def is_same(shown: str, expected: str) -> bool:
    """Compares two proofs in a time that doesn't tell where they differ."""
    return hmac.compare_digest(shown.encode(errors="replace"), expected.encode())
