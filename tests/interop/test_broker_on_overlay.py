"""RocketMQ's own brokers, started on the overlay of a server that has ended, and the server that
goes on after them.

What must have become of each message follows from the overlay's log alone, read plainly.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.store import configjson
from reput.store.brokerlock import broker_pid
from reput.store.queue.queuetype import read_topic_table
from reput.store.state.consumeroffset import TopicGroup, read_committed
from tests.interop.clients import Consumer, serving
from tests.interop.rocketmq import ONE_RELEASE, Broker, boot, drain, require_maven, send
from tests.readers.stores import SmallStore, store_of_messages
from tests.support.cli import Call
from tests.support.golden import log_records
from tests.support.processes import became
from tests.support.remoting import Client, free_ports

MESSAGES = 12
DELIVERED, CONSUMED, DEAD = range(6), 3, range(10, 12)
"""Numbers of the messages that the server delivers, how many of these the group consumes, and
those that are dead letters; the others wait when the server ends."""
SOON, LATER = 1, 5
SETTINGS = "brokerName=B\nmessageDelayLevel=1s 1s 1s 12s 20s\n"
"""Levels: what fails at the broker waits for the fourth."""
SEND_BACK, SEND, COMMIT, MAX = 36, 310, 15, 30
GROUP, RETRIES, LETTERS = "group", "%RETRY%group", "%DLQ%group"
SECONDS = 60.0

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("release"), ONE_RELEASE]


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    """A base that nobody changes."""
    require_maven()
    small = store_of_messages(tmp_path / "store", MESSAGES, SETTINGS)
    (small.root / "config").mkdir()
    groups = {"quiet": {"groupName": "quiet", "consumeEnable": False, "retryQueueNums": 2}}
    text = json.dumps({"subscriptionGroupTable": groups})
    (small.root / "config" / "subscriptionGroup.json").write_text(text)
    return small


@pytest.fixture
def output(small: SmallStore, tmp_path: Path) -> Path:
    """An output that has the store's queues."""
    shutil.copytree(small.root / "consumequeue", tmp_path / "output" / "consumequeue")
    (tmp_path / "output" / "overlay").mkdir()
    conf = tmp_path / "output" / "overlay" / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=400\n")
    return tmp_path / "output"


def use(small: SmallStore, output: Path, exit_code: int = 0) -> None:
    """Serve, have every kind of message in the overlay, and end."""
    port = free_ports((-2, -1, 0, 1))
    options = (small.root, "--output", output, "--overlay")
    with serving(*options, listen=f"127.0.0.1:{port}", exit_code=exit_code) as server:
        with Client(port) as base, Client(port + 1) as overlay:
            for number, (start, _) in enumerate(small.log.spans):
                level = SOON if number in DELIVERED else -1 if number in DEAD else LATER
                asked = {"group": GROUP, "offset": start, "delayLevel": level}
                assert base.ask(SEND_BACK, asked).code == 0
            queue = {"consumerGroup": GROUP, "topic": RETRIES, "queueId": 0}
            end = {"offset": str(len(DELIVERED))}
            assert became(lambda: overlay.ask(MAX, queue).ext == end, SECONDS)
            assert overlay.ask(COMMIT, {**queue, "commitOffset": CONSUMED}).code == 0
            committed = {TopicGroup(RETRIES, GROUP): {0: CONSUMED}}
            assert became(lambda: read_committed(output / "overlay") == committed, SECONDS)
        if exit_code:
            server.process.kill()


Copies = Counter[tuple[bytes, bytes, int, int]]


def copies(output: Path) -> tuple[Copies, Copies]:
    """Return what waited, and what was delivered, by topic, key, attempts and checksum."""
    waited, delivered = Copies(), Copies()
    for one in log_records(output / "overlay"):
        values = one.property_map
        topic, key = values.get(b"REAL_TOPIC", b""), values.get(b"UNIQ_KEY", b"")
        copy = (topic, key, one.reconsume_times, one.body_crc)
        if one.topic == b"SCHEDULE_TOPIC_XXXX":
            waited[copy] += 1
        elif one.topic == topic and int(values.get(b"DELAY", b"0")) > 0:
            delivered[copy] += 1
    return waited, delivered


