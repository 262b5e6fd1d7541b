"""Canonical JSON, digests and effect keys: golden vectors that never change, and what is refused."""

import decimal
import json
import uuid
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeoutbox import InvalidRequest, effect_key
from edgeoutbox.keys import MAX_DEPTH, canonical_json, digest, parse_json

CANONICAL: list[tuple[Any, str]] = [
    ({}, "{}"),
    ([], "[]"),
    ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
    ({"a": [1, None, True, False, "x"]}, '{"a":[1,null,true,false,"x"]}'),
    ({"ü": "ß", "é": "\U0001f600"}, '{"é":"\U0001f600","ü":"ß"}'),
    ({"a": 'quote " slash / back \\ tab \t'}, '{"a":"quote \\" slash / back \\\\ tab \\t"}'),
    ({"A": 1, "a": 2, "_": 3, "1": 4}, '{"1":4,"A":1,"_":3,"a":2}'),
    ({"z": {"y": {"x": ()}}}, '{"z":{"y":{"x":[]}}}'),
    ({"a": 1.5, "b": 1.0, "c": 10**20}, '{"a":1.5,"b":1.0,"c":100000000000000000000}'),
    ({"\U00010000": 1, "\uffff": 2}, '{"\uffff":2,"\U00010000":1}'),
]

DIGESTS = [
    ("{}", "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
    ('{"a":2,"b":1}', "sha256:d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772"),
]

EFFECT_KEYS: list[tuple[str, Any, str]] = [
    ("email", {}, "email:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
    ("email", {"b": 1, "a": 2}, "email:d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772"),
    (
        "slack_post",
        ["order", 42, None, True],
        "slack_post:d94fbccdeca02440119fceea74672d5fb8b96ffdf54713074a97bf42d9727e39",
    ),
    ("email", "größe", "email:aab08de900411ba4f77db4c840ca60fb52aae7456dfeab2c0a363bdf086cd0e6"),
    ("email", 7, "email:7902699be42c8a8e46fbbb4501726517e86b22c56a189f7625a6da49081b2451"),
    ("email", None, "email:74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
]


@pytest.mark.parametrize(("value", "text"), CANONICAL)
def test_canonical_json_is_this_text(value: Any, text: str) -> None:
    """Sorted by code point, no spaces, nothing escaped that need not be."""
    assert canonical_json(value) == text


@pytest.mark.parametrize(("text", "expected"), DIGESTS)
def test_a_digest_is_this(text: str, expected: str) -> None:
    """SHA-256 of the UTF-8 text, with its name in front."""
    assert digest(text) == expected


@pytest.mark.parametrize(("kind", "identity", "key"), EFFECT_KEYS)
def test_p2_an_effect_key_never_changes(kind: str, identity: Any, key: str) -> None:
    """A retry after an upgrade still finds the first action."""
    assert effect_key(kind, identity) == key


def test_tuples_and_lists_are_one_identity() -> None:
    """So are mappings in any order."""
    assert effect_key("email", ("a", 1)) == effect_key("email", ["a", 1])
    assert effect_key("email", {"a": 1, "b": 2}) == effect_key("email", {"b": 2, "a": 1})


UNSTABLE = [
    1.0,
    float("nan"),
    datetime(2026, 1, 1, tzinfo=UTC),
    date(2026, 1, 1),
    uuid.UUID(int=1),
    decimal.Decimal(1),
    b"bytes",
    {1, 2},
    object(),
]


@pytest.mark.parametrize("value", UNSTABLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [value]}], ids=["bare", "nested"])
def test_what_varies_from_run_to_run_is_no_identity(value: Any, wrap: Any) -> None:
    """It is refused by its type, never shown."""
    with pytest.raises(InvalidRequest, match=f"identity: {type(value).__name__} does not belong in an identity"):
        effect_key("email", wrap(value))


@pytest.mark.parametrize("kind", ["", "a:b"])
def test_a_key_names_its_kind(kind: str) -> None:
    """Without a colon inside, so that the kind can be read off."""
    with pytest.raises(InvalidRequest, match="kind: must be a non-empty name without ':'"):
        effect_key(kind, 1)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


REFUSED: list[tuple[Any, str]] = [
    ({"a": float("nan")}, "not JSON"),
    ({"a": float("inf")}, "not JSON"),
    ({"a": object()}, "not JSON"),
    ({"a": {"b": "x\0y"}}, r"payload\.a\.b: contains a NUL character"),
    ({"a": ["ok", "x\ud800"]}, r"payload\.a\[1\]: contains a lone surrogate"),
    ({"a\0": 1}, r"a key\): contains a NUL"),
    ({"a\udfff": 1}, r"a key\): contains a lone surrogate"),
    ({1: 2}, "keys must be strings"),
    (nested(MAX_DEPTH + 1), "nested deeper than 100 levels"),
    ({"a": 10**5000}, "not JSON"),
]


@pytest.mark.parametrize(("value", "because"), REFUSED, ids=[because[:20] for _, because in REFUSED])
def test_what_json_or_a_database_cannot_hold_is_refused(value: Any, because: str) -> None:
    """By field, never by value."""
    with pytest.raises(InvalidRequest, match=because):
        canonical_json(value)


def test_the_deepest_value_that_is_allowed_is_allowed() -> None:
    """The limit is inside."""
    assert json.loads(canonical_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


def test_a_cycle_is_refused() -> None:
    """It has no end."""
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidRequest, match="nested deeper"):
        canonical_json(cycle)


def test_p12_a_refusal_shows_no_value() -> None:
    """Not of the payload, and no key that could be an address."""
    with pytest.raises(InvalidRequest) as refusal:
        canonical_json({"alice@example.com": {"to": "bob@example.com\0"}})
    assert "example.com" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ('{"a":1,"a":2}', "names a key twice"),
        ('{"a":{"b":1,"b":1}}', "names a key twice"),
        ('{"a":NaN}', "NaN is not JSON"),
        ('{"a":-Infinity}', "-Infinity is not JSON"),
        ("{", "not readable as JSON"),
        ("", "not readable as JSON"),
        ('{"a":' + "9" * 5000 + "}", "not readable as JSON"),
        ("[" * 100_000, "not readable as JSON"),
    ],
    ids=["twice", "twice inside", "NaN", "infinity", "cut off", "empty", "huge number", "very deep"],
)
def test_json_that_readers_read_differently_is_refused(text: str, because: str) -> None:
    """As is what cannot be read at all: always as our own error."""
    with pytest.raises(InvalidRequest, match=because):
        parse_json(text)


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5), inner, max_size=4
        ),
    ),
    max_leaves=10,
)


@given(json_values)
def test_canonical_json_reads_back_and_is_its_own_canonical_form(value: Any) -> None:
    """Whatever the value: parsed and written again it is the same text, so the digest is stable."""
    text = canonical_json(value)
    assert parse_json(text) == value
    assert canonical_json(parse_json(text)) == text
