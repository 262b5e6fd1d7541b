"""How SQLite looks into a payload, for the condition of the rows that a build decodes."""

import json
from collections.abc import Sequence
from functools import lru_cache

from edgeoutbox.storage.conditions import render
from edgeoutbox.variants import Condition, Path, Scalar


@lru_cache(maxsize=256)
def sql_of(condition: Condition) -> str:
    """The condition in SQLite's SQL."""
    return render(condition, _Json())


class _Json:
    """Implements `edgeoutbox.storage.conditions.Json`."""

    def absent(self, root: str, path: Path) -> str:
        return f"COALESCE(json_type({root}, {self._at(path)}), 'null') = 'null'"

    def is_one(self, root: str, path: Path, values: Sequence[Scalar]) -> str:
        where = f"json_type({root}, {self._at(path)})"
        value = f"json_extract({root}, {self._at(path)})"
        booleans = [f"{where} = '{json.dumps(v)}'" for v in values if isinstance(v, bool)]
        numbers = [str(v) for v in values if isinstance(v, int) and not isinstance(v, bool)]
        texts = [self.quote(v) for v in values if isinstance(v, str)]
        options = booleans
        if numbers:
            options.append(f"({where} = 'integer' AND {value} IN ({', '.join(numbers)}))")
        if texts:
            options.append(f"({where} = 'text' AND {value} IN ({', '.join(texts)}))")
        return "(" + " OR ".join(options) + ")"

    def each(self, root: str, path: Path, item: str, inner: str) -> str:
        # json_each shows a string without its quotes; `j` is the element as JSON again, for paths into it.
        return (
            f"(json_type({root}, {self._at(path)}) IS NOT 'array' OR NOT EXISTS ("
            f"SELECT 1 FROM (SELECT CASE WHEN type IN ('object', 'array') THEN value "
            f"WHEN type IN ('true', 'false', 'null') THEN type ELSE json_quote(value) END AS j "
            f"FROM json_each({root}, {self._at(path)})) AS {item} WHERE NOT {inner}))"
        )

    def ends_with(self, column: str, text: str) -> str:
        return f"substr({column}, {-len(text)}) = {self.quote(text)}"

    def quote(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def _at(self, path: Path) -> str:
        return self.quote("$" + "".join(f'."{step}"' for step in path))
