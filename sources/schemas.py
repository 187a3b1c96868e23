"""The schemas of both forms. Apart from the readers, so that asking for one loads no kernels.

The public form, a row per message:

| column | type | what |
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
| bodyCompression | string | zlib, lz4, zstd, or unknown; null for a plain (or inflated) body |
| properties | map<string,string> | all of them; left out with includeProperties=false |
| body | binary | as stored; left out with includeBody=false |
| corruptReason | string | null, or why a damaged range is no record |

In the row of a damaged range physicalOffset is its start, storeSize its length, the rest null.
"""

from __future__ import annotations

from store.dispatch import PACKED_COLUMNS

RUNS_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in PACKED_COLUMNS)
"""The packed form as Spark DDL."""
_COLUMNS = (
    ("topic", "string"),
    ("queueId", "int"),
    ("queueOffset", "bigint"),
    ("physicalOffset", "bigint not null"),
    ("storeSize", "bigint not null"),
    ("tags", "string"),
    ("keys", "string"),
    ("tagsCode", "bigint"),
    ("sysFlag", "int"),
    ("flag", "int"),
    ("reconsumeTimes", "int"),
    ("preparedTransactionOffset", "bigint"),
    ("transactionType", "string"),
    ("bornTimestamp", "timestamp"),
    ("storeTimestamp", "timestamp"),
    ("bornHost", "string"),
    ("storeHost", "string"),
    ("bodyCompression", "string"),
    ("properties", "map<string,string>"),
    ("body", "binary"),
    ("corruptReason", "string"),
)


def rows_schema(include_body: bool, include_properties: bool) -> str:
    """The schema as Spark DDL."""
    left_out = {"body": not include_body, "properties": not include_properties}
    return ", ".join(f"{name} {kind}" for name, kind in _COLUMNS if not left_out.get(name))
