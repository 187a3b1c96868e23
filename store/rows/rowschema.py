"""The public form of a message, one row each, for analysts, tables and readers.

| column | type | content |
|---|---|---|
| topic | string | as stored; malformed UTF-8 replaced as Java does |
| queueId | int | |
| queueOffset | bigint | as stored; 0 for PREPARED and ROLLBACK |
| physicalOffset | bigint | position of the record in the log; unique |
| storeSize | bigint | bytes of the record |
| tags, keys | string | properties TAGS and KEYS; null where absent |
| tagsCode | bigint | what the consume queue holds: tag hash, or due time of a delayed message |
| sysFlag, flag, reconsumeTimes | int | |
| preparedTransactionOffset | bigint | |
| transactionType | string | none, prepared, commit, rollback |
| bornTimestamp, storeTimestamp | timestamp | null where no timestamp can hold the value |
| bornHost, storeHost | string | address:port, IPv6 addresses in brackets |
| bodyCompression | string | zlib, lz4, zstd, unknown: of a body that is as stored; else null |
| properties | map<string,string> | all of them; left out with includeProperties=false |
| body | binary | inflated, if bodyCompression is null; left out with includeBody=false |
| corruptReason | string | null, or why a range is not a record; segment_deleted if it is lost |

In the row of a lost or damaged range physicalOffset is its start, storeSize its length, the rest
null. A range is lost if it lies between two files of the log and no file covers it.
"""

from __future__ import annotations

import pyarrow as pa

_TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMPS_MS = range(-62135596800000, 253402300800000)
"""The times that a timestamp can hold: from the year 1 to 9999."""

ROWS_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("physicalOffset", pa.int64(), nullable=False),
        pa.field("storeSize", pa.int64(), nullable=False),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("tagsCode", pa.int64()),
        pa.field("sysFlag", pa.int32()),
        pa.field("flag", pa.int32()),
        pa.field("reconsumeTimes", pa.int32()),
        pa.field("preparedTransactionOffset", pa.int64()),
        pa.field("transactionType", pa.string()),
        pa.field("bornTimestamp", _TIMESTAMP),
        pa.field("storeTimestamp", _TIMESTAMP),
        pa.field("bornHost", pa.string()),
        pa.field("storeHost", pa.string()),
        pa.field("bodyCompression", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("body", pa.binary()),
        pa.field("corruptReason", pa.string()),
    ]
)

INTERNAL = pa.field("internal", pa.bool_())
"""A further column, for whoever leaves internal records out (``store.rows.rowform``)."""


def rows_schema(*, include_body: bool = True, include_properties: bool = True) -> pa.Schema:
    """ROWS_SCHEMA, without the excluded columns."""
    left_out = {"body": not include_body, "properties": not include_properties}
    return pa.schema([field for field in ROWS_SCHEMA if not left_out.get(field.name)])
