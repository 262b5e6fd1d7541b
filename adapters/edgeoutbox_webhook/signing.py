"""Signatures by the Standard Webhooks convention: `v1,` and an HMAC-SHA256 over id, timestamp and body.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterable

PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64


def secret_bytes(secret: str) -> bytes:
    """The key that a `whsec_` secret stands for. Raises `ValueError` with a text that shows nothing of it."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if not secret.startswith(PREFIX) or not _SHORTEST <= len(key) <= _LONGEST:
        raise ValueError(f"a secret is {PREFIX} and the base64 of {_SHORTEST} to {_LONGEST} random bytes")
    return key


def webhook_id(kind: str, endpoint: str, idempotency_key: str) -> str:
    """The id that every attempt of an action sends: a hash, so that it tells nothing of the key."""
    identity = json.dumps([kind, endpoint, idempotency_key], ensure_ascii=False).encode()
    return "msg_" + hashlib.sha256(identity).hexdigest()[:40]


def signature(webhook_id: str, timestamp: int, body: bytes, keys: Iterable[bytes]) -> str:
    """The header `webhook-signature`: one signature for each key, separated by spaces."""
    signed = b".".join((webhook_id.encode(), str(timestamp).encode(), body))
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)
