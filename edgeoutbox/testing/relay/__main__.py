"""The relay as a program of its own: `python -m edgeoutbox.testing.relay --port 2525`."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from edgeoutbox.testing.relay import ScriptedRelay


async def _run(port: int, record: Path | None, tell: Callable[[str], object]) -> None:
    async with ScriptedRelay(port=port, record=record) as relay:
        address = f"smtp://{relay.host}:{relay.port}"
        tell(json.dumps({"relay": address, "host": relay.host, "port": relay.port, "security": "plaintext"}) + "\n")
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until the process is ended."""
    parser = argparse.ArgumentParser(
        prog="python -m edgeoutbox.testing.relay",
        description="An SMTP relay on the loopback address, for tests: it takes every message and delivers none. Once "
        "it listens it prints one line of JSON, with relay and security (what a kind is configured with), and runs "
        "until it is ended. TLS, logins and scripts are for ScriptedRelay, in Python.",
    )
    parser.add_argument("--port", type=int, default=0, help="where it listens; 0, the default, takes a free port")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append a JSON line for each message to this file")
    given = parser.parse_args(arguments)

    def tell(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    try:
        asyncio.run(_run(given.port, given.record, tell))
    except (OSError, OverflowError) as error:
        parser.error(f"--port {given.port}: cannot be listened on ({error})")


if __name__ == "__main__":
    main()
