"""Which rows a build decodes, as one SQL condition over `payload` and `idempotency_key`."""

import json
from collections.abc import Iterable
from functools import lru_cache

from edgeoutbox.variants import AllOf, Condition, Each, KeySuffix, OneOf, Path, Scalar, Switch


@lru_cache(maxsize=256)
def sql_of(condition: Condition) -> str:
    """The condition in SQL; true for a row whose value is absent, like `edgeoutbox.variants.holds`.

    Its literals come from declared Python types, never from a payload, and are quoted all the same.
    """
    return _render(condition, "payload", 0)


def _render(condition: Condition, root: str, depth: int) -> str:
    match condition:
        case AllOf(parts):
            return "(" + " AND ".join(_render(part, root, depth) for part in parts) + ")" if parts else "1"
        case OneOf(path, values):
            return f"({_absent(root, path)} OR {_is_one(root, path, values)})"
        case Each(path, part):
            item = f"item{depth}"
            inner = _render(part, f"{item}.j", depth + 1)
            # json_each shows a string without its quotes; `j` is the element as JSON again, for paths into it.
            return (
                f"(json_type({root}, {_path(path)}) IS NOT 'array' OR NOT EXISTS ("
                f"SELECT 1 FROM (SELECT CASE WHEN type IN ('object', 'array') THEN value "
                f"WHEN type IN ('true', 'false', 'null') THEN type ELSE json_quote(value) END AS j "
                f"FROM json_each({root}, {_path(path)})) AS {item} WHERE NOT {inner}))"
            )
        case Switch(path, cases):
            branches = " OR ".join(
                f"({_is_one(root, path, (tag,))} AND {_render(part, root, depth)})" for tag, part in cases
            )
            return f"({_absent(root, path)} OR {branches})"
        case KeySuffix(values):
            options = " OR ".join(
                f"idempotency_key = {_quote(value)} "
                f"OR substr(idempotency_key, {-len(value) - 1}) = {_quote(':' + value)}"
                for value in values
            )
            return f"({options})"


def _absent(root: str, path: Path) -> str:
    return f"COALESCE(json_type({root}, {_path(path)}), 'null') = 'null'"


def _is_one(root: str, path: Path, values: Iterable[Scalar]) -> str:
    where = f"json_type({root}, {_path(path)})"
    value = f"json_extract({root}, {_path(path)})"
    booleans = [f"{where} = '{json.dumps(v)}'" for v in values if isinstance(v, bool)]
    numbers = [str(v) for v in values if isinstance(v, int) and not isinstance(v, bool)]
    texts = [_quote(v) for v in values if isinstance(v, str)]
    options = booleans
    if numbers:
        options.append(f"({where} = 'integer' AND {value} IN ({', '.join(numbers)}))")
    if texts:
        options.append(f"({where} = 'text' AND {value} IN ({', '.join(texts)}))")
    return "(" + " OR ".join(options) + ")"


def _path(path: Path) -> str:
    return _quote("$" + "".join(f'."{step}"' for step in path))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
