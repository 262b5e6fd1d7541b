"""An executor of the soak, in a process of its own, until SIGTERM.

python -m benchmarks.soaking.executor sqlite+apsw:///soak.db RELAY_PORT PROVIDER_PORT
"""

import asyncio
import os
import signal
import sys

from benchmarks.soaking.kinds import Ports, adapters_of
from edgeoutbox import Executor, Outbox

CONCURRENCY = 48


async def carry_out(url: str, ports: Ports) -> None:
    """Run until told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    owner = str(os.getpid())
    async with Outbox(url, adapters_of(ports)) as outbox, Executor(outbox, concurrency=CONCURRENCY, owner=owner):
        print("ready", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(carry_out(sys.argv[1], Ports(int(sys.argv[2]), int(sys.argv[3]))))
