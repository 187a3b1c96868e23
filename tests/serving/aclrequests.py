"""The requests of the matrix in ``tests/golden/acl``, and the users who make them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reput.serving.acl.signature import ACCESS_KEY, SIGNATURE, sign
from reput.serving.frame import Frame

RULES = """\
accounts:
- {accessKey: admin0001, secretKey: adminsecret, admin: true}
- accessKey: pubuser01
  secretKey: pubsecret01
  topicPerms: [Orders=PUB]
- accessKey: subuser01
  secretKey: subsecret01
  topicPerms: [Orders=SUB]
  groupPerms: [gsub=SUB]
- {accessKey: nouser001, secretKey: nosecret001}
- {accessKey: whiteuser, secretKey: whitesecret, whiteRemoteAddress: 192.0.2.9}
"""
"""The users of the matrix."""
POLICIES = """\
users:
- {username: admin0001, password: adminsecret, userType: Super}
- {username: pubuser01, password: pubsecret01}
- {username: subuser01, password: subsecret01}
- {username: nouser001, password: nosecret001}
- {username: whiteuser, password: whitesecret}
acls:
- subject: User:pubuser01
  policies:
  - entries: [{resource: "Topic:Orders", actions: [Pub], decision: Allow}]
- subject: User:subuser01
  policies:
  - entries:
    - {resource: "Topic:Orders", actions: [Sub], decision: Allow}
    - {resource: "Group:gsub", actions: [Sub], decision: Allow}
"""
"""The same for ACL 2.0, which has no white addresses."""
CREDENTIALS = {
    "admin": ("admin0001", "adminsecret"),
    "pub": ("pubuser01", "pubsecret01"),
    "sub": ("subuser01", "subsecret01"),
    "none": ("nouser001", "nosecret001"),
    "white": ("whiteuser", "another"),
    "badsig": ("subuser01", "another"),
    "unknown": ("stranger1", "another"),
}
"""(access key, what it signs with) of each user but the one that does not sign."""
HOSTS = {"white": "192.0.2.9"}
HOST = "192.0.2.1"
ORDERS, SECRET, HALF = 0, 1000, 2000
TOPICS: Mapping[int, str] = {ORDERS: "Orders", SECRET: "Secret", HALF: "Orders"}
"""Topics of the log's records; at HALF is a half message."""


def beat(group: str, topic: str) -> dict[str, Any]:
    subscriptions = [{"topic": name} for name in (topic, f"%RETRY%{group}")]
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions}
    return {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}


def lock(group: str) -> dict[str, Any]:
    return {"consumerGroup": group, "clientId": "c", "mqSet": [{"topic": "Orders", "queueId": 0}]}


def place(group: str, topic: str) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": "0"}


def ended(**fields: str) -> dict[str, str]:
    return {"commitLogOffset": str(HALF), "producerGroup": "pg", **fields}


