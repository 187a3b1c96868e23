"""Inner batches as their messages, of bytes that RocketMQ's own encoder has made."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from reput.sinks.innerbatches import unwrapped
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.wire import TWO_MESSAGES

BATCH = 0x40 | 0x80
TIME = datetime(2026, 1, 2, tzinfo=UTC)
PLAIN: dict[str, Any] = {
    "topic": "T", "queueId": 3, "queueOffset": 40, "physicalOffset": 1000, "storeSize": 300,
    "tags": "batch", "keys": "of all", "tagsCode": 5, "sysFlag": 0x10, "flag": 9,
    "reconsumeTimes": 2, "preparedTransactionOffset": 8, "transactionType": "none",
    "bornTimestamp": TIME, "storeTimestamp": TIME, "bornHost": "[::1]:5", "storeHost": "1.2.3.4:5",
    "bodyCompression": None, "properties": [("a", "b")], "body": b"body", "corruptReason": None,
}  # fmt: skip
FIRST = {
    "queueOffset": 40, "tags": "Aa", "keys": "k1 k2", "tagsCode": 2112, "sysFlag": 0x10, "flag": 7,
    "properties": [("KEYS", "k1 k2"), ("TAGS", "Aa")], "body": b"first",
}  # fmt: skip
SECOND = {
    "queueOffset": 41, "tags": "BB", "keys": None, "tagsCode": 2112, "sysFlag": 0x10, "flag": -1,
    "properties": [("TAGS", "BB")], "body": b"",
}  # fmt: skip
"""Java's hash code is the same for Aa and BB: a well-known pair."""


def rows_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that become of some; the pieces are in order, and may be empty."""
    batch = pa.RecordBatch.from_pylist(rows, schema=ROWS_SCHEMA)
    found = [row for piece in unwrapped(batch) for row in piece.to_pylist()]
    for row in found:
        row["properties"] = sorted(row["properties"])
    return found


@pytest.mark.parametrize(
    ("body", "codec"),
    [(TWO_MESSAGES, None), (zlib.compress(TWO_MESSAGES), "zlib")],
    ids=["plain", "compressed"],
)
def test_a_batch_is_its_messages(body: bytes, codec: str | None) -> None:
    """Each has its own fields, and all else of the batch; rows around it stay as they are."""
    sys_flag = 0x10 | BATCH | (0x301 if codec else 0)
    batch = {**PLAIN, "sysFlag": sys_flag, "body": body, "bodyCompression": codec}
    messages = [{**PLAIN, **FIRST}, {**PLAIN, **SECOND}]
    assert rows_of([batch]) == messages
    other = {**PLAIN, "queueOffset": 50}
    assert rows_of([other, batch, other, batch]) == [PLAIN | other, *messages, other, *messages]
    assert rows_of([batch, batch, other]) == [*messages, *messages, other]


@pytest.mark.parametrize(
    "change",
    [
        {"sysFlag": 0x40}, {"sysFlag": 0x80},
        {"body": TWO_MESSAGES[:-1]}, {"body": TWO_MESSAGES + b"\0"}, {"body": b""},
        {"body": bytes(16) + (-8).to_bytes(4, "big", signed=True) + bytes(16)},
        {"bodyCompression": "unknown"}, {"bodyCompression": "zlib"},
    ],
    ids=["no batch", "not to unwrap", "cut", "longer", "empty", "back", "unknown", "no stream"],
)  # fmt: skip
def test_what_cannot_be_split_stays_one_row(change: dict[str, Any]) -> None:
    """As it is stored; the next batch is split all the same."""
    whole = {**PLAIN, "sysFlag": 0x10 | BATCH, "body": TWO_MESSAGES}
    row = {**whole, **change}
    assert rows_of([row, whole]) == [row, {**PLAIN, **FIRST}, {**PLAIN, **SECOND}]
