"""Heartbeats and locks as clients in several languages sent them: tests/golden/heartbeats."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest

from tests.support.golden import GOLDEN_DIRECTORY
from tests.support.remoting import Answer, Client

HEART_BEAT, CONNECTIONS = 34, 203
FIRST, LAST = "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET"
RECORDED = {
    "java-5.3.3": (
        "JAVA", 479, "java_group", "CLUSTERING", FIRST,
        {"Orders": 1795728920595, "%RETRY%java_group": 1795728919497}, [0, 1, 2, 3],
    ),
    "java-4.9.7": (
        "JAVA", 407, "java497_group", "CLUSTERING", FIRST,
        {"Orders": 1795728925495, "%RETRY%java497_group": 1795728924811}, [0, 1, 2, 3],
    ),
    "go-2.1.2": (
        "GO", 317, "go_group", "CLUSTERING", FIRST,
        {"Orders": 1795728297377383279, "%RETRY%go_group": 1795728297348836469}, [],
    ),
    "cpp-0.4.4": (
        "CPP", 63, "cpp_group", "CLUSTERING", LAST,
        {"Orders": 1795728959227, "%RETRY%cpp_group": 1795728959227}, [],
    ),
    "cpp-0.4.4-orderly": (
        "CPP", 63, "cpp_orderly", "CLUSTERING", LAST,
        {"Orders": 1795728967355, "%RETRY%cpp_orderly": 1795728967355}, [0, 1, 2, 3],
    ),
    "cpp-0.4.4-broadcasting": (
        "CPP", 63, "cpp_broadcasting", "BROADCASTING", LAST, {"Orders": 1795728975596}, [],
    ),
    "node-3.12.0": (
        "JAVA", 121, "node_group", "CLUSTERING", FIRST,
        {"Orders": 1795729031447, "%RETRY%node_group": 1795729031501}, [],
    ),
}  # fmt: skip
"""By recording: the client's language and version, its group, model and first position, its topics
with the versions of their subscriptions, and the queues that it locks."""


def frames(name: str) -> Iterator[bytes]:
    """Each frame of a recording."""
    data = (GOLDEN_DIRECTORY / "heartbeats" / f"{name}.bin").read_bytes()
    while data:
        end = 4 + struct.unpack_from(">I", data)[0]
        yield data[:end]
        data = data[end:]


def sent(client: Client, frame: bytes) -> Answer:
    """Send a recorded frame and wait for its answer."""
    opaque = json.loads(frame[8 : 8 + struct.unpack_from(">I", frame, 4)[0]])["opaque"]
    client.socket.sendall(frame)
    while True:
        found = client.receive()
        if found.header["flag"] & 1 and found.opaque == opaque:
            return found


@pytest.mark.parametrize("name", RECORDED)
def test_a_clients_group_is_known_as_it_says(port: int, name: str) -> None:
    """Its kind, its subscriptions and its locks, however the client writes numbers and names."""
    language, version, group, model, first, topics, queue_ids = RECORDED[name]
    with Client(port) as client:
        answers = [sent(client, frame) for frame in frames(name)]
        assert {answer.code for answer in answers} == {0}
        found = client.ask(CONNECTIONS, {"consumerGroup": group}).json
        locked = [q for answer in answers if answer.body for q in answer.json["lockOKMQSet"]]
    assert sorted({queue["queueId"] for queue in locked}) == queue_ids
    assert {(queue["topic"], queue["brokerName"]) for queue in locked} <= {("Orders", "broker")}
    (member,) = found["connectionSet"]
    assert (member["language"], member["version"]) == (language, version)
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    assert (found["messageModel"], found["consumeFromWhere"]) == (model, first)
    assert found["subscriptionTable"] == {
        topic: {
            "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*",
            "subVersion": version, "tagsSet": [], "topic": topic,
        }
        for topic, version in topics.items()
    }  # fmt: skip
