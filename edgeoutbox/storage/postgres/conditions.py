"""How Postgres looks into a payload, for the condition of the rows that a build decodes.

It reads the payload as `json`, whose numbers are the text that was stored: as `jsonb`, 1e0 would be the integer 1.
"""

import json
from collections.abc import Sequence
from functools import lru_cache

from edgeoutbox.storage.conditions import render
from edgeoutbox.variants import Condition, Path, Scalar


@lru_cache(maxsize=256)
def sql_of(condition: Condition) -> str:
    """The condition in Postgres's SQL."""
    return render(condition, _Json())


class _Json:
    """Implements `edgeoutbox.storage.conditions.Json`."""

    def absent(self, root: str, path: Path) -> str:
        return f"COALESCE(json_typeof({self._value(root, path)}), 'null') = 'null'"

    def is_one(self, root: str, path: Path, values: Sequence[Scalar]) -> str:
        value = self._value(root, path)
        booleans = [json.dumps(v) for v in values if isinstance(v, bool)]
        numbers = [str(v) for v in values if isinstance(v, int) and not isinstance(v, bool)]
        texts = [v for v in values if isinstance(v, str)]
        if "0" in numbers:
            numbers.append("-0")
        options = [
            f"(json_typeof({value}) = '{name}' AND {said} IN ({', '.join(map(self.quote, allowed))}))"
            for name, said, allowed in (
                ("boolean", f"CAST({value} AS text)", booleans),
                ("number", f"CAST({value} AS text)", numbers),
                ("string", f"({value} #>> '{{}}')", texts),
            )
            if allowed
        ]
        return "(" + " OR ".join(options) + ")"

    def each(self, root: str, path: Path, item: str, inner: str) -> str:
        value = self._value(root, path)
        return (
            f"(json_typeof({value}) IS DISTINCT FROM 'array' OR NOT EXISTS ("
            f"SELECT 1 FROM json_array_elements(CASE WHEN json_typeof({value}) = 'array' THEN {value} END) "
            f"AS {item}(j) WHERE NOT {inner}))"
        )

    def ends_with(self, column: str, text: str) -> str:
        return f"right({column}, {len(text)}) = {self.quote(text)}"

    def quote(self, text: str) -> str:
        quoted = "'" + text.replace("'", "''") + "'"
        return "E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted

    def _value(self, root: str, path: Path) -> str:
        # Step by step: a whole path would also find the elements of arrays, by number.
        return "(" + root + "".join(f" -> CAST({self.quote(step)} AS text)" for step in path) + ")"
