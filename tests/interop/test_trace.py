"""Events of traces, written by RocketMQ's own client, are read field by field."""

from __future__ import annotations

import random
from typing import Any

import pytest

from reput.readers.trace import TYPES, decode
from tests.interop.rocketmq import PARITY, ask_traces

pytestmark = [
    pytest.mark.usefixtures("release"),
    pytest.mark.parametrize("release", [PARITY], indirect=True),
]
SENT = {"time", "region_id", "group", "topic", "message_id", "tags", "keys"}
FIELDS = {
    "Pub": {*SENT, "store_host", "body_length", "cost_ms", "message_type", "offset_message_id",
            "success"},
    "SubBefore": {"time", "region_id", "group", "request_id", "message_id", "retry_times", "keys"},
    "SubAfter": {"request_id", "message_id", "cost_ms", "success", "keys", "context_code", "time",
                 "group"},
    "EndTransaction": {*SENT, "store_host", "message_type", "transaction_id", "transaction_state",
                       "from_transaction_check"},
    "Recall": {*SENT, "success"} - {"tags", "keys"},
}  # fmt: skip
"""The fields that the client writes; the address of its host is not ours to give."""


def random_event(rng: random.Random, kind: str) -> dict[str, Any]:
    def word() -> str:
        return rng.choice(("", "订单", "a b")) + f"{rng.randrange(1 << 30):x}"

    return {
        "kind": kind, "time": rng.randrange(1 << 41), "region_id": word(), "group": word(),
        "request_id": word(), "topic": word(), "message_id": word(), "tags": word(),
        "keys": word(), "store_host": word(), "body_length": rng.randrange(1 << 20),
        "cost_ms": rng.randrange(1000), "message_type": rng.choice(TYPES),
        "offset_message_id": word(), "success": rng.random() < 0.5,
        "retry_times": rng.randrange(16), "context_code": rng.randrange(5),
        "transaction_id": word(),
        "transaction_state": rng.choice(("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")),
        "from_transaction_check": rng.random() < 0.5,
    }  # fmt: skip


def question(event: dict[str, Any]) -> str:
    given = {**event, "message_type": TYPES.index(event["message_type"])}
    return "\t".join(
        str(value).lower() if isinstance(value, bool) else str(value) for value in given.values()
    )


def test_every_kind_of_event_is_read_as_it_was_written(seed: int) -> None:
    """100 events of each kind; the fields that the client writes come back as they were."""
    rng = random.Random(seed)
    events = [random_event(rng, kind) for kind in FIELDS for _ in range(100)]
    for event, body in zip(events, ask_traces([question(one) for one in events]), strict=True):
        (found,) = decode(body)
        found.pop("client_host", None)
        assert found == {name: event[name] for name in ("kind", *FIELDS[event["kind"]])}
