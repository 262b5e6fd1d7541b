"""Canonical JSON, the digest of a payload and the key of an effect."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from edgeoutbox.errors import InvalidRequest

MAX_DEPTH = 100
"""How deeply a payload may nest; SQLite's own limit is higher, Python's recursion is not far above."""


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: keys sorted by code point, no spaces, characters unescaped.

    Raises `InvalidRequest` for what JSON cannot hold (NaN, other types, cycles), for NUL characters and lone
    surrogates (which SQLite and Postgres cannot store faithfully) and for nesting deeper than `MAX_DEPTH`.
    """
    _refuse_unstorable(value, "payload", 0)
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        msg = f"payload: not JSON ({type(error).__name__})"
        raise InvalidRequest(msg) from None


def digest(text: str) -> str:
    """`sha256:` and the hex digest of a canonical JSON text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def digest_of_json(text: str) -> str:
    """The digest of JSON, however it is written. Raises `InvalidRequest` when it has no canonical form."""
    return digest(canonical_json(parse_json(text)))


def digest_of_stored(payload: str) -> str | None:
    """The digest of a payload as it is stored, or `None` when it has no canonical form: its attempt will say so."""
    try:
        return digest_of_json(payload)
    except InvalidRequest:
        return None


def parse_json(text: str) -> Any:
    """Read JSON and refuse an object that names a key twice: readers disagree on which one counts.

    Raises `InvalidRequest`; used for rows that other programs inserted by SQL.
    """
    try:
        return _DECODER.decode(text)
    except InvalidRequest:
        raise
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError of Python's own
        msg = "payload: not readable as JSON"
        raise InvalidRequest(msg) from None


def effect_key(kind: str, identity: Any) -> str:
    """The idempotency key of an effect: `kind:` and the SHA-256 of the identity's canonical JSON.

    The same identity gives the same key in every process and version, so a retry of the decision finds the first
    action. Strings, integers, booleans, `None`, lists, tuples and string-keyed mappings of these are accepted;
    floats, datetimes, UUIDs and everything else raise `InvalidRequest`, because what varies from run to run must
    not be part of an identity.
    """
    if not kind or ":" in kind:
        msg = "kind: must be a non-empty name without ':'"
        raise InvalidRequest(msg)
    _refuse_unstable(identity, "identity", 0)
    return f"{kind}:{hashlib.sha256(canonical_json(identity).encode()).hexdigest()}"


def _refuse_unstorable(value: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        msg = f"payload: nested deeper than {MAX_DEPTH} levels"
        raise InvalidRequest(msg)
    match value:
        case str():
            refuse_unstorable_text(value, where)
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    msg = f"{where}: keys must be strings"
                    raise InvalidRequest(msg)
                refuse_unstorable_text(key, f"{where} (a key)")
                _refuse_unstorable(item, f"{where}.{key}" if key.isidentifier() else where, depth + 1)
        case list() | tuple():
            for index, item in enumerate(value):
                _refuse_unstorable(item, f"{where}[{index}]", depth + 1)
        case _:
            pass


def refuse_unstorable_text(text: str, where: str) -> None:
    """Raise `InvalidRequest` when a text holds NUL or a lone surrogate; `where` names the field."""
    if "\0" in text:
        msg = f"{where}: contains a NUL character"
        raise InvalidRequest(msg)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            msg = f"{where}: contains a lone surrogate, which is not a character"
            raise InvalidRequest(msg) from None


def _refuse_unstable(value: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        msg = f"{where}: nested deeper than {MAX_DEPTH} levels"
        raise InvalidRequest(msg)
    match value:
        case None | str() | bool() | int():
            pass
        case Mapping():
            for item in value.values():
                _refuse_unstable(item, where, depth + 1)
        case list() | tuple():
            for item in value:
                _refuse_unstable(item, where, depth + 1)
        case _:
            msg = f"{where}: {type(value).__name__} does not belong in an identity; a retry must compute the same key"
            raise InvalidRequest(msg)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "payload: an object names a key twice"
        raise InvalidRequest(msg)
    return found


def _refuse_constant(name: str) -> None:
    msg = f"payload: {name} is not JSON"
    raise InvalidRequest(msg)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
