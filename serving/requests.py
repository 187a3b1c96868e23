"""Values that requests carry: ext fields as numbers and names, bodies as JSON.

Every handler takes them from here, so that each bound and each refusal of a bad value stands once:
clients are not trusted, and a value that a broker's Java would not hold is refused with an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from reput.serving.codes import ResponseCode
from reput.serving.connection import Refused
from reput.serving.fastjson import member
from reput.serving.frame import Frame, require_characters
from reput.store import configjson
from reput.store.names import is_group

MAX_JSON_BYTES = 4 << 20
"""A body with 10,000 subscriptions or queues has up to 2 MiB."""
_LONG = re.compile(r"[+-]?[0-9]{1,20}")
"""The form of it; Python takes blanks around a number, too, and underscores within."""

Value = TypeVar("Value")


def text(request: Frame, name: str) -> str:
    """An ext field. Raises Refused without it."""
    value = request.ext.get(name)
    if value is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the request has no {name}")
    return value


def number(request: Frame, name: str, default: int | None = None) -> int:
    """An ext field that is a Java long. Raises Refused for anything else."""
    value = request.ext.get(name)
    if value is None and default is not None:
        return default
    value = text(request, name)
    if not _LONG.fullmatch(value):
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"the request's {name} is {value[:40]!r}, not a number"
        )
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the request's {name} is no long")
    return number


def group(request: Frame, name: str = "consumerGroup") -> str:
    """An ext field that names a consumer group. Raises Refused for a name that none can have."""
    value = text(request, name)
    if not is_group(value):
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"{value[:80]!r} is no consumer group's name"
        )
    return value


def json_body(request: Frame) -> Mapping[str, object]:
    """The body as an object. Raises Refused for anything else."""
    try:
        if len(request.body) > MAX_JSON_BYTES:
            raise ValueError(f"{len(request.body)} bytes exceed {MAX_JSON_BYTES}")
        fields = configjson.parse(bytes(request.body).decode())
        if b"\\u" in request.body:
            require_characters(fields)
    except (ValueError, RecursionError) as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Refused(ResponseCode.SYSTEM_ERROR, "the body is no JSON object")
    return fields


def field(fields: Mapping[str, object], name: str, read: Callable[[object], Value]) -> Value:
    """A member of a body's object, read by a function of ``serving.fastjson``. Raises Refused for
    a value that a broker refuses."""
    try:
        return read(member(fields, name))
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body's {name}: {error}") from error


def to_json(value: object) -> bytes:
    """A body of an answer."""
    return to_text(value).encode()


def to_text(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def queue_json(broker_name: str, queue_id: int, topic: str) -> str:
    """A MessageQueue, as a value or as a key."""
    return to_text({"brokerName": broker_name, "queueId": queue_id, "topic": topic})


def keyed_json(entries: Mapping[str, str], name: str, **fields: object) -> str:
    """``fields`` and a map under ``name`` whose keys are objects, as fastjson writes them; keys and
    values are JSON already."""
    pairs = ",".join(f"{key}:{value}" for key, value in entries.items())
    rest = "".join(f",{to_text(key)}:{to_text(value)}" for key, value in fields.items())
    return f'{{"{name}":{{{pairs}}}{rest}}}'
