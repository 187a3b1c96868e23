"""Heartbeats and locks in every spelling that fastjson takes, sent to a broker and to a server.

Recorded ones of real clients, and made ones: values of any type, names in any case and with or
without quotes. What is compared is whether each is refused, and what the group then is: members,
kind, subscriptions. Not compared: times that are put in place of a version which is absent, and
numbers beyond a long, of which fastjson cuts off bits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.store import configjson
from tests.interop.clients import serving
from tests.interop.rocketmq import Broker, require_maven
from tests.serving.test_heartbeats import CONNECTIONS, HEART_BEAT, RECORDED, frames, sent
from tests.support.remoting import Client

LOCK, ROUTE = 41, 105
COUNT = 400
VERSION = 1795728959227
"""ms; no version beyond it is sent in what is made here."""
RAW = ("", '""', '"null"', '"NULL"', '"x"', "true", "false", "[]", "[1]", "{}")
"""Values, spelled out; an empty one means that the field is absent."""
NUMBERS = (
    "null",
    "0",
    "1",
    "7",
    "-3",
    "1.7",
    "-0.9",
    '"17"',
    '"+17"',
    '"0017"',
    '"1,700"',
    '" 17 "',
)
FLAGS = (
    "null",
    "1",
    "2",
    "1.0",
    '"true"',
    '"TRUE"',
    '"Y"',
    '"y"',
    '"T"',
    '"t"',
    '"N"',
    '"n"',
    '"F"',
)
ORDINALS = ("null", "0", "1", "2", "3", "-1", "9", "1.0", '"1"')
MODELS = ('"CLUSTERING"', '"Broadcasting"', '"clustering"', '"BAD"')
TYPES = ('"CONSUME_PASSIVELY"', '"consume_actively"', '"CONSUME_POP"', '"BAD"')
FIRSTS = ('"CONSUME_FROM_FIRST_OFFSET"', '"consume_from_timestamp"', '"BAD"')
TEXTS = ('"a || b"', "'a'", "'it\\'s \"a\"'", "7", "true", '{"a":1}', '"*"')
SETS = ("[]", "null", '["a",1,]', '"a"', "{}", "[true]")


def members(rng: random.Random, fields: dict[str, str]) -> str:
    """An object of these fields, each name in one of its spellings, in any order."""
    spelled = []
    for name, value in rng.sample(sorted(fields.items()), len(fields)):
        if value:
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
            said = rng.choice((name, name, name, name.upper(), snake))
            quote = rng.choice(('"', "'", ""))
            spelled.append(f"{quote}{said}{quote}:{value}")
    return "{" + ",".join(spelled) + rng.choice(("", "", ",")) + "}"


def any_value(rng: random.Random, usual: str, *values: str) -> str:
    """The usual value mostly: of many odd ones in one body some is refused."""
    return rng.choice((usual,) * 4 + (rng.choice((*values, *RAW)),))


def any_heartbeat(rng: random.Random, group: str) -> str:
    subscription = members(rng, {
        "topic": '"Orders"',
        "subString": rng.choice(TEXTS),
        "expressionType": any_value(rng, '"TAG"', ""),
        "subVersion": any_value(rng, f'"{VERSION}"', *NUMBERS),
        "classFilterMode": any_value(rng, "false", *FLAGS),
        "tagsSet": any_value(rng, "[]", *SETS),
        "codeSet": any_value(rng, "[]", *SETS),
    })  # fmt: skip
    consumer = members(rng, {
        "groupName": f'"{group}"',
        "consumeType": any_value(rng, "1", *TYPES, *ORDINALS),
        "messageModel": any_value(rng, "1", *MODELS, *ORDINALS),
        "consumeFromWhere": any_value(rng, "0", *FIRSTS, *ORDINALS),
        "unitMode": rng.choice(("", "false")),
        "subscriptionDataSet": any_value(rng, f"[{subscription}]", f"[{subscription},]"),
    })  # fmt: skip
    return members(rng, {
        "clientID": rng.choice(('"c"', "7", "'c'")),
        "consumerDataSet": any_value(rng, f"[{consumer}]", f"[{consumer},]"),
        "withoutSub": rng.choice(("", "false", "0", '"F"', '"null"', '"n"')),
    })  # fmt: skip


def any_lock(rng: random.Random, group: str) -> str:
    queue = members(rng, {
        "topic": '"Orders"', "brokerName": any_value(rng, '"b"', *TEXTS),
        "queueId": any_value(rng, '"1"', *NUMBERS),
    })  # fmt: skip
    fields = {"consumerGroup": f'"{group}"', "clientId": rng.choice(('"c"', "7"))}
    return members(rng, {**fields, "mqSet": f"[{queue}]"})


def answers(namesrv: str, bodies: list[tuple[int, str, str]]) -> Iterator[tuple[str, object]]:
    """Each recording and each body, with the server's answer and the group as it is then."""
    with Client(int(namesrv.rpartition(":")[2])) as client:
        route: Any = configjson.parse(client.ask(ROUTE, {"topic": "Orders"}).body.decode())
    port = int(route["brokerDatas"][0]["brokerAddrs"]["0"].rpartition(":")[2])
    for name, (*_, group, _, _, _, _) in RECORDED.items():
        with Client(port) as client:
            codes = [sent(client, frame).code for frame in frames(name)]
            yield name, (codes, shown(client, str(group)))
    for code, group, body in bodies:
        with Client(port) as client:
            answer = client.ask(code, {}, body.encode())
            if code == LOCK:
                locked = answer.json["lockOKMQSet"] if answer.code == 0 else []
                yield body, (answer.code, [{**queue, "brokerName": 0} for queue in locked])
            else:
                yield body, (answer.code, shown(client, group))


def shown(client: Client, group: str) -> object:
    """GET_CONSUMER_CONNECTION_LIST, without what is absent and what differs between two runs."""
    answer = client.ask(CONNECTIONS, {"consumerGroup": group})
    if answer.code != 0:
        return answer.code
    found: dict[str, Any] = answer.json
    for connection in found["connectionSet"]:
        del connection["clientAddr"]
    for data in found["subscriptionTable"].values():
        if group.startswith("made") and data["subVersion"] > VERSION:
            del data["subVersion"]
        data["expressionType"] = data.get("expressionType") or "TAG"
        for name in ("tagsSet", "codeSet"):
            data[name] = sorted(map(str, data.get(name) or []))
    return {key: value for key, value in found.items() if value not in ("", None)}


@pytest.mark.extended
def test_heartbeats_are_read_as_a_broker_reads_them(tmp_path: Path, seed: int) -> None:
    """Each is refused or kept, and the group is then what it is at a broker."""
    require_maven()
    rng = random.Random(seed)
    bodies = []
    for number in range(COUNT):
        group = f"made_{number}"
        if number % 4:
            bodies.append((HEART_BEAT, group, any_heartbeat(rng, group)))
        else:
            bodies.append((LOCK, group, any_lock(rng, group)))
    with Broker(tmp_path, {"Orders": 4}) as broker:
        theirs = list(answers(broker.namesrv, bodies))
    with serving(tmp_path) as server:
        ours = list(answers(server.namesrv, bodies))
    for one, other in zip(ours, theirs, strict=True):
        assert one == other
