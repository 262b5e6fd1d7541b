"""What `doctor` learns about the endpoints, without sending anything."""

import asyncio
from collections.abc import Callable, Mapping

from edgeoutbox import Check
from edgeoutbox_webhook.endpoints import Endpoint
from edgeoutbox_webhook.exchange import Exchange, NotReached

_AT_ONCE = 8


async def check_endpoints(endpoints: Mapping[str, Endpoint], open_to: Callable[[Endpoint], Exchange]) -> list[Check]:
    """Resolve, connect and agree on TLS; one check for each endpoint, a few at a time."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(name: str, endpoint: Endpoint) -> Check:
        async with turns:
            return await _look(f"endpoint {name}", endpoint, open_to(endpoint))

    return list(await asyncio.gather(*(look(name, endpoint) for name, endpoint in endpoints.items())))


async def _look(title: str, endpoint: Endpoint, exchange: Exchange) -> Check:
    if not endpoint.secrets:
        return Check(title, ok=False, detail="no secret is configured; set `secret`")
    found = await exchange.probe()
    if isinstance(found, NotReached):
        return Check(title, ok=False, detail=f"{endpoint.origin}: {found.reason}")
    count = len(endpoint.secrets)
    signs = "one secret signs" if count == 1 else f"{count} secrets sign"
    return Check(title, ok=True, detail=f"{endpoint.origin} takes connections, {found}; {signs}")
