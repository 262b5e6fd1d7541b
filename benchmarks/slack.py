"""Slack in bad weather: posts whose answers are lost and limited, while the executors are killed one after the other.

    python -m benchmarks.slack [--posts 2000] [--channels 50] [--lost 0.2] [--limited 0.05] [--dropped 0.02]
                               [--executors 2] [--json]

A Slack server on this machine keeps a share of the posts and breaks the connection instead of answering, answers
another share with 429, and drops a third one, which it neither keeps nor answers. Every second the oldest executor
gets SIGKILL and a new one takes its place. In the end the database is compared with the server's own record, which
holds every post: nothing may be there twice or out of the order of its channel, every DONE must be there, and no
UNCERTAIN may be. Exits with 1 if one of these is broken.
"""

import argparse
import asyncio
import json
import sys
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.workload import folder
from edgeoutbox.cli.demo.performance import stop
from edgeoutbox.cli.demo.slack import SlackStage
from edgeoutbox.cli.demo.slack_figures import SlackFigures

POSTS = 2000
CHANNELS = 50
LOST = 0.2
LIMITED = 0.05
DROPPED = 0.02
EXECUTORS = 2
ATTEMPTS = 7
"""Few enough that a dropped post, which is looked for until the last, does not hold its channel for long."""

LONGEST = 900.0
_TOLD_EVERY = 10


@dataclass
class Chaos(SlackStage):
    """Posts that are carried out by `executors` processes at a time, of which one dies every `kill_every` seconds."""

    posts: int = POSTS
    channels: int = CHANNELS
    lost: float = LOST
    limited: float = LIMITED
    dropped: float = DROPPED
    post_interval: float = 0.0
    max_attempts: int = ATTEMPTS
    longest: float = LONGEST
    executors: int = EXECUTORS
    kill_every: float = 1.0

    async def carry_out(self) -> None:
        """Kill and replace until every post has ended."""
        crew: deque[asyncio.subprocess.Process] = deque()
        try:
            for _ in range(self.executors):
                crew.append(await self.executor())
            while self.ended() < self.posts:
                await asyncio.sleep(self.kill_every)
                crew.append(await self.executor())
                await self.kill(crew.popleft())
                if self.kills % _TOLD_EVERY == 0:
                    self.progress(self.ended())
        finally:
            for executor in crew:
                await stop(executor)


def run(where: Path, options: argparse.Namespace) -> SlackFigures:
    """One run in a folder."""
    chaos = Chaos(
        where,
        tell=lambda sentence: print(f"  {sentence}", file=sys.stderr),
        progress=lambda ended: print(f"  {ended} of {options.posts} ended", file=sys.stderr),
        posts=options.posts,
        channels=options.channels,
        lost=options.lost,
        limited=options.limited,
        dropped=options.dropped,
        executors=options.executors,
    )
    return asyncio.run(chaos.perform())


def main() -> None:
    """Run, print the figures, and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--posts", type=int, default=POSTS)
    parser.add_argument("--channels", type=int, default=CHANNELS)
    parser.add_argument("--lost", type=float, default=LOST, help="the share of posts whose answer is lost")
    parser.add_argument("--limited", type=float, default=LIMITED, help="the share of posts that are answered with 429")
    parser.add_argument("--dropped", type=float, default=DROPPED, help="the share that is neither kept nor answered")
    parser.add_argument("--executors", type=int, default=EXECUTORS, help="processes at the same time")
    options = parser.parse_args()
    with folder() as where:
        found = run(where.absolute(), options)
    figures = asdict(found)
    figures = {"posts": figures.pop("actions"), **figures}
    print(json.dumps(figures) if options.json else "\n".join(f"{key:>18}  {value}" for key, value in figures.items()))
    if not (found.good and found.actions == options.posts):
        raise SystemExit("a promise is broken")


if __name__ == "__main__":
    main()
