"""mqadmin of both releases prints of a store that ``reput serve`` serves what it prints of the
broker that wrote it.

The server takes the broker's place at the broker's own address, because a message's id names it.
What is compared is the whole output, but for what differs between two runs against one broker:
clients' ids and ports, the time of day, and rates.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from reput.store import configjson
from reput.store.files import CONSUMER_OFFSET_FILE
from reput.store.log import properties
from reput.store.log.record import Record
from tests.interop.clients import WAIT_SECONDS, Consumer, serving
from tests.interop.rocketmq import (
    OLD_CLIENT,
    Broker,
    HarnessError,
    commit,
    drain,
    mqadmin,
    require_maven,
    send,
)
from tests.support.golden import log_records
from tests.support.remoting import Client

TOPIC, IDLE = "Trade", "Idle"
QUEUES, MESSAGES = 4, 200
COMMITTED = {"front": {0: 7, 1: 20, 2: 1}, "other": {1: 15}, "third": {0: 1}}
"""Messages that each group consumes, by queue."""
TOOLS = "TOOLS_CONSUMER"
CONSUME_TIME_SPAN, CORRECTION_OFFSET = 303, 308
TOPICS_BY_CONSUMER, SUBSCRIPTION_BY_CONSUMER, TO_CLIENT = 343, 345, 220
CLIENTS = {"5.3.3": "", "4.9.7": OLD_CLIENT}
CLIENT_ID = re.compile(r"\d+\.\d+\.\d+\.\d+@\S+")

pytestmark = pytest.mark.timeout(900)


@dataclass
class Asked:
    """The output of each command, by release and command, and answers to single requests."""

    broker: dict[tuple[str, str], str] = field(default_factory=dict)
    reput: dict[tuple[str, str], str] = field(default_factory=dict)
    broker_answers: list[object] = field(default_factory=list)
    reput_answers: list[object] = field(default_factory=list)


def commands(
    release: str, records: list[Record], address: str, member: str
) -> list[tuple[str, ...]]:
    """The commands in their order; the last ones move groups."""
    keyed = next(
        r for r in records if r.topic == TOPIC.encode() and properties.KEYS in r.property_map
    )
    key = keyed.property_map[properties.KEYS].decode().split()[0]
    unique = keyed.property_map[properties.UNIQ_KEY].decode()
    times = sorted(record.store_timestamp for record in records)
    middle = str(times[len(times) // 2])
    place = ("-t", TOPIC)
    by_id = (*(place if release == "5.3.3" else ()), "-i", message_id(keyed))
    return [
        ("topicList",),
        ("topicRoute", *place),
        ("topicStatus", *place),
        ("clusterList",),
        ("consumerProgress",),
        ("consumerProgress", "-g", "front"),
        ("consumerConnection", "-g", "online"),
        ("consumerStatus", "-g", "online", "-i", member),
        ("queryMsgByKey", *place, "-k", key),
        ("queryMsgByUniqueKey", *place, "-i", unique),
        ("queryMsgById", *by_id),
        ("queryMsgById", *by_id, "-g", "online", "-d", member),
        ("queryMsgByOffset", *place, "-b", "interop", "-i", "1", "-o", "3"),
        ("queryCq", *place, "-q", "1", "-i", "3", "-c", "5", "-b", address),
        ("queryCq", *place, "-q", "1", "-i", "3", "-c", "1", "-b", address, "-g", "online"),
        ("brokerConsumeStats", "-b", address),
        ("resetOffsetByTime", "-g", "front", *place, "-s", middle),
        ("consumerProgress", "-g", "front"),
        ("skipAccumulatedMessage", "-g", "other", *place),
        ("cloneGroupOffset", "-s", "other", "-d", "third", *place),
        ("consumerProgress", "-g", "third"),
    ]


def message_id(record: Record) -> str:
    """Return the message's id as its broker made it, of address and physical offset."""
    host, port = record.store_host
    address = bytes(map(int, host.split("."))) + port.to_bytes(4, "big")
    return (address + record.physical_offset.to_bytes(8, "big")).hex().upper()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Ask a broker, and then a server of the same store at the same address."""
    require_maven()
    store, found = tmp_path_factory.mktemp("asked"), Asked()
    with Broker(store, {TOPIC: QUEUES, IDLE: 1}, {"brokerName": "interop"}) as broker:
        sent = send(broker.namesrv, TOPIC, MESSAGES, 15)
        drain(broker.namesrv, TOPIC, at_least=sent["visible"])
        records = log_records(store)
        host, port = records[0].store_host
        address = f"{host}:{port}"
        found.broker = printed(broker.namesrv, records, address)
        found.broker_answers = answers(port)
    (store / CONSUMER_OFFSET_FILE).unlink()
    (store / f"{CONSUMER_OFFSET_FILE}.bak").unlink(missing_ok=True)
    with serving(store, listen=address) as server:
        found.reput = printed(server.namesrv, records, address)
        found.reput_answers = answers(port)
    return found


def printed(namesrv: str, records: list[Record], address: str) -> dict[tuple[str, str], str]:
    """The output of the commands, after groups have committed and while one has a member."""
    for group, counts in COMMITTED.items():
        commit(namesrv, TOPIC, group, counts)
    found = {}
    with Consumer(namesrv, "concurrent", IDLE, "online"):
        for release, client in CLIENTS.items():
            member = member_with_queue(namesrv, client)
            for number, words in enumerate(commands(release, records, address, member)):
                found[release, f"{number} {words[0]}"] = answered(namesrv, client, words)
    return found


def answered(namesrv: str, client: str, words: Sequence[str]) -> str:
    """The output of a command; mqadmin says that there is no message, too, if it waited in vain."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        output = mqadmin(namesrv, *words, client=client)
        if "but no message" not in output or time.monotonic() > deadline:
            return output


