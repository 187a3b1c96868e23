"""RocketMQ's own consumers whose listeners fail, served with an overlay.

What must have become of each message follows from the overlay's log alone, read plainly.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput.store.log.record import Record
from tests.interop.clients import Consumer, serving
from tests.interop.rocketmq import NEWEST, OLD_CLIENT, PARITY, of_release, require_maven
from tests.readers.stores import store_of_messages
from tests.support.golden import log_records, tree
from tests.support.processes import became
from tests.support.remoting import free_ports

MESSAGES, MAX_ATTEMPTS = 40, 2
"""Messages of the base, and attempts after the first one (``MAX_RECONSUME_TIMES``)."""
KILLS = 3
MANY_KILLS, MOST_SECONDS = 300, 6.0
"""One every three seconds on the average."""
PATIENCE_SECONDS = 90.0
SETTINGS = "brokerName=B\nmessageDelayLevel=1s 1s 1s 1s 1s\n"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A base whose levels all wait for a second; it stays as it is."""
    require_maven()
    root = store_of_messages(tmp_path / "store", MESSAGES, SETTINGS).root
    before = tree(root)
    yield root
    assert tree(root) == before


@pytest.fixture
def output(store: Path, tmp_path: Path) -> Path:
    """An output that has the store's queues."""
    shutil.copytree(store / "consumequeue", tmp_path / "output" / "consumequeue")
    # small files, since the log is read again and again
    (tmp_path / "output" / "overlay").mkdir()
    conf = tmp_path / "output" / "overlay" / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\n")
    return tmp_path / "output"


def stored(output: Path) -> list[Record]:
    return log_records(output / "overlay")


def dead(output: Path, group: str) -> list[Record]:
    return [one for one in stored(output) if one.topic == f"%DLQ%{group}".encode()]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("release", "client"),
    [pytest.param(PARITY, "", marks=pytest.mark.slow), (PARITY, OLD_CLIENT), (NEWEST, "")],
    ids=["5.3.3", "4.9.7", "5.5.0"],
)  # fmt: skip
def test_listeners_that_always_fail(store: Path, output: Path, release: str, client: str) -> None:
    """A concurrent one gets each message once and again as often as it wants, and an orderly one
    keeps it and gives it up; then it is a dead letter, and never comes again."""
    with serving(store, "--output", output, "--overlay") as server:
        expected = Counter(dict.fromkeys(range(MAX_ATTEMPTS + 1), MESSAGES))
        with (
            of_release(release),
            Consumer(server.namesrv, "givingup", "Topic", "plain", client=client) as plain,
            Consumer(server.namesrv, "orderlygivingup", "Topic", "ordered", client=client) as other,
        ):
            for consumer in (plain, other):
                found = consumer.take(expected.total())
                assert Counter(one.reconsume_times for one in found) == expected
            for group in ("plain", "ordered"):
                assert became(lambda g=group: len(dead(output, g)) == MESSAGES, 60)  # type: ignore[misc]
            assert plain.stop() == []
            assert other.stop() == []
    records = stored(output)
    topics = Counter(one.topic.decode() for one in records)
    assert topics == {
        "SCHEDULE_TOPIC_XXXX": MAX_ATTEMPTS * MESSAGES, "%RETRY%plain": MAX_ATTEMPTS * MESSAGES,
        "%DLQ%plain": MESSAGES, "%DLQ%ordered": MESSAGES,
    }  # fmt: skip
    bodies = {b"message %d" % number for number in range(MESSAGES)}
    for group, times in (("plain", 3), ("ordered", 2 if client else 3)):
        letters = dead(output, group)
        assert {one.body for one in letters} == bodies
        assert {one.reconsume_times for one in letters} == {times}
        assert {one.property_map[b"RETRY_TOPIC"] for one in letters} == {b"Topic"}


@pytest.mark.extended
def test_kills_of_the_server_lose_nothing(store: Path, output: Path, seed: int) -> None:
    """A listener always fails while the server is killed again and again: each message becomes a
    dead letter, and all that waited is delivered once.

    Where an answer was lost the client sends the message anew, so that there may be more dead
    letters. Where no server answers, it counts attempts by itself, so that less may have waited.
    """
    rng = random.Random(seed)
    address = f"127.0.0.1:{free_ports((-2, -1, 0, 1))}"
    options = (store, "--output", output, "--overlay")
    with ExitStack() as opened:
        with serving(*options, listen=address, exit_code=-signal.SIGKILL) as server:
            consumer = opened.enter_context(Consumer(server.namesrv, "givingup", "Topic", "group"))
            consumer.take(1)
            server.process.kill()
        for _ in range(KILLS - 1):
            wanted = len(stored(output)) + rng.randrange(1, MESSAGES)
            with serving(*options, listen=address, exit_code=-signal.SIGKILL) as server:
                became(lambda n=wanted: len(stored(output)) >= n, 20)  # type: ignore[misc]
                server.process.kill()
        with serving(*options, listen=address):
            assert became(lambda: _is_settled(output, "group"), PATIENCE_SECONDS)
            consumer.stop()
    _check_settled(output, "group")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_kill_every_three_seconds(store: Path, output: Path, seed: int) -> None:
    """One group after the other consumes all messages and fails, as long as it takes."""
    address = f"127.0.0.1:{free_ports((-2, -1, 0, 1))}"
    options = (store, "--output", output, "--overlay")
    rng, kills, groups = random.Random(seed), 0, list[str]()
    while kills < MANY_KILLS:
        group = f"group{len(groups)}"
        groups.append(group)
        with ExitStack() as opened:
            consumer = None
            while consumer is None or not _is_settled(output, group):
                with serving(*options, listen=address, exit_code=-signal.SIGKILL) as server:
                    if consumer is None:
                        consumer = Consumer(address, "givingup", "Topic", group)
                        opened.enter_context(consumer)
                    time.sleep(rng.uniform(0, MOST_SECONDS))  # the moment is random, not an event
                    server.process.kill()
                    kills += 1
            consumer.kill()
    for group in groups:
        _check_settled(output, group)
    print(f"kills: {kills}, groups: {len(groups)}")


def _is_settled(output: Path, group: str) -> bool:
    is_dead = len({one.body for one in dead(output, group)}) == MESSAGES
    return is_dead and not _waiting(output)


def _waiting(output: Path) -> set[int]:
    """The positions of what waits."""
    records = stored(output)
    delivered = {
        r.prepared_transaction_offset - 1 for r in records if r.topic.startswith(b"%RETRY%")
    }
    waited = {r.physical_offset for r in records if r.topic == b"SCHEDULE_TOPIC_XXXX"}
    return waited - delivered


def _check_settled(output: Path, group: str) -> None:
    records, topic = stored(output), f"%RETRY%{group}".encode()
    sources = Counter(r.prepared_transaction_offset for r in records if r.topic == topic)
    assert set(sources.values()) <= {1}
    print(f"{group}: dead letters {len(dead(output, group))}, delivered {sources.total()}")
