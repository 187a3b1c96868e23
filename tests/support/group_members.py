"""Members of a consumer group as processes of their own, which tell what they do.

After each poll a member prints its queues, what it got, and the time; after the commit the time
again. In between it has its queues, so that these intervals of two members must not meet.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.processes import module_command

ROOT = Path(__file__).parent.parent.parent
WAIT_SECONDS = 120.0
MAX_COUNT = 20
Queue = tuple[str, int]
Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""


@dataclass
class Poll:
    """One poll of a member and the commit after it."""

    begun: int
    """ns of the machine's monotonic clock, as ``ended``."""
    queues: set[Queue]
    places: list[Place]
    bodies: list[bytes]
    ended: int | None = None
    """None while it is not committed."""


@dataclass
class MemberProcess:
    """A running member, or one that has ended."""

    process: subprocess.Popen[str]
    polls: list[Poll] = field(default_factory=list)

    @property
    def places(self) -> list[Place]:
        """Everything that it got."""
        return [place for poll in self.polls for place in poll.places]


class Members:
    """The members of one group."""

    def __init__(self, store: Path, group: str, topics: list[str], output: Path | None) -> None:
        self._given = {
            "store": str(store), "group": group, "topics": topics,
            "output": str(output) if output else None,
        }  # fmt: skip
        self.all: list[MemberProcess] = []
        self._changed = threading.Condition()
        self._readers: list[threading.Thread] = []

    def start(self, quota: int, *, commits: int = 1 << 30) -> MemberProcess:
        """Start a member that polls and commits. When it has as many messages as its quota, it
        takes no more until ``go``; after ``commits`` it polls once more, and waits to be killed."""
        given = {**self._given, "quota": quota, "commits": commits}
        process = subprocess.Popen(
            [*module_command("tests.support.group_members"), json.dumps(given)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        member = MemberProcess(process)
        self.all.append(member)
        self._readers.append(threading.Thread(target=self._read, args=(member,)))
        self._readers[-1].start()
        return member

    def _read(self, member: MemberProcess) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            told: dict[str, Any] = json.loads(line)
            with self._changed:
                if "ended" in told:
                    member.polls[-1].ended = told["ended"]
                else:
                    member.polls.append(
                        Poll(
                            told["begun"],
                            {(topic, queue_id) for topic, queue_id in told["queues"]},
                            [(t, q, o) for t, q, o, _ in told["messages"]],
                            [bytes.fromhex(body) for *_, body in told["messages"]],
                        )
                    )
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something that the members tell is so."""
        with self._changed:
            assert self._changed.wait_for(is_so, WAIT_SECONDS), [
                (len(member.places), member.process.poll()) for member in self.all
            ]

    def go(self, member: MemberProcess) -> None:
        """Lift its quota."""
        assert member.process.stdin is not None
        member.process.stdin.write("go")
        member.process.stdin.flush()

    def kill(self, member: MemberProcess) -> None:
        """SIGKILL."""
        member.process.kill()
        member.process.wait()

    def stop(self, member: MemberProcess) -> None:
        """Let it close, and wait for it."""
        assert member.process.stdin is not None
        member.process.stdin.close()
        assert member.process.wait(WAIT_SECONDS) == 0

    def end(self) -> None:
        """Stop those that run, killing those that do not listen, and read all that they told."""
        for member in self.all:
            if member.process.poll() is None:
                member.process.kill()
        for reader in self._readers:
            reader.join()
        for member in self.all:
            member.process.wait()

    def places(self) -> list[Place]:
        """Everything that all of them got, sorted."""
        return sorted(place for member in self.all for place in member.places)

    def check_exclusive(self) -> int:
        """No two members had a queue at the same time; returns how often one changed hands."""
        intervals: dict[Queue, list[tuple[int, float, int]]] = {}
        for number, member in enumerate(self.all):
            for poll in member.polls:
                for queue in poll.queues:
                    # who was killed in between had them until then: what follows must be later
                    ended = poll.begun if poll.ended is None else poll.ended
                    intervals.setdefault(queue, []).append((poll.begun, ended, number))
        changes = 0
        for queue, found in intervals.items():
            found.sort()
            for (_, ended, one), (begun, _, other) in itertools.pairwise(found):
                if one != other:
                    changes += 1
                    assert ended < begun, (queue, one, other)
        return changes


@contextmanager
def members_of(
    store: Path, group: str, topics: list[str], output: Path | None = None
) -> Iterator[Members]:
    """Members that are ended with the test."""
    members = Members(store, group, topics, output)
    try:
        yield members
    finally:
        members.end()


def _tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    """Be a member until stdin ends."""
    from reput.readers.consumer import ConsumeFromWhere, Consumer  # noqa: PLC0415

    given = json.loads(sys.argv[1])
    output = Path(given["output"]) if given["output"] else None
    with Consumer(
        Path(given["store"]), given["group"], dict.fromkeys(given["topics"]), output=output,
        from_where=ConsumeFromWhere.FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        commits, left = 0, given["quota"]
        while True:
            if select.select([0], [], [], 0)[0]:
                if not os.read(0, 2):
                    break
                left = 1 << 30
            found = consumer.poll(0.05, max(0, min(left, MAX_COUNT)))
            left -= len(found)
            messages = [
                (queue.topic, queue.queue_id, offset, message.body().hex())
                for queue, offset, message in found
            ]
            queues = [(queue.topic, queue.queue_id) for queue in consumer.positions]
            _tell(begun=time.monotonic_ns(), queues=queues, messages=messages)
            if found and commits == given["commits"]:
                os.read(0, 2)
            consumer.commit()
            commits += bool(found)
            _tell(ended=time.monotonic_ns())


if __name__ == "__main__":
    main()
