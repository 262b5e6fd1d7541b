"""Memory: what an executor holds while it drains a million actions.

    python -m benchmarks.memory [--json] [--driver apsw|stdlib] [--actions 1000000]

Actions are enqueued and drained in rounds of 50,000, with one outbox and one executor throughout. The resident size
after each round is printed; the yardstick is the size after the second round, when every cache is full.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from benchmarks.workload import folder, outbox, requests
from edgeoutbox import Executor

ROUND = 50_000
LANES = 5_000


def resident_mb() -> float:
    """The resident size of this process, in MB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def rounds(path: Path, driver: str, actions: int) -> list[float]:
    """The resident size after each round."""
    sizes = []
    async with outbox(path, driver) as box, Executor(box, concurrency=256) as executor:
        for turn in range(actions // ROUND):
            for part in range(10):
                await box.enqueue_many(requests(ROUND // 10, LANES, f"{turn}:{part}"))
            await executor.until_idle()
            sizes.append(round(resident_mb(), 1))
            print(f"  {(turn + 1) * ROUND} actions: {sizes[-1]} MB", file=sys.stderr)
        done = executor.metrics.total("action.ended", state="DONE")
    if done != actions // ROUND * ROUND:
        raise SystemExit(f"{done} of {actions} actions ended DONE")
    return sizes


def main() -> None:
    """Drain, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--driver", choices=["apsw", "stdlib"], default="apsw")
    parser.add_argument("--actions", type=int, default=1_000_000)
    options = parser.parse_args()
    if options.actions < 3 * ROUND:
        parser.error(f"--actions: at least {3 * ROUND}, three rounds")
    with folder() as where:
        sizes = asyncio.run(rounds(where / "memory.db", options.driver, options.actions))
    figures = {
        "driver": options.driver,
        "actions": len(sizes) * ROUND,
        "after_second_round_mb": sizes[1],
        "at_end_mb": sizes[-1],
        "growth_mb": round(sizes[-1] - sizes[1], 1),
    }
    print(json.dumps(figures) if options.json else "\n".join(f"{key:>22}  {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