def expected_rest() -> Counter[int]:
    """The bodies' checksums of all that the group has not consumed."""
    numbers = range(CONSUMED, min(DEAD))
    return Counter(zlib.crc32(b"message %d" % number) for number in numbers)


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["stopped", "killed"]
)
def is_killed(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param


@pytest.mark.extended
def test_a_broker_goes_on(
    small: SmallStore, output: Path, call: Call, seed: int, *, is_killed: bool
) -> None:
    """It delivers what waits, once each, to a group that goes on where it was; it reads dead
    letters, takes messages, and leaves a store that is right. The server goes on after it."""
    overlay = output / "overlay"
    use(small, output)
    assert not (overlay / "abort").exists()
    with Broker(overlay, topics={"Other": 2}) as broker:
        assert broker_pid(overlay) == broker.process.pid
        done = call("serve", small.root, "--output", output, "--overlay", "--listen", "127.0.0.1:0")
        assert done.returncode != 0
        assert f"process {broker.process.pid}" in done.stderr
        with Consumer(broker.namesrv, "concurrent", "Topic", GROUP) as consumer:
            rest = expected_rest()
            found = consumer.take(rest.total())
            assert Counter(one.body_crc for one in found) == rest
            assert {one.reconsume_times for one in found} == {1}
            assert consumer.stop() == []
        letters = drain(broker.namesrv, LETTERS, len(DEAD))
        assert letters["messages"] == len(DEAD)
        sent = send(broker.namesrv, "Other", 100, seed)
        assert drain(broker.namesrv, "Other", sent["visible"])["messages"] == sent["visible"]
        # the broker itself writes retries, which wait when it ends
        with Consumer(broker.namesrv, "givingup", "Other", "late") as failing:
            failing.take(10)
        if is_killed:
            broker.kill()
    check(small, output, call)
    if not is_killed:
        committed = read_committed(overlay) or {}
        assert committed[TopicGroup(RETRIES, GROUP)] == {0: min(DEAD)}


@pytest.mark.extended
def test_timer_messages_wait_for_a_broker(small: SmallStore, output: Path) -> None:
    """A broker does not repeat what was delivered before the first that waits."""
    port, overlay = free_ports((-2, -1, 0, 1)), output / "overlay"
    options = (small.root, "--output", output, "--overlay")
    with serving(*options, listen=f"127.0.0.1:{port}"), Client(port + 1) as client:
        for number, delay in enumerate((1, 1, 12)):
            due = time.time_ns() // 1_000_000 + delay * 1000
            asked = {
                "a": GROUP, "b": RETRIES, "e": 0, "f": 0, "g": 1, "h": 0, "j": 1,
                "i": f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01K{number}\x02",
            }  # fmt: skip
            assert client.ask(SEND, asked, b"timer %d" % number).code == 0
        assert became(lambda: len(log_records(overlay)) == 5, SECONDS)
    with (
        Broker(overlay, topics={"Other": 1}, settings={"timerWheelEnable": True}) as broker,
        Consumer(broker.namesrv, "concurrent", "Topic", GROUP) as consumer,
    ):
        found = [one.body_crc for one in consumer.take(3)]
        assert sorted(found) == sorted(zlib.crc32(b"timer %d" % number) for number in range(3))
        assert consumer.stop() == []
    with serving(*options):
        pass
    bodies = [one.body for one in log_records(overlay) if one.topic == RETRIES.encode()]
    assert sorted(bodies) == [b"timer 0", b"timer 1", b"timer 2"]


@pytest.mark.extended
def test_a_broker_recovers_what_a_kill_left(small: SmallStore, output: Path, call: Call) -> None:
    """It knows that the overlay was not closed, and has all of its queues; the next start of the
    server sets the files right, and the index, which the broker has begun anew."""
    overlay = output / "overlay"
    use(small, output, exit_code=-signal.SIGKILL)
    assert (overlay / "abort").exists()
    found = boot(overlay)
    assert found["clean"]
    ends = {
        name: {n: queue["max"] for n, queue in of.items()} for name, of in found["topics"].items()
    }
    waiting = MESSAGES - len(DELIVERED) - len(DEAD)
    assert ends == {
        "SCHEDULE_TOPIC_XXXX": {"0": len(DELIVERED), "4": waiting},
        RETRIES: {"0": len(DELIVERED)}, LETTERS: {"0": len(DEAD)},
    }  # fmt: skip
    with serving(small.root, "--output", output, "--overlay"):
        pass
    assert not (overlay / "abort").exists()
    document = configjson.read(overlay / "config" / "delayOffset.json")
    assert isinstance(document, dict)
    assert document["offsetTable"] == {"1": len(DELIVERED), "5": 0}
    offsets = configjson.read(overlay / "config" / "consumerOffset.json")
    assert isinstance(offsets, dict)
    assert offsets["offsetTable"] == {f"{RETRIES}@{GROUP}": {"0": CONSUMED}}
    done = call("verify", overlay)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def check(small: SmallStore, output: Path, call: Call) -> None:
    """Serve until nothing waits, and look at everything."""
    overlay = output / "overlay"
    waited, delivered = copies(output)
    assert delivered <= waited
    with serving(small.root, "--output", output, "--overlay"):
        assert became(lambda: copies(output)[1] >= waited, SECONDS)
    assert copies(output) == (waited, waited)
    assert not (overlay / "abort").exists()
    done = call("verify", overlay)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    topics = read_topic_table(overlay)
    perms = {name: topic["perm"] for name, topic in topics.items() if isinstance(topic, dict)}
    assert {perms[name] for name in ("Other", RETRIES, LETTERS, "%RETRY%late")} == {6}
    groups = configjson.read(overlay / "config" / "subscriptionGroup.json")
    assert isinstance(groups, dict)
    assert {"quiet", "late", GROUP} <= groups["subscriptionGroupTable"].keys()
