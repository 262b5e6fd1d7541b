"""A notice of the application's own: the payload holds an event, and the message is made when it is sent.

Two customers get a reminder. One of them leaves before it goes out, so hers is not needed any more.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from edgeoutbox import ActionRequest, Executor, NotNeeded, Outbox
from edgeoutbox_smtp import Email, EmailNotice, SmtpAdapter


@dataclass
class Shop:
    """What the application gives to its notices."""

    addresses: dict[str, str] = field(default_factory=dict)


class Reminder(EmailNotice[Shop]):
    """A customer has something in the cart."""

    notice: Literal["reminder"] = "reminder"
    customer: str

    async def prepare(self, app: Shop) -> Email | NotNeeded:
        """Runs when it is enqueued, and again before every attempt."""
        address = app.addresses.get(self.customer)
        if address is None:
            return NotNeeded("the customer left")
        return Email(to=address, subject="Still interested?", text="Your cart waits for you.")


async def main() -> None:
    """Enqueue both, then send."""
    shop = Shop({"acc-1": "jane@example.com", "acc-2": "joan@example.com"})
    email = SmtpAdapter(
        None, sender="shop@example.com", notices=[Reminder], app=shop, deliver="capture", capture_dir="captured"
    )
    async with Outbox("sqlite:///app.db", [email]) as outbox:
        for customer in shop.addresses:
            await outbox.enqueue(
                ActionRequest(
                    kind="email",
                    idempotency_key=f"reminder:{customer}",
                    lane_key=f"mail:{customer}",
                    payload=Reminder(customer=customer),
                    subject_account_id=customer,
                )
            )
        del shop.addresses["acc-2"]
        async with Executor(outbox) as executor:
            await executor.until_idle()
        for customer in ("acc-1", "acc-2"):
            action = await outbox.get(key=f"reminder:{customer}")
            if action is not None:
                print(customer, action.state, action.stop_reason)


asyncio.run(main())
