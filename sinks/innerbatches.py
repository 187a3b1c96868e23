"""Splits inner batches into their messages, for targets without nested batches.

RocketMQ's client takes batches apart, so that consumers see single messages; a mirror must show the
same. A batch that cannot be split stays one row, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.store.log import java, properties
from reput.store.log.compression import MAX_INFLATED_BYTES, inflate
from reput.store.log.innerbatch import inner_messages, inner_sys_flag, is_inner_batch


def unwrapped(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows of sound messages (ROWS_SCHEMA), in order, with each inner batch split into its
    messages.

    The messages take from the batch its offset in the log and every column that they do not have
    themselves. A batch that cannot be split stays one row. Only one is inflated at a time. What is
    yielded may be empty.
    """
    start = 0
    flags = [flag for flag in pc.unique(rows["sysFlag"]).to_pylist() if is_inner_batch(flag)]
    is_batch = pc.is_in(rows["sysFlag"], pa.array(flags, pa.int32()))
    for index in np.flatnonzero(is_batch).tolist():
        messages = _messages(rows.slice(index, 1))
        if messages is not None:
            yield rows.slice(start, index - start)
            yield messages
            start = index + 1
    yield rows.slice(start)


def _messages(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """The messages of an inner batch in one row; None if the body is not an inner batch."""
    (row,) = batch.to_pylist()
    body, codec = row["body"], row["bodyCompression"]
    plain = body if codec is None else inflate(body, codec, MAX_INFLATED_BYTES)
    inner = None if plain is None else inner_messages(plain)
    if inner is None:
        return None
    rows = [row | _own_columns(row, index, *message) for index, message in enumerate(inner)]
    return pa.RecordBatch.from_pylist(rows, schema=batch.schema)


def _own_columns(
    batch: dict[str, Any], index: int, flag: int, body: bytes, block: bytes
) -> dict[str, Any]:
    values = properties.parse(block)
    texts = {java.decode(name): java.decode(value) for name, value in values.items()}
    return {
        "queueOffset": batch["queueOffset"] + index,
        "tags": texts.get(properties.TAGS.decode()),
        "keys": texts.get(properties.KEYS.decode()),
        "tagsCode": java.hash_code(values.get(properties.TAGS, b"")),
        "sysFlag": inner_sys_flag(batch["sysFlag"]),
        "flag": flag,
        "bodyCompression": None,
        "properties": list(texts.items()),
        "body": body,
    }
