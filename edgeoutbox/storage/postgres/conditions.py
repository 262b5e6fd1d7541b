"""Which rows a build decodes, as one SQL condition over `payload` and `idempotency_key`.

It reads the payload as `json`, whose numbers are the text that was stored: as `jsonb`, 1e0 would be the integer 1.
"""

import json
from collections.abc import Iterable

from edgeoutbox.variants import AllOf, Condition, Each, KeySuffix, OneOf, Path, Scalar, Switch


def sql_of(condition: Condition) -> str:
    """The condition in SQL; true for a row whose value is absent, like `edgeoutbox.variants.holds`.

    Its literals come from declared Python types, never from a payload, and are quoted all the same.
    """
    return _render(condition, "payload", 0)


def _render(condition: Condition, root: str, depth: int) -> str:
    match condition:
        case AllOf(parts):
            return "(" + " AND ".join(_render(part, root, depth) for part in parts) + ")" if parts else "TRUE"
        case OneOf(path, values):
            return f"({_absent(root, path)} OR {_is_one(root, path, values)})"
        case Each(path, part):
            item = f"item{depth}"
            value = _value(root, path)
            inner = _render(part, f"{item}.j", depth + 1)
            return (
                f"(json_typeof({value}) IS DISTINCT FROM 'array' OR NOT EXISTS ("
                f"SELECT 1 FROM json_array_elements(CASE WHEN json_typeof({value}) = 'array' THEN {value} END) "
                f"AS {item}(j) WHERE NOT {inner}))"
            )
        case Switch(path, cases):
            branches = " OR ".join(
                f"({_is_one(root, path, (tag,))} AND {_render(part, root, depth)})" for tag, part in cases
            )
            return f"({_absent(root, path)} OR {branches})"
        case KeySuffix(values):
            options = " OR ".join(
                f"idempotency_key = {_quote(value)} OR right(idempotency_key, {len(value) + 1}) = {_quote(':' + value)}"
                for value in values
            )
            return f"({options})"


def _absent(root: str, path: Path) -> str:
    return f"COALESCE(json_typeof({_value(root, path)}), 'null') = 'null'"


def _is_one(root: str, path: Path, values: Iterable[Scalar]) -> str:
    value = _value(root, path)
    kind = f"json_typeof({value})"
    booleans = [json.dumps(v) for v in values if isinstance(v, bool)]
    numbers = [str(v) for v in values if isinstance(v, int) and not isinstance(v, bool)]
    texts = [v for v in values if isinstance(v, str)]
    if "0" in numbers:
        numbers.append("-0")
    options = [
        f"({kind} = '{name}' AND {said} IN ({', '.join(map(_quote, allowed))}))"
        for name, said, allowed in (
            ("boolean", f"CAST({value} AS text)", booleans),
            ("number", f"CAST({value} AS text)", numbers),
            ("string", f"({value} #>> '{{}}')", texts),
        )
        if allowed
    ]
    return "(" + " OR ".join(options) + ")"


def _value(root: str, path: Path) -> str:
    # Step by step: a whole path would also find the elements of arrays, by number.
    return "(" + root + "".join(f" -> CAST({_quote(step)} AS text)" for step in path) + ")"


def _quote(text: str) -> str:
    quoted = "'" + text.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted
