"""What a connection to Postgres says of itself: whose database it has open, and which schema our tables are in."""

from edgeoutbox.errors import NoSchema, SchemaTooNew
from edgeoutbox.storage.protocol import PostgresFacts
from edgeoutbox.storage.statements.steps import Row

VERSION = 1
"""The schema that this build writes. A build at or above a database's `readable_from` may use it."""

# Every role may ask this: pg_control_system() is executable by PUBLIC. The identifier was drawn when the cluster was
# made, and is the same on a standby, on a copy of the cluster's files, and after a restart.
FACTS = """
SELECT
  CAST((SELECT system_identifier FROM pg_control_system()) AS text) || ':'
    || CAST((SELECT oid FROM pg_database WHERE datname = current_database()) AS text),
  (
    SELECT CAST(nspname AS text)
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = found.tableoid
  ),
  version, readable_from
FROM agent_action_schema AS found
"""


def facts_of(rows: list[Row]) -> PostgresFacts:
    """The facts in the rows of `FACTS`."""
    if not rows:
        raise NoSchema("the database has no edgeoutbox schema version; run 'edgeoutbox migrate'")
    return PostgresFacts(*rows[0])


def require_readable(facts: PostgresFacts, build: int = VERSION) -> None:
    """Raise `SchemaTooNew` when this build cannot work with the schema."""
    if facts.readable_from > build:
        raise SchemaTooNew(
            f"the database has schema {facts.version}, readable by builds of schema {facts.readable_from} or later; "
            f"this build has schema {build}. Upgrade this program; nothing was changed."
        )
