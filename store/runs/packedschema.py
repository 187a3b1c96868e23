"""The columns of the packed form, which is internal and changes with the sinks.

``queueOffsets`` is int64 little-endian, null if they increase by one from ``firstQueueOffset``.
``units`` holds the columns of the run one after the other, ``bytesPerMessage`` wide together:
units, details, bit maps; in an INDEX row the columns of IndexEntries, in a SCANNED row the text of
its BatchSettings, in a QUEUE row that of its QueueManifest. ``status`` is the
``store.log.status.Status`` of a BAD range, ``unitCount`` is of a SCANNED one. Rows reach the driver
through the spool (``store.runs.spool``) or, where there is none, through Spark.
"""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa


class RowKind(IntEnum):
    """The kinds of rows in the packed form."""

    RUN = 0
    SCANNED = 1
    BAD = 2
    INDEX = 3
    QUEUE = 4
    """A queue that a task has written, in place of its runs."""


PACKED_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("topic", pa.binary()),
        pa.field("queueId", pa.int32()),
        pa.field("messageCount", pa.int64(), nullable=False),
        pa.field("firstPhysicalOffset", pa.int64(), nullable=False),
        pa.field("endPhysicalOffset", pa.int64(), nullable=False),
        pa.field("firstQueueOffset", pa.int64()),
        pa.field("queueOffsets", pa.binary()),
        pa.field("units", pa.binary()),
        pa.field("bytesPerMessage", pa.int32()),
        pa.field("lastStoreTimestamp", pa.int64()),
        pa.field("plannedEndOffset", pa.int64()),
        pa.field("lastRecordOffset", pa.int64()),
        pa.field("status", pa.int32()),
        pa.field("unitCount", pa.int64()),
    ]
)
