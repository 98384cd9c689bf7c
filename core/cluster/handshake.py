"""Workers and chief prove to each other that they know the run's token, without revealing it.

Each proof covers a random number, just drawn by the other end, and the whole hello message. So a recorded proof is
useless later, or with another hello. Without a token, an empty one is used, and the proofs prove nothing.
"""

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

TOKEN = "TAPELOOP_TOKEN"  # in the environment of every worker: one shared secret


def token_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """Returns the token of this worker's run. Without one, it is empty."""
    return (os.environ if environment is None else environment).get(TOKEN, "").strip()


def drawn() -> str:
    """Draws a fresh random number."""
    return secrets.token_hex(16)


def proof(token: str, role: str, challenge: str, answer: str, hello: Mapping[str, Any]) -> str:
    """Returns a proof that `role` knows the token. It is valid only for these two random numbers and this hello."""
    said = json.dumps([role, challenge, answer, hello], sort_keys=True)
    return hmac.new(token.encode(errors="surrogateescape"), said.encode(), "sha256").hexdigest()


def is_same(shown: str, expected: str) -> bool:
    """Compares two proofs in constant time, so that timing reveals nothing."""
    return hmac.compare_digest(shown.encode(errors="replace"), expected.encode())
