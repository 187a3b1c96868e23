"""Rows in the order of a table's files: as many are sorted at once as memory has room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

CHUNK_BYTES = 128 << 20
"""Rows that are sorted at once; at least one batch."""


def chunks(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of up to CHUNK_BYTES, each in one piece: texts in several take ten times as
    long to put in order."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        if kept and size + batch.nbytes > CHUNK_BYTES:
            yield pa.concat_batches(kept)
            kept, size = [], 0
        if batch.num_rows:
            kept.append(batch)
            size += batch.nbytes
    if kept:
        yield pa.concat_batches(kept)


def rows_in_order(
    rows: pa.RecordBatch,
    columns: Iterable[tuple[str, str, bool]],
    partitions: Iterable[pa.Array] = (),
) -> pa.Array:
    """Return the numbers of rows in order: by the values of partitions, then by columns, of which
    each has its way (``ascending`` or ``descending``) and says whether nulls are first."""
    by = {f"partition{number}": values for number, values in enumerate(partitions)}
    ways = dict.fromkeys(by, "ascending")
    for name, way, is_null_first in columns:
        if is_null_first:
            # pyarrow places nulls last, whatever the way
            by[f"valid {name}"], ways[f"valid {name}"] = rows.column(name).is_valid(), "ascending"
        by[f"value {name}"], ways[f"value {name}"] = rows.column(name), way
    return pc.sort_indices(pa.table(by), [*ways.items()])
