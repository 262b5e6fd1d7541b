"""The demo's application: emails by plain INSERT, as any program in any language would.

python -m edgeoutbox.cli.demo.producer demo.db 200 20
"""

import json
import sqlite3
import sys
from contextlib import closing

INSERT = """
INSERT INTO agent_action (kind, idempotency_key, payload, lane_key)
VALUES ('email', ?, ?, ?)
ON CONFLICT (idempotency_key) DO NOTHING
"""


def key_of(number: int) -> str:
    """The idempotency key of the email with this number."""
    return f"demo:{number}"


def recipient_of(key: str) -> str:
    """Whom the email with this key goes to: one address for each, so that the relay's record tells them apart."""
    return f"{key.replace(':', '-')}@demo.example"


def enqueue(file: str, emails: int, lanes: int) -> None:
    """Insert the emails, one transaction each, going round the lanes."""
    with closing(sqlite3.connect(file, timeout=10, isolation_level=None)) as database:
        for number in range(emails):
            key = key_of(number)
            payload = {
                "notice": "message",
                "to": recipient_of(key),
                "subject": f"Demo {number}",
                "text": "Sent as often as was meant.",
            }
            database.execute(INSERT, (key, json.dumps(payload), f"demo:lane-{number % lanes}"))


if __name__ == "__main__":
    enqueue(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
