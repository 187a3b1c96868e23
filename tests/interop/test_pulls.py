"""Pulls over the wire, held against a real broker of the same store: every byte of the answers.

What the stores' readers answer is compared in test_readers.py; here it is what travels: codes, ext
fields and records as they are in the log. Both sides serve a golden store at rest.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from reput.store import configjson
from reput.store.log.record import Record
from tests.interop.rocketmq import NEWEST, PARITY, Broker
from tests.interop.test_readers import EXPRESSIONS, queue_end
from tests.support.golden import ALL_GOLDEN_NAMES, log_records, unpack_golden
from tests.support.remoting import Answer, Client, served
from tests.support.wire import PRE_BLANK

PULL, LITE_PULL, GET_MAX_OFFSET, ROUTE = 11, 361, 30, 105
FOUND, NOT_FOUND, RETRY, MOVED, NO_TOPIC, REFUSED = 0, 19, 20, 21, 17, 29
TOLD_BY_STATUS = (FOUND, NOT_FOUND, RETRY, MOVED)
"""Codes of pulls that the store answered; the others' remarks are in words of our own."""
FEW, MANY = 400, 20_000
STORES = [(NEWEST if "-5.5" in name else PARITY, name) for name in sorted(ALL_GOLDEN_NAMES)]
"""Stores of 5.5.0 are opened by 5.5.1, of which a whole broker is published."""
FEW_STORES = [(release, name) for release, name in STORES if release == NEWEST or name == "ext"]
AT_ONCE = 100
SETTLE_SECONDS = 120.0
LOOK_SECONDS = 0.05
SCHEDULE_TOPIC, DELAY_OFFSETS = b"SCHEDULE_TOPIC_XXXX", "config/delayOffset.json"
SYSTEM = (SCHEDULE_TOPIC.decode(), "RMQ_SYS_", "rmq_sys_", "%")
"""Beginnings of topics that a broker writes to by itself, or does not let clients pull."""

Queues = Mapping[tuple[str, int], int]
"""Max offset by topic and queue id."""

pytestmark = pytest.mark.timeout(3600)


def queues_of(store: Path) -> dict[tuple[str, int], int]:
    """Return the queues to pull, without those that begin with blanks, since RocketMQ takes blanks
    for messages after a restart (formats.md §13 no. 6)."""
    found = {}
    for path in sorted(store.glob("*consumequeue/*/*")):
        topic, queue_id = path.parts[-2:]
        is_blank = min(path.iterdir()).read_bytes()[: len(PRE_BLANK)] == PRE_BLANK
        if not topic.startswith(SYSTEM) and not is_blank:
            found[topic, int(queue_id)] = queue_end(path)
    return found


def pulls(
    rng: random.Random, queues: Queues, tags: Sequence[str], count: int
) -> Iterator[tuple[int, dict[str, object]]]:
    """Return request codes and ext fields with every kind of offset, limit and filter."""
    topics = sorted({topic for topic, _ in queues})
    for _ in range(count):
        topic, queue_id = rng.choice(list(queues))
        end = queues[topic, queue_id]
        offset = rng.choice((-1, 0, end - 1, end, end + 1, 1 << 40, *(rng.randrange(end + 1),) * 6))
        match rng.randrange(40):
            case 0:
                topic = "Nowhere"
            case 1:
                queue_id = rng.choice((-1, 1 + max(q for t, q in queues if t == topic)))
            case 2:
                topic = rng.choice(topics)
                queue_id = 0
        ext: dict[str, object] = {
            "consumerGroup": "group", "topic": topic, "queueId": queue_id, "queueOffset": offset,
            "maxMsgNums": rng.choice((1, 2, 8, 31, 32, 33, 100, 1000)), "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 15000, "subVersion": 0,
        }  # fmt: skip
        if size := rng.choice((0, 101, 5000, 262144)):
            # newer clients send it, and brokers do not look at it
            ext["maxMsgBytes"] = size
        match rng.randrange(5):
            case 0:
                ext["subscription"] = "||".join(rng.choices((*tags, "None"), k=2))
            case 1:
                ext |= {"subscription": rng.choice(EXPRESSIONS), "expressionType": "SQL92"}
            case _:
                ext["subscription"] = "*"
        yield rng.choice((PULL, LITE_PULL)), ext


def asked(client: Client, requests: Sequence[tuple[int, dict[str, object]]]) -> list[Answer]:
    """Send requests at once; return the answers in the order of the requests."""
    opaques = [client.send(code, ext) for code, ext in requests]
    found: dict[int, Answer] = {}
    while len(found) < len(opaques):
        answer = client.receive()
        found[answer.opaque] = answer
    return [found[opaque] for opaque in opaques]


