"""Search of a key without an index: every message of a topic is looked at.

What ``IndexReader.query`` finds by hashes, this finds in the messages' own properties, so that the
answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from reput.readers.iteration import iterate
from reput.readers.messages import Message
from reput.readers.messagestore import MessageStore
from reput.store.log import properties
from reput.store.rows.rowschema import ROWS_SCHEMA


def scan_for_key(
    store: MessageStore, topic: str, key: str, *, is_unique: bool, begin_ms: int, end_ms: int
) -> Iterator[Message]:
    """Yield the messages of a topic that have ``key`` among their keys, or as unique key, and were
    stored in [begin, end], by physical offset.

    Raises StoreError if queues or log cannot be read.
    """
    names = ("physicalOffset", "properties" if is_unique else "keys")
    schema = pa.schema([ROWS_SCHEMA.field(name) for name in names])
    places: set[int] = set()
    for queue_id in store.queue_ids(topic):
        for batch in iterate(store, topic, queue_id, schema=schema):
            column = batch.column(names[1])
            if is_unique:
                column = pc.map_lookup(column, properties.UNIQ_KEY.decode(), "last")
            may_have = pc.match_substring(column, key)
            places.update(batch.column(names[0]).filter(may_have).to_pylist())
    for place in sorted(places):
        message = store.log.message_at(place)
        if message is None or not begin_ms <= message.store_timestamp <= end_ms:
            continue
        if message.has_key(topic, key, is_unique):
            yield message