def answers(port: int) -> list[object]:
    """Answers to requests for which mqadmin has no command."""
    questions: list[tuple[int, dict[str, object]]] = [
        (CONSUME_TIME_SPAN, {"topic": TOPIC, "group": "front"}),
        (CORRECTION_OFFSET, {"topic": TOPIC}),
        (CORRECTION_OFFSET, {"topic": TOPIC, "compareGroup": "third"}),
        (TOPICS_BY_CONSUMER, {"group": "front"}),
        (SUBSCRIPTION_BY_CONSUMER, {"group": "nobody", "topic": TOPIC}),
        (TO_CLIENT, {"topic": TOPIC, "group": "front", "timestamp": 0, "isForce": True}),
    ]
    found: list[object] = []
    with Client(port) as client:
        for code, fields in questions:
            answer = client.ask(code, fields)
            body = configjson.parse(answer.body.decode()) if answer.body else None
            found.append((code, answer.code, body))
    return found


def member_with_queue(namesrv: str, client: str) -> str:
    """Wait until the member has its queue, and return its id."""
    deadline = time.monotonic() + WAIT_SECONDS
    shown = ""
    while time.monotonic() < deadline:
        shown = mqadmin(namesrv, "consumerConnection", "-g", "online", client=client)
        if member := CLIENT_ID.search(shown):
            shown = mqadmin(
                namesrv, "consumerStatus", "-g", "online", "-i", member[0], client=client
            )
            if re.search(rf"^{IDLE} +\S+ +0 +ProcessQueueInfo", shown, re.M):
                return member[0]
    raise HarnessError(f"the member has no queue: {shown}")


def comparable(answer: object) -> object:
    """An answer without the time of day, the broker's address, and texts that clients make of times
    by themselves."""
    if isinstance(answer, dict):
        left_out = {"delayTime", "brokerAddr", *(key for key in answer if key.endswith("Str"))}
        return {key: comparable(value) for key, value in answer.items() if key not in left_out}
    return list(map(comparable, answer)) if isinstance(answer, list | tuple) else answer


def normalised(command: str, output: str) -> list[list[str]]:
    """The words of each line that must be the same."""
    text = CLIENT_ID.sub("CLIENT", output)
    lines = [line.split() for line in text.splitlines()]
    match command.split()[1]:
        case "topicList":
            # the tools' own group comes to exist while they run
            return sorted(words for words in lines if words != [f"%RETRY%{TOOLS}"])
        case "topicRoute":
            # nothing can be sent to a store
            return [line.split() for line in text.replace('"perm":6', '"perm":4').splitlines()]
        case "clusterList":
            # rates, ages of messages and space of disks
            numbers = re.compile(r"\d+\.\d+(?!\.|\d)")
            rows = [line for line in text.splitlines() if line.startswith(("#", "DefaultCluster"))]
            return [numbers.sub("N", row).split() for row in rows]
        case "consumerProgress":
            if lines[0][0] == "#Group":
                return sorted([*words[:-2], words[-1]] for words in lines if words[0] != TOOLS)
            return [words for words in lines if words[:2] != ["Consume", "TPS:"]]
        case "consumerConnection":
            return [words[:1] + words[2:] if words[:1] == ["CLIENT"] else words for words in lines]
        case "consumerStatus":
            # what the member subscribes to, and its queues; a broker tells of retries later
            kept = text[text.index("#Consumer Subscription#") : text.index("#Consumer RT&TPS#")]
            rows = [line.split()[:3] for line in kept.splitlines()]
            return [row for row in rows if row[:1] != ["%RETRY%online"]]
        case "brokerConsumeStats":
            # the broker's own group of transactions goes on by itself
            return sorted(words for words in lines if "CID_RMQ_SYS_TRANS" not in words)
        case "resetOffsetByTime" | "skipAccumulatedMessage":
            return sorted(lines)
        case "queryMsgById" if "ConsumeMessageDirectlyResult" in text:
            return [line.split() for line in re.sub(r"spentTimeMills=\d+", "", text).splitlines()]
        case name if name.startswith("queryMsg"):
            tracks = sorted(re.findall(r"MessageTrack \[.*?\]\]?", text))
            kept = re.sub(r"MessageTrack \[.*", "", text)
            return [*map(str.split, kept.splitlines()), *map(str.split, tracks)]
    return lines


@pytest.mark.extended
@pytest.mark.parametrize("release", CLIENTS)
def test_mqadmin_prints_the_same(asked: Asked, release: str) -> None:
    """Every command is tried, and none fails except where mqadmin fails at a broker too."""

    compared = 0
    for (of_release, command), output in asked.broker.items():
        if of_release != release:
            continue
        ours = asked.reput[release, command]
        assert normalised(command, ours) == normalised(command, output), command
        if not command.endswith("clusterList"):
            assert "Exception: " not in ours, ours
        compared += 1
    assert compared == 21


@pytest.mark.extended
def test_requests_without_a_command(asked: Asked) -> None:
    """Times, least offsets, and topics and subscriptions of groups are the same."""
    assert len(asked.broker_answers) == 6
    for ours, theirs in zip(asked.reput_answers, asked.broker_answers, strict=True):
        assert comparable(ours) == comparable(theirs)
