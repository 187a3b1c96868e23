"""SQL over the raw log: DuckDB with ``readers.dataset`` as its table ``messages``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from readers.dataset import MessageDataset
from store.config import StoreSettings
from store.errors import StoreError, UsageError

TABLE = "messages"


@contextmanager
def answer(settings: StoreSettings, query: str) -> Iterator[pa.RecordBatchReader]:
    """Run a query; its rows can be read while the block lasts.

    Raises UsageError if DuckDB is not installed or rejects the query, StoreError if the query fails
    later.
    """
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("SQL needs DuckDB: pip install 'reput[sql]'") from None
    messages = MessageDataset(settings)
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.register(TABLE, messages)
        try:
            relation = connection.sql(query)
            if relation is None:
                raise UsageError(f"the query gives no result; select from the table {TABLE}")
            yield relation.to_arrow_reader()
        except duckdb.ProgrammingError as error:
            # below the query's line DuckDB draws where it failed: a log has no such columns
            reason = str(error).rstrip(" ^\n")
            raise UsageError(f"the query cannot be run: {reason}") from error
        except duckdb.Error as error:
            raise StoreError(f"the query failed: {error}") from error
