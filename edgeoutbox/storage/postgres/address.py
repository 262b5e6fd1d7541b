"""Where the database is: the URL that a person gives, and what of it may be shown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from edgeoutbox.errors import ConfigurationError

_PREPARE = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Address:
    """`conninfo` is libpq's, and may hold a password; `shown` holds none.

    `schema` is the Postgres schema of our tables, or `None` for the first of the connection's search_path. `prepare`
    is whether statements may be prepared; `None`: unless a pooler stands between us and the server.
    """

    conninfo: str = field(repr=False)
    schema: str | None
    prepare: bool | None
    shown: str
    holds_password: bool


def address_of(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database?schema=...&prepare=off`, and any parameter of libpq.

    Raises `ConfigurationError`.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
    ours = {name: value for name, value in given if name in {"schema", "prepare"}}
    prepare = ours.get("prepare")
    if prepare is not None and prepare not in _PREPARE:
        raise ConfigurationError("url: prepare is 'on' or 'off'")
    if "schema" in ours:
        require_name(ours["schema"])
    _require_known([name for name, _ in given if name not in ours], hidden="@" in parts.query)
    # quote, as libpq does not read '+' as a space
    others = urlencode([(name, value) for name, value in given if name not in ours], quote_via=quote)
    shown = urlencode([(name, value) for name, value in given if name in _SHOWN], quote_via=quote)
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    conninfo = f"postgresql://{parts.netloc}{parts.path}{'?' if others else ''}{others}"
    try:
        found = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:  # its text may hold the password
        raise ConfigurationError(_UNREADABLE) from None
    for name in ("port", "connect_timeout"):
        if not _NUMBERS.fullmatch(str(found.get(name) or "1")):
            raise ConfigurationError(f"url: {name} is a number")
    return Address(
        conninfo=conninfo,
        schema=ours.get("schema"),
        prepare=None if prepare is None else _PREPARE[prepare],
        shown=f"postgresql://{user}{'@' if user else ''}{host}{parts.path}{'?' if shown else ''}{shown}",
        holds_password=any(found.get(name) for name in _SECRETS),
    )


def require_name(schema: str) -> None:
    """Refuse a schema that Postgres would store under another name, or not at all. Raises `ConfigurationError`."""
    if schema == "":
        raise ConfigurationError("url: schema names the Postgres schema of the tables; leave it out for search_path's")
    if len(schema.encode()) > LONGEST_NAME:
        raise ConfigurationError(f"url: schema has at most {LONGEST_NAME} bytes; Postgres would cut what is longer")
    if schema.startswith("pg_") or "$user" in schema or "$edgeoutbox$" in schema:
        raise ConfigurationError("url: schema does not begin with pg_, and has neither $user nor $edgeoutbox$ in it")


def _require_known(names: Sequence[str], *, hidden: bool) -> None:
    """Name a parameter that nobody knows, unless the query may be a part of an unescaped password."""
    known = {each.keyword.decode() for each in Conninfo.get_defaults()} | {"ssl", "requiressl"}
    for name in names:
        if name not in known:
            said = f"parameter {name}" if name.isidentifier() and not hidden else "one of its parameters"
            raise ConfigurationError(f"url: libpq does not know {said}; ours are schema and prepare")


LONGEST_NAME = 63
"""Bytes of the longest name that Postgres keeps as it is."""

_UNREADABLE = (
    "url: it cannot be read; use postgresql://user@host:port/database?name=value, and write what is special in a value "
    "as %5B for [, %40 for @, %3F for ? and so on"
)
_NUMBERS = re.compile(r"-?\d+(,\d*)*|,+")
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
_SHOWN = {"schema", "prepare", "host", "port", "dbname", "user", "sslmode"}