def words(answer: Answer) -> tuple[object, ...]:
    """Return the parts of an answer that must be equal."""
    is_status = answer.code in TOLD_BY_STATUS
    return answer.code, answer.ext, answer.body, is_status and answer.header["remark"]


def whole_ends(store: Path, queues: Queues, records: Sequence[Record]) -> list[int]:
    """Max offset of each queue once the broker has dispatched the log and delivered the delayed
    messages that are in it: all are due, and those before its offsets have been delivered."""
    found = dict(queues)
    for message in records:
        key = message.topic.decode(), message.queue_id
        if key in found:
            found[key] = max(found[key], message.queue_offset + 1)
    document = cast(dict[str, dict[str, int]], configjson.read(store / DELAY_OFFSETS) or {})
    delivered = document.get("offsetTable", {})
    for message in records:
        if message.topic != SCHEDULE_TOPIC or not message.dispatched_to_queue:
            continue
        values = message.property_map
        key = values[b"REAL_TOPIC"].decode(), int(values[b"REAL_QID"])
        if key in found and message.queue_offset >= delivered.get(str(message.queue_id + 1), 0):
            found[key] += 1
    return list(found.values())


def ends(client: Client, queues: Queues) -> list[int]:
    """Max offset of each queue."""
    questions = [
        (GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id}) for topic, queue_id in queues
    ]
    return [int(answer.ext["offset"]) for answer in asked(client, questions)]


def check(name: str, directory: Path, seed: int, count: int) -> None:
    """Serve a store by a broker and a copy of it by us, and compare the answers to the same
    requests."""
    store = unpack_golden(name, directory)
    queues = queues_of(store)
    records = log_records(store)
    tags = sorted({t.decode() for m in records if (t := m.property_map.get(b"TAGS"))})
    wanted = whole_ends(store, queues, records)
    counts = {topic: 1 + max(q for t, q in queues if t == topic) for topic, _ in queues}
    with Broker(store, counts, {"enablePropertyFilter": True}) as broker:
        with Client(int(broker.namesrv.rpartition(":")[2])) as names:
            (route,) = names.ask(ROUTE, {"topic": next(iter(counts))}).json["brokerDatas"]
        port = int(route["brokerAddrs"]["0"].rpartition(":")[2])
        with Client(port) as theirs:
            await_ends(theirs, queues, wanted)
            copy = directory / "ours"
            shutil.copytree(store, copy, ignore=rewritten)
            with served(copy) as our_port, Client(our_port) as ours:
                assert ends(ours, queues) == ends(theirs, queues)
                compare(theirs, ours, list(pulls(random.Random(seed), queues, tags, count)))


def await_ends(client: Client, queues: Queues, wanted: list[int]) -> None:
    """Wait until the broker appends nothing more."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (found := ends(client, queues)) != wanted:
        assert time.monotonic() < deadline, f"queues end at {found} instead of {wanted}"
        time.sleep(LOOK_SECONDS)


def rewritten(directory: str, names: list[str]) -> set[str]:
    """Files of a running broker's config that are not copied, since it may replace them at any
    moment and only two of them affect what is served."""
    if Path(directory).name != "config":
        return set()
    return set(names) - {"topics.json", "subscriptionGroup.json"}


def compare(
    theirs: Client, ours: Client, requests: Sequence[tuple[int, dict[str, object]]]
) -> None:
    """Compare the answers of both servers, some requests at a time."""
    codes = set()
    for start in range(0, len(requests), AT_ONCE):
        part = requests[start : start + AT_ONCE]
        answers = zip(part, asked(theirs, part), asked(ours, part), strict=True)
        for request, expected, found in answers:
            assert words(found) == words(expected), request
            codes.add(found.code)
    assert codes == {*TOLD_BY_STATUS, NO_TOPIC, REFUSED}


@pytest.mark.extended
@pytest.mark.parametrize(("release", "name"), FEW_STORES, indirect=["release"], scope="module")
@pytest.mark.usefixtures("release")
def test_pulls_are_answered_as_by_a_broker(name: str, tmp_path: Path, seed: int) -> None:
    """A few hundred pulls of stores of 5.5 and of one of 5.3.3; make test-slow takes many of
    all."""
    check(name, tmp_path, seed, FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "name"), STORES, indirect=["release"], scope="module")
@pytest.mark.usefixtures("release")
def test_many_pulls_are_answered_as_by_a_broker(name: str, tmp_path: Path, seed: int) -> None:
    """Twenty thousand of each golden store."""
    check(name, tmp_path, seed, MANY)
