"""How Postgres spells the shared statements, for each of its drivers.

The vocabulary stands in `edgeoutbox.storage.statements.steps`. A name of ours is qualified with the schema that the
tables are in, so that no session's search_path decides whose tables a statement means.
"""

import itertools
import re
from collections.abc import Callable
from functools import lru_cache

# What stands in quotes is a value or a name, whatever it says. `agent_action.id` names a column of a table of the
# statement, which has no schema.
_WORDS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[?%]|edgeoutbox_text\((?P<column>[\w.]+)\)|"""
    r"""\bedgeoutbox_open\((?P<table>\w+)\)|\bedgeoutbox_(?:now\(|table\(\))|\bagent_action(?:_[a-z]+)*\b(?!\.)"""
)


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=512)
def spell(sql: str, schema: str | None = None) -> str:
    """A shared statement as psycopg takes it: `%s` is a parameter, and a literal `%` is doubled.

    Run it with a sequence of parameters, also an empty one: without, psycopg would leave the doubled ones as they are.
    """
    return _spell(sql, schema, lambda: "%s", "%%")


@lru_cache(maxsize=512)
def spell_numbered(sql: str, schema: str | None = None) -> str:
    """A shared statement as asyncpg takes it: `$1`, `$2` and so on are the parameters."""
    numbers = itertools.count(1)
    return _spell(sql, schema, lambda: f"${next(numbers)}", "%")


def _spell(sql: str, schema: str | None, parameter: Callable[[], str], percent: str) -> str:
    qualifier = "" if schema is None else quoted(schema).replace("%", percent) + "."

    def spelled(found: re.Match[str]) -> str:
        word = found[0]
        if word == "?":
            return parameter()
        if word[0] in "'\"%":
            return word.replace("%", percent)
        if word == "edgeoutbox_table()":
            return f"CAST(CAST('{(qualifier + 'agent_action').replace(chr(39), chr(39) * 2)}' AS regclass) AS bigint)"
        if found["table"]:
            return f"{found['table']}.state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')"
        return f"CAST({found['column']} AS text)" if found["column"] else qualifier + word

    return _WORDS.sub(spelled, sql)


# Where a value, a name or a remark stands: also with escapes, in dollars, and remarks within remarks.
_APPLICATIONS = re.compile(
    r"""[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|(?P<remark>/\*)|[?%;]|"""
    r"""(?P<dollars>\$(?:[A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*)?\$).*?(?P=dollars)""",
    re.DOTALL,
)
_REMARK = re.compile(r"/\*|\*/")


@lru_cache(maxsize=128)
def positional(sql: str) -> str:
    """SQL of the application's own, with `?` for each parameter, as psycopg takes it."""
    parts: list[str] = []
    at = 0
    while (found := _APPLICATIONS.search(sql, at)) is not None:
        end = end_of_remark(sql, found.start()) if found["remark"] else found.end()
        word = sql[found.start() : end]
        parts += (sql[at : found.start()], "%s" if word == "?" else word.replace("%", "%%"))
        at = end
    return "".join(parts) + sql[at:]


def is_several(sql: str) -> bool:
    """Whether SQL of the application's own has a statement behind the end of its first."""
    at = 0
    ended = begun = False
    while at < len(sql):
        found = _APPLICATIONS.match(sql, at)
        if found is None:
            end, counts = at + 1, not sql[at].isspace()
        elif found["remark"] or found[0].startswith("--"):
            end, counts = end_of_remark(sql, at) if found["remark"] else found.end(), False
        else:
            end, counts = found.end(), found[0] != ";"
            ended = ended or (begun and not counts)
        if ended and counts:
            return True
        begun = begun or counts
        at = end
    return False


def end_of_remark(sql: str, start: int) -> int:
    """Where the remark that begins here ends; remarks may stand within remarks."""
    depth = 0
    for found in _REMARK.finditer(sql, start):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(sql)


class AsGiven(str):
    """SQL that is the application's own: it is not spelled, and only its parameters are found."""

    __slots__ = ()