INNER, SYSTEM = "CLIENT_INNER_PRODUCER", "RMQ_SYS_TRANS_HALF_TOPIC"
Request = tuple[dict[str, str], object]
"""Ext fields, and the body."""
REQUESTS: dict[str, Request] = {
    "heartbeat, consumer gsub of Orders": ({}, beat("gsub", "Orders")),
    "heartbeat, consumer gsub of Secret": ({}, beat("gsub", "Secret")),
    "heartbeat, consumer gother of Orders": ({}, beat("gother", "Orders")),
    "heartbeat, producer only": ({}, {"clientID": "c", "producerDataSet": [{"groupName": "pg"}]}),
    "check client config": ({}, {"group": "gsub", "subscriptionData": {"topic": "Orders"}}),
    "members of gsub": ({"consumerGroup": "gsub"}, b""),
    **{
        f"{verb} {group} {topic}": (place(group, topic), b"")
        for verb, group, topic in (
            ("query offset", "gsub", "Orders"), ("query offset", "gsub", "Secret"),
            ("commit", "gsub", "Orders"), ("commit", "gother", "Orders"),
            ("pull", "gsub", "Orders"), ("pull", "gsub", "Secret"), ("pull", "gother", "Orders"),
            ("pull", "gsub", "%RETRY%gsub"), ("pull", "gsub", "%RETRY%gother"),
            ("pull", "gsub", "%DLQ%gsub"), ("lite pull", "gsub", "Orders"),
            ("lite pull", "gsub", "Secret"), ("pop", "gsub", "Orders"),
        )
    },
    **{f"{verb} {group} Orders": ({}, lock(group)) for verb in ("lock", "unlock")
       for group in ("gsub", "gother")},
    **{
        f"{what} {topic}": ({"topic": topic, "queueId": "0"}, b"")
        for what in ("search by time", "max offset", "min offset", "earliest time", "recall",
                     "query by key", "topic stats", "topic config", "who consumes")
        for topic in ("Orders", "Secret")
    },
    "send back, gsub, a record of Orders": ({"group": "gsub", "offset": str(ORDERS)}, b""),
    "send back, gother": ({"group": "gother", "offset": str(ORDERS)}, b""),
    "send back, gsub, a record of Secret": ({"group": "gsub", "offset": str(SECRET)}, b""),
    **{
        f"send {batch}{topic}": ({"topic": topic, "b": topic, "a": "pg"}, b"body")
        for batch in ("", "batch ") for topic in ("Orders", "Secret", "%DLQ%gsub")
    },
    "send %RETRY%gsub as group gsub": ({"a": "gsub", "b": "%RETRY%gsub"}, b"body"),
    f"send %RETRY%gsub as {INNER} (what clients do)": ({"a": INNER, "b": "%RETRY%gsub"}, b"body"),
    "send %RETRY%gother as group gsub": ({"a": "gsub", "b": "%RETRY%gother"}, b"body"),
    "send rmq_sys trace topic": ({"a": "pg", "b": "RMQ_SYS_TRACE_TOPIC"}, b"body"),
    "end transaction, topic Orders": (ended(topic="Orders"), b""),
    f"end transaction, answer to a check (topic {SYSTEM})": (ended(topic=SYSTEM), b""),
    "end transaction, no topic field": (ended(), b""),
    "view by id, a record of Secret, topic field Orders": (
        {"offset": str(SECRET), "topic": "Orders"}, b""),
    "view by id, a record of Secret, no topic field": ({"offset": str(SECRET)}, b""),
    "consume stats gsub": ({"consumerGroup": "gsub"}, b""),
    "connections gsub": ({"consumerGroup": "gsub"}, b""),
    "running info": ({"consumerGroup": "gsub", "clientId": "c"}, b""),
    "reset offset gsub Orders": ({"group": "gsub", "topic": "Orders", "timestamp": "0"}, b""),
    "unregister consumer gsub": ({"consumerGroup": "gsub", "clientID": "c"}, b""),
    "unregister producer": ({"producerGroup": "pg", "clientID": "c"}, b""),
    **{
        name: ({}, b"")
        for name in ("broker runtime info", "all topic configs", "all consumer offsets",
                     "create topic", "update group", "delete topic", "update broker config",
                     "get broker config")
    },
}  # fmt: skip
"""By their names in the matrix."""


def signed(code: int, ext: Mapping[str, str], body: object, key: str, secret: str) -> Frame:
    """A request as a client with this key signs it."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Frame(code, ext={**ext, ACCESS_KEY: key}, body=payload)
    request.ext[SIGNATURE] = sign(request, secret)
    return request


def asked(code: int, name: str, user: str) -> Frame:
    """A request of the matrix, made by one of its users."""
    ext, body = REQUESTS[name]
    if user in CREDENTIALS:
        return signed(code, ext, body, *CREDENTIALS[user])
    request = signed(code, ext, body, "", "")
    return Frame(code, ext=dict(ext), body=request.body)
