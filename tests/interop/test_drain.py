"""A drain brings each message of an overlay into a real broker once, however often it is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import zlib
from collections import Counter
from pathlib import Path

import pytest

from reput.store.fsops import FAILPOINTS_VARIABLE
from reput.store.log.record import Record
from tests.interop.clients import Consumer
from tests.interop.rocketmq import ONE_RELEASE, Broker, mqadmin
from tests.support.cli import REPUT, ROOT, json_object, reput
from tests.support.golden import log_records
from tests.support.left_overlay import DEAD, GROUP, RETRIES, LeftOverlay, left_overlay

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
KILLS = 3
TOPICS = {"waiting": SCHEDULE, "delivered": RETRIES, "dead": DEAD}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def left(tmp_path: Path) -> LeftOverlay:
    return left_overlay(tmp_path)


def stored(store: Path) -> dict[str, list[Record]]:
    """The records of a broker at rest, by the topics of ``TOPICS``."""
    records = log_records(store)
    return {
        kind: [one for one in records if one.topic == topic.encode()]
        for kind, topic in TOPICS.items()
    }


def killed_drain(left: LeftOverlay, namesrv: str, point: str) -> int:
    """Drain with a fault; the exit code."""
    words = ["overlay", "drain", str(left.output), "--namesrv", namesrv, "--apply"]
    environment = {**os.environ, FAILPOINTS_VARIABLE: point}
    done = subprocess.run(
        [*REPUT, *words], env=environment, cwd=ROOT, capture_output=True, check=False, timeout=180
    )
    return done.returncode


def check(left: LeftOverlay, store: Path) -> None:
    """Every message of the overlay is in the broker once, as the broker would have it itself."""
    found = stored(store)
    for kind in TOPICS:
        expected = Counter(getattr(left, kind))
        assert Counter((one.reconsume_times, one.body) for one in found[kind]) == expected, kind
    for one in found["waiting"]:
        assert one.property_map[b"DELAY"] == b"17", "an hour was left, and level 17 is an hour"
        assert one.property_map[b"REAL_TOPIC"] == RETRIES.encode()
    ours = {(one.topic, one.reconsume_times, one.body): one for one in left.records}
    for kind in ("waiting", "delivered", "dead"):
        for one in found[kind]:
            origin = ours[one.topic, one.reconsume_times, one.body]
            assert one.born_timestamp == origin.born_timestamp
            assert one.flag == origin.flag
            assert b"TRAN_MSG" not in one.property_map
            for name in (b"UNIQ_KEY", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"TAGS", b"PGROUP"):
                assert one.property_map.get(name) == origin.property_map.get(name)
    assert {one.queue_id for one in found["dead"]} == {0}


@pytest.mark.extended
@ONE_RELEASE
def test_each_message_goes_into_a_broker_once(
    release: str, left: LeftOverlay, tmp_path: Path
) -> None:
    """A second drain sends nothing. A consumer of the group gets what was delivered, and the topic
    of dead letters has one queue."""
    before = left.records
    with Broker(tmp_path / "target", {"Topic": 1}) as broker:
        first = reput("overlay", "drain", left.output, "--namesrv", broker.namesrv, "--json")
        plan = json_object(first)
        assert (plan["applied"], plan["sent"]) == (
            False, {kind: len(getattr(left, kind)) for kind in TOPICS},
        )  # fmt: skip
        words = ("overlay", "drain", left.output, "--namesrv", broker.namesrv, "--apply", "--json")
        done = json_object(reput(*words))
        assert (done["sent"], done["left_out"]) == (plan["sent"], {})
        done = json_object(reput(*words))
        assert (done["sent"], done["sent_before"]) == ({}, sum(plan["sent"].values()))
        with Consumer(broker.namesrv, "concurrent", "Topic", GROUP) as consumer:
            taken = consumer.take(len(left.delivered))
            assert consumer.stop() == []
        expected = Counter((attempts, zlib.crc32(body)) for attempts, body in left.delivered)
        assert Counter((one.reconsume_times, one.body_crc) for one in taken) == expected
        route = mqadmin(broker.namesrv, "topicRoute", "-t", DEAD)
        assert '"writeQueueNums":1' in route.replace(" ", ""), release
    check(left, tmp_path / "target")
    assert left.records == before, "the overlay stays as it is"


@pytest.mark.extended
def test_kills_lose_nothing_and_double_nothing(
    left: LeftOverlay, tmp_path: Path, seed: int
) -> None:
    """The process ends between a broker's answer and the note of it, again and again."""
    rng = random.Random(seed)
    with Broker(tmp_path / "target") as broker:
        # the third write notes the first answer
        assert killed_drain(left, broker.namesrv, "pwrite:3=kill") == -signal.SIGKILL
        for _ in range(KILLS):
            point = f"pwrite:{rng.randrange(1, 8)}={rng.choice(('kill', 'ENOSPC'))}"
            assert killed_drain(left, broker.namesrv, point) in (-signal.SIGKILL, 1, 0)
        assert killed_drain(left, broker.namesrv, "") == 0
    check(left, tmp_path / "target")
