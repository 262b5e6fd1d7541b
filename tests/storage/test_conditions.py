"""Variants: the SQL of a condition agrees with its Python, for whatever was declared and whatever is stored."""

import json
import sqlite3
from collections.abc import Iterator
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, Optional

import apsw
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field, create_model, field_validator
from typing_extensions import TypedDict

from edgeoutbox.errors import InvalidPayload, InvalidRequest, UnknownVariant
from edgeoutbox.storage.postgres.conditions import sql_of as postgres_sql_of
from edgeoutbox.storage.postgres.spelling import spell
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.statements.executors import _KINDS
from edgeoutbox.variants import (
    ALWAYS,
    AllOf,
    Condition,
    Each,
    KeySuffix,
    OneOf,
    Switch,
    Variants,
    holds,
    key_suffix,
    one,
    selects,
    tagged,
)

SQLITE = (sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), apsw.Connection(":memory:"))
POSTGRES: list[psycopg.Connection[tuple[Any, ...]]] = []


@pytest.fixture(autouse=True, scope="module")
def _closed_afterwards() -> Iterator[None]:
    """The connections of this module live as long as it does."""
    yield
    for connection in SQLITE:
        connection.close()


@pytest.fixture(autouse=True, scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whom the conditions are asked of: both copies of SQLite, or Postgres."""
    if request.param == "sqlite":
        yield
        return
    server = request.getfixturevalue("postgres_server")
    with server.connect() as connection:
        POSTGRES.append(connection)
        yield
        POSTGRES.clear()


def in_sql(condition: Condition, payload: Any, key: str = "k:send") -> list[bool]:
    """What each copy of SQLite says, or what Postgres says as often."""
    text = json.dumps(payload, ensure_ascii=False)
    if POSTGRES:
        row = "SELECT CAST(CAST(? AS text) AS json) AS payload, CAST(? AS text) AS idempotency_key"
        sql = spell(f"SELECT {postgres_sql_of(condition)} FROM ({row}) AS action").encode()
        answers = POSTGRES[0].execute(sql, (text, key)).fetchall()
        assert answers in ([(False,)], [(True,)]), answers
        return [answers[0][0]] * 2
    sql_ = f"SELECT {sql_of(condition)} FROM (SELECT ? AS payload, ? AS idempotency_key)"
    found = [connection.execute(sql_, (text, key)).fetchall() for connection in SQLITE]
    for rows in found:
        assert rows in ([(0,)], [(1,)]), rows
    return [bool(rows[0][0]) for rows in found]


NAMES = ["a", "b", "notice", "a.b", "a b", "it's", "größe", "a[0]", "$", ""]
names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=2).map(tuple)
scalars: st.SearchStrategy[str | int | bool] = st.one_of(
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 2**53, 2**63 - 1]),
    st.sampled_from(["", "x", "y", "it's", "1", "true", "null", 'a"b', "ß", "\U0001f600"]),
)
values = st.lists(scalars, min_size=1, max_size=3).map(tuple)
suffixes = st.lists(st.sampled_from(["send", "retract", "größe", "x'y"]), min_size=1, max_size=2).map(tuple)
conditions: st.SearchStrategy[Condition] = st.recursive(
    st.one_of(st.just(ALWAYS), st.builds(OneOf, paths, values), st.builds(KeySuffix, suffixes)),
    lambda inner: st.one_of(
        st.builds(AllOf, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Each, paths, inner),
        st.builds(Each, paths, st.builds(Each, st.just(()), inner)),
        st.builds(Switch, paths, st.lists(st.tuples(scalars, inner), min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
payloads = st.dictionaries(
    names,
    st.recursive(
        st.one_of(st.none(), scalars, st.sampled_from([0.0, 1.0, 1.5, 2**64])),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
        max_leaves=6,
    ),
    max_size=4,
)
keys = st.sampled_from(
    ["k:send", "send", "k:resend", "k:send:", "k:größe", "k:x'y", ":retract", "k:SEND", "\U0001f600:send"]
)


@given(conditions, payloads, keys)
def test_p11_the_sql_of_a_condition_agrees_with_its_python(
    condition: Condition, payload: dict[str, Any], key: str
) -> None:
    """For random trees of conditions over random payloads and keys, in both copies of SQLite and in Postgres."""
    expected = holds(condition, payload, key)
    assert in_sql(condition, payload, key) == [expected, expected]
    assert selects(condition, json.dumps(payload), key) is expected


@given(st.dictionaries(st.sampled_from(["email", "post"]), conditions, max_size=2))
def test_p11_a_condition_survives_the_table_of_executors(kinds: dict[str, Condition]) -> None:
    """What an executor says that it serves is read back by another process as the same tree, types and all."""
    assert repr(_KINDS.validate_json(_KINDS.dump_json(kinds))) == repr(kinds)


class Colour(StrEnum):
    """Texts."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    """Integers."""

    LOW = 1
    HIGH = 2


class Plain(Enum):
    """Neither of the two."""

    YES = "yes"
    NO = "no"


class Line(BaseModel):
    """A part of a payload."""

    colour: Colour
    text: str = ""


leaf_types = st.sampled_from(
    [
        Colour,
        Level,
        Plain,
        Literal["x", "y"],
        Literal[1, "x", True],
        Optional[Colour],  # noqa: UP045 - both spellings are declared by people
        Colour | None,
        Literal["x"] | Literal["y"] | None,  # noqa: PYI030 - people declare it so
        list[Colour],
        list[Line],
        list[list[Level]],
        Line,
        Line | None,
        tuple[Colour, ...],
        dict[str, str],
        str,
        int | str,
        bool,
        Annotated[list[Line], Field(min_length=0)],
    ]
)


@st.composite
def models(draw: st.DrawFn) -> type[BaseModel]:
    """A payload model as somebody might declare it: nested, optional, listed, aliased."""
    fields: dict[str, Any] = {}
    for index, annotation in enumerate(draw(st.lists(leaf_types, min_size=1, max_size=3))):
        alias = draw(st.sampled_from([None, f"alias{index}", f"alias {index}"]))
        fields[f"field{index}"] = (annotation, Field(alias=alias) if alias else Field())
    inner: Any = create_model("Inner", **fields)
    nested: Any = create_model("Outer", inner=(inner, ...))
    listed: Any = create_model("Outer", inners=(list[inner], ...))
    chosen: type[BaseModel] = draw(st.sampled_from([inner, nested, listed]))
    return chosen


json_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 3, 1.0, "x", "y", "z", "red", "blue", "green", "yes", "maybe", ""]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["colour", "text", "field0", "field1", "alias0", "alias 1", "extra"]), inner, max_size=3
        ),
    ),
    max_leaves=5,
)
fields_of_payload = st.sampled_from(
    ["field0", "field1", "field2", "alias0", "alias1", "alias 0", "alias 1", "alias2", "extra"]
)


@given(models(), st.dictionaries(fields_of_payload, json_values, max_size=4))
def test_p11_a_declared_model_claims_what_it_decodes(model: type[BaseModel], fields: dict[str, Any]) -> None:
    """The SQL says of each payload what decoding says: what is claimed is read or is invalid, the rest is unknown."""
    variants: Variants[Any] = one(model)
    for payload in (fields, {"inner": fields}, {"inners": [fields, {}]}, {"inners": [fields, 7]}):
        expected = holds(variants.condition, payload, "k")
        assert in_sql(variants.condition, payload, "k") == [expected, expected]
        if expected:
            _read_or_invalid(variants, payload)
        else:
            with pytest.raises(UnknownVariant):
                variants.decode(json.dumps(payload), "k")


def _read_or_invalid(variants: Variants[Any], payload: Any) -> None:
    try:
        variants.decode(json.dumps(payload), "k")
    except UnknownVariant:  # pragma: no cover - this is what the test is about
        raise
    except InvalidPayload:
        pass


@given(models(), st.data())
def test_p11_what_a_model_accepts_at_enqueue_it_also_claims(model: type[BaseModel], data: st.DataObject) -> None:
    """Nothing is stored that the same build would then leave alone for ever."""
    variants: Variants[Any] = one(model)
    payload = data.draw(st.dictionaries(fields_of_payload, json_values, max_size=4))
    for candidate in (payload, {"inner": payload}, {"inners": [payload]}):
        try:
            stored = variants.dump(variants.validate(candidate))
        except InvalidPayload:
            continue
        assert holds(variants.condition, stored, "k")
        assert in_sql(variants.condition, stored, "k") == [True, True]


class Receipt(BaseModel):
    """One variant."""

    notice: Literal["receipt"]
    order: int


class Reminder(BaseModel):
    """A model of two tags."""

    notice: Literal["reminder", "last_reminder"]
    colour: Colour = Colour.RED


CASES: list[tuple[Variants[Any], dict[str, Any], bool]] = [
    (tagged(Receipt | Reminder), {"notice": "receipt", "order": 1}, True),
    (tagged(Receipt | Reminder), {"notice": "last_reminder", "colour": "blue"}, True),
    (tagged(Receipt | Reminder), {"notice": "reminder", "colour": "mauve"}, False),
    (tagged(Receipt | Reminder), {"notice": "farewell"}, False),
    (tagged(Receipt | Reminder), {"notice": 1}, False),
    (tagged(Receipt | Reminder), {"notice": None}, True),
    (tagged(Receipt | Reminder), {}, True),
    (tagged(Receipt), {"notice": "receipt"}, True),
    (tagged(Receipt), {"notice": "reminder"}, False),
    (tagged(Annotated[Receipt | Reminder, Field(discriminator="notice")]), {"notice": "reminder"}, True),
    (tagged(Annotated[Receipt | Reminder, Field(discriminator="notice")]), {"notice": "farewell"}, False),
    (one(Line), {"colour": "red", "text": "any", "later": "field"}, True),
    (one(Line), {"colour": "mauve"}, False),
    (one(Line), {"colour": 1}, False),
    (one(create_model("M", lines=(list[Line], ...))), {"lines": [{"colour": "red"}, {"colour": "mauve"}]}, False),
    (one(create_model("M", lines=(list[Line], ...))), {"lines": [{"colour": "red"}, {}]}, True),
    (one(create_model("M", lines=(list[Line], ...))), {"lines": "none"}, True),
    (one(create_model("M", level=(Level, ...))), {"level": 1}, True),
    (one(create_model("M", level=(Level, ...))), {"level": True}, False),
    (one(create_model("M", level=(Level, ...))), {"level": "1"}, False),
    (one(create_model("M", level=(Level | None, None))), {"level": None}, True),
]


@pytest.mark.parametrize(("variants", "payload", "known"), CASES)
def test_p11_a_variant_is_known_or_not(variants: Variants[Any], payload: dict[str, Any], known: bool) -> None:
    """Tags, nested and listed enums, optional fields: absent is known, another value is not."""
    assert holds(variants.condition, payload, "k") is known
    assert in_sql(variants.condition, payload) == [known, known]


class Node(BaseModel):
    """Contains itself."""

    children: list["Node"] = []


class Half(Enum):
    """What no index of a database compares well."""

    HALF = 0.5


class Typed(TypedDict):
    """What only looks like a model."""

    colour: Colour


REFUSED: list[tuple[Any, str]] = [
    (lambda: one(Node), "contains itself"),
    (lambda: one(create_model("M", both=(Receipt | Reminder, ...))), "discriminator"),
    (lambda: one(create_model("M", lines=(dict[str, Line], ...))), "mapping of variants"),
    (lambda: one(create_model("M", pair=(tuple[Colour, Level], ...))), "tuple of different variants"),
    (lambda: one(create_model("M", typed=(Typed, ...))), "use a pydantic model"),
    (lambda: one(create_model("M", level=(Half, ...))), "only strings, integers and booleans"),
    (
        lambda: one(create_model("M", colour=(Colour, Field(validation_alias=AliasChoices("colour", "color"))))),
        "several aliases",
    ),
    (lambda: one(create_model("M", colour=(Colour, Field(alias='a"b')))), "quotes or backslashes"),
    (lambda: tagged(Line), "is not a model with a field 'notice'"),
    (lambda: tagged(Receipt | Line), "is not a model with a field 'notice'"),
    (lambda: tagged(create_model("M", notice=(str, ...))), "must be a Literal"),
    (key_suffix, "one or more names"),
    (lambda: key_suffix("a:b"), "without ':'"),
    (lambda: key_suffix("send", payload=Node), "contains itself"),
]


@pytest.mark.parametrize(("declare", "because"), REFUSED, ids=[because for _, because in REFUSED])
def test_p11_what_cannot_become_one_condition_is_refused_when_declared(declare: Any, because: str) -> None:
    """Not at the first claim in production."""
    with pytest.raises(TypeError, match=because):
        declare()


def test_a_key_that_selects_no_variant_is_refused_at_enqueue() -> None:
    """It would be stored and never claimed."""
    variants = key_suffix("send", "retract")
    variants.require_key("feedback:7:send")
    with pytest.raises(InvalidRequest, match="its last segment must be one of send, retract"):
        variants.require_key("feedback:7:resend")


def test_an_unknown_field_is_refused_at_enqueue_and_ignored_at_claim() -> None:
    """A newer build's optional field does not stop an older one from carrying the action out."""
    variants = one(Line)
    with pytest.raises(InvalidPayload, match="later"):
        variants.validate({"colour": "red", "later": 1})
    assert variants.decode('{"colour": "red", "later": 1}', "k") == Line(colour=Colour.RED)


class Told(BaseModel):
    """A payload whose own rule tells, in its message, what it was given."""

    to: Annotated[tuple[str, ...], Field(max_length=2)]
    channel: Annotated[str, Field(pattern="^C[0-9]+$")] = "C1"

    @field_validator("to")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if "@" not in address:
                raise ValueError(f"{address} is no address")
        return value


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("{}", "payload: to: is required"),
        ('{"to": "alice"}', "payload: to: must be a list"),
        ('{"to": ["alice"]}', "payload: to: breaks a rule of this field"),
        ('{"to": ["alice@example.com", 7]}', "payload: to.1: must be a text"),
        ('{"to": ["alice@a", "alice@b", "alice@c"]}', "payload: to: has too many items"),
        ('{"to": [], "channel": "alice"}', "payload: channel: is not written in the form that this field has"),
    ],
)
def test_p12_a_stored_payload_is_refused_in_plain_words(stored: str, said: str) -> None:
    """Fixed words for each rule: what a model's own rule says could hold the value."""
    with pytest.raises(InvalidPayload) as refused:
        one(Told).decode(stored, "k")
    assert str(refused.value) == said


def test_p12_an_invalid_payload_names_the_field_and_not_the_value() -> None:
    """Neither at enqueue nor at claim."""
    variants = one(create_model("M", to=(int, ...)))
    with pytest.raises(InvalidPayload) as at_enqueue:
        variants.validate({"to": "alice@example.com"})
    with pytest.raises(InvalidPayload) as at_claim:
        variants.decode('{"to": "alice@example.com"}', "k")
    with pytest.raises(InvalidPayload) as unreadable:
        variants.decode('{"to": "alice@example.com', "k")
    for refusal in (at_enqueue, at_claim, unreadable):
        assert "payload" in str(refusal.value)
        assert "alice" not in str(refusal.value)
