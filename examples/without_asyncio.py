"""The same for a program without asyncio: the executor runs in a thread, and every method blocks."""

import sqlite3
from contextlib import closing

from edgeoutbox import ActionRequest, background, prepare
from edgeoutbox_smtp import SmtpAdapter

email = SmtpAdapter(None, sender="shop@example.com", deliver="capture", capture_dir="captured")

with background("sqlite:///app.db", [email]) as outbox, closing(sqlite3.connect("app.db")) as db:
    prepare(db)
    db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, paid INTEGER)")
    with db:  # one transaction: the order and its receipt
        db.execute("INSERT OR REPLACE INTO orders (id, paid) VALUES (42, 1)")
        receipt = ActionRequest(
            kind="email",
            idempotency_key="order:42:receipt",
            lane_key="mail:7",
            payload={"notice": "message", "to": "jane@example.com", "subject": "Your receipt", "text": "Thank you!"},
        )
        enqueued = outbox.enqueue(receipt, connection=db)
    print(outbox.wait(enqueued.id, timeout=30).state)
