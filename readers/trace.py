"""The events of a message's trace, which RocketMQ's clients send to a topic of its own.

A client with tracing on sends messages to RMQ_SYS_TRACE_TOPIC (or a topic that it names). Each body
holds events that end with 0x02, and an event's fields are separated by 0x01. The ids of the
messages that a body tells of are its KEYS, by which the index finds it.
Source: RocketMQ 5.3.3 client ``TraceDataEncoder``, ``TraceConstants``; the order of TYPES is that
of ``MessageType``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from reput.readers.messages import Message
from reput.store.errors import MessageBodyError

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_SENT = (
    "kind", "time", "region_id", "group", "topic", "message_id", "tags", "keys", "store_host",
)  # fmt: skip
_LAYOUTS: dict[str, tuple[str, ...]] = {
    "Pub": (
        *_SENT, "body_length", "cost_ms", "message_type", "offset_message_id", "success",
        "client_host",
    ),
    "SubBefore": (
        "kind", "time", "region_id", "group", "request_id", "message_id", "retry_times", "keys",
        "client_host",
    ),
    "SubAfter": (
        "kind", "request_id", "message_id", "cost_ms", "success", "keys", "context_code", "time",
        "group",
    ),
    "EndTransaction": (
        *_SENT, "message_type", "transaction_id", "transaction_state", "from_transaction_check",
    ),
    "Recall": ("kind", "time", "region_id", "group", "topic", "message_id", "success"),
}  # fmt: skip
"""Kind of an event -> the names of its fields; older clients leave out the last ones."""
_OLDEST_PUB = tuple(name for name in _LAYOUTS["Pub"][:-1] if name != "offset_message_id")
_NUMBERS = ("time", "body_length", "cost_ms", "retry_times", "context_code")
_FLAGS = ("success", "from_transaction_check")
TYPES = ("normal", "half", "committed", "delayed", "ordered")
"""``MessageType``: Normal_Msg, Trans_Msg_Half, Trans_msg_Commit, Delay_Msg, Order_Msg."""
_TYPES = {str(number): name for number, name in enumerate(TYPES)}
_NUMBER = re.compile(r"-?[0-9]{1,19}")
"""A long; whoever may send a message may write a trace, and anything into it."""


def decode(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events of one body: field name -> value, times and costs in ms.

    An event of an unknown kind has its ``kind`` and the rest of its text as ``fields``.
    """
    for event in filter(None, text.split("\x02")):
        parts = event.split("\x01")
        layout = _LAYOUTS.get(parts[0])
        if layout is None:
            yield {"kind": parts[0], "fields": parts[1:]}
            continue
        if parts[0] == "Pub" and len(parts) == len(_OLDEST_PUB):
            layout = _OLDEST_PUB
        yield {name: _value(name, part) for name, part in zip(layout, parts, strict=False)}


def _value(name: str, text: str) -> object:
    if name in _NUMBERS:
        return int(text) if _NUMBER.fullmatch(text) else None
    if name in _FLAGS:
        return text == "true"
    if name == "message_type":
        return _TYPES.get(text, text)
    # a Java client writes what it does not know as its null
    return None if text in ("", "null") else text


def events_of(bodies: Iterable[Message], message_id: str) -> list[dict[str, Any]]:
    """Return the events of a message, by its id or a key, in the order of time.

    ``bodies`` are the messages of traces that have it as a key. The end of a consumption has no
    time in old versions; it stands after its begin.
    """
    events: list[dict[str, Any]] = []
    for message in bodies:
        events += (event for event in decode(_text(message)) if _tells_of(event, message_id))
    begun = {event["request_id"]: event["time"] for event in events if event["kind"] == "SubBefore"}

    def order(event: dict[str, Any]) -> tuple[int, bool]:
        is_end = event["kind"] == "SubAfter"
        time = event.get("time") or (begun.get(event["request_id"]) if is_end else None) or 0
        return time, is_end

    return sorted(events, key=order)


def _text(message: Message) -> str:
    try:
        body = message.body()
    except MessageBodyError:
        body = message.record.body
    return body.decode("utf-8", "replace")


def _tells_of(event: dict[str, Any], message_id: str) -> bool:
    ids = (event.get("message_id"), event.get("offset_message_id"))
    return message_id in ids or message_id in (event.get("keys") or "").split()
