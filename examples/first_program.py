"""An order is paid and its receipt goes out: both, or neither. Here the receipt becomes a file in captured/."""

import asyncio

import aiosqlite

from edgeoutbox import ActionRequest, Executor, Outbox, prepare_async
from edgeoutbox_smtp import SmtpAdapter


async def main() -> None:
    email = SmtpAdapter(None, sender="shop@example.com", deliver="capture", capture_dir="captured")
    async with Outbox("sqlite:///app.db", [email]) as outbox, Executor(outbox), aiosqlite.connect("app.db") as db:
        await prepare_async(db)
        await db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, paid INTEGER)")
        await db.execute("BEGIN IMMEDIATE")
        await db.execute("INSERT OR REPLACE INTO orders (id, paid) VALUES (42, 1)")
        message = {"notice": "message", "to": "jane@example.com", "subject": "Your receipt", "text": "Thank you!"}
        receipt = ActionRequest(kind="email", idempotency_key="order:42:receipt", lane_key="mail:7", payload=message)
        enqueued = await outbox.enqueue(receipt, connection=db)
        await db.commit()
        print((await outbox.wait(enqueued.id, timeout=30)).state)


asyncio.run(main())
