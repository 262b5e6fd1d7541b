"""Where the database is: the URL that a person gives, and what of it may be shown."""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from edgeoutbox.errors import ConfigurationError

_PREPARE = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Address:
    """`conninfo` is libpq's, and may hold a password; `shown` holds none.

    `schema` is the Postgres schema of our tables, or `None` for the first of the connection's search_path. `prepare`
    is whether statements may be prepared: a pooler between us and the server may not know them.
    """

    conninfo: str = field(repr=False)
    schema: str | None
    prepare: bool
    shown: str


def address_of(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database?schema=...&prepare=off`, and any parameter of libpq.

    Raises `ConfigurationError`.
    """
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError("url: it cannot be read; use postgresql://user@host:port/database") from None
    ours = {name: value for name, value in given if name in {"schema", "prepare"}}
    prepare = ours.get("prepare", "on")
    if prepare not in _PREPARE:
        raise ConfigurationError("url: prepare is 'on' or 'off'")
    if ours.get("schema") == "":
        raise ConfigurationError("url: schema names the Postgres schema of the tables; leave it out for search_path's")
    # quote, as libpq does not read '+' as a space
    others = urlencode([(name, value) for name, value in given if name not in ours], quote_via=quote)
    shown = urlencode([(name, value) for name, value in given if name in _SHOWN], quote_via=quote)
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    conninfo = f"postgresql://{parts.netloc}{parts.path}{'?' if others else ''}{others}"
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:  # its text may hold the password
        raise ConfigurationError(
            "url: libpq cannot read it; use postgresql://user@host:port/database, with its parameters or ours"
        ) from None
    return Address(
        conninfo=conninfo,
        schema=ours.get("schema"),
        prepare=_PREPARE[prepare],
        shown=f"postgresql://{user}{'@' if user else ''}{host}{parts.path}{'?' if shown else ''}{shown}",
    )


_SHOWN = {"schema", "prepare", "host", "port", "dbname", "user", "sslmode"}
