"""Members of a group that are processes, beside the plain decoding of a real broker's store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from reput.store.state.consumeroffset import TopicGroup, read_committed
from tests.support.group_members import Place, members_of
from tests.support.plain_queues import plain_queue, queue_directories

GROUP = "g"
ORDERS_DIGEST = "810099c39d292309b7dc4e743490099d943cbefb9624cdbf5b845a8681258e75"
"""tests/golden/README.md, from a drain by RocketMQ's own client."""


def orders(store: Path) -> list[Place]:
    """Every message of the topic, sorted."""
    return sorted(
        ("Orders", int(directory.name), message.queue_offset)
        for directory in queue_directories(store)
        if directory.parent.name == "Orders"
        for message in plain_queue(store, directory)
    )


def test_processes_share_queues_and_consume_each_message_once(
    golden: Callable[[str], Path],
) -> None:
    """Members come and go in the middle; what they get is what RocketMQ's client got."""
    root = golden("broker")
    expected = orders(root)
    with members_of(root, GROUP, ["Orders"]) as members:
        first = members.start(1000)
        members.wait_for(lambda: len(first.places) == 1000)
        second, third = members.start(300), members.start(300)
        members.wait_for(lambda: len(second.places) == len(third.places) == 300)
        members.stop(first)
        members.go(second)
        members.go(third)
        members.wait_for(lambda: len(members.places()) >= len(expected))
        members.stop(second)
        members.stop(third)
        members.end()
        assert members.places() == expected
        assert members.check_exclusive() >= 2
        bodies = {
            place: body
            for member in members.all
            for poll in member.polls
            for place, body in zip(poll.places, poll.bodies, strict=True)
        }
    digest = hashlib.sha256()
    for _, queue_id, offset in expected:
        digest.update(b"%03d-%012d" % (queue_id, offset) + bodies["Orders", queue_id, offset])
    assert digest.hexdigest() == ORDERS_DIGEST


def test_a_killed_member_loses_nothing(golden: Callable[[str], Path]) -> None:
    """Others go on where it has committed: what it had not is consumed again, no more."""
    root = golden("broker")
    expected = orders(root)
    with members_of(root, GROUP, ["Orders"]) as members:
        victim = members.start(60, commits=5)
        members.wait_for(lambda: len(victim.places) == 60)
        survivor = members.start(0)
        members.wait_for(lambda: any(poll.queues for poll in survivor.polls))
        members.go(victim)
        members.wait_for(lambda: len([poll for poll in victim.polls if poll.places]) == 6)
        members.kill(victim)
        committed = [place for poll in victim.polls if poll.ended for place in poll.places]
        torn = victim.polls[-1]
        assert torn.ended is None
        assert torn.places
        found = read_committed(root) or {}
        for topic, queue_id, offset in committed:
            assert found[TopicGroup(topic, GROUP)][queue_id] > offset
        members.go(survivor)
        members.wait_for(lambda: {*members.places()} == {*expected})
        members.stop(survivor)
        members.end()
        members.check_exclusive()
        twice = members.places()
    for place in expected:
        twice.remove(place)
    assert twice == sorted(torn.places)
