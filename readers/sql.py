"""SQL over the raw log: DuckDB with ``readers.dataset`` as its table ``messages``.

A query opens no file of its own, for reading or writing, and changes no setting. DuckDB would
otherwise write wherever ``copy ... to``, a log or a profile names, also among the data of a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pyarrow as pa

from reput.readers.dataset import MessageDataset
from reput.store.errors import StoreError, UsageError

TABLE = "messages"


@contextmanager
def answer(messages: MessageDataset, query: str) -> Iterator[pa.RecordBatchReader]:
    """Run a query over the table ``messages``; its rows can be read while the block lasts.

    Raises UsageError if DuckDB is not installed, rejects the query, or the query names a file;
    StoreError or OSError if the log cannot be read, or StoreError if the query fails later.
    """
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("SQL needs DuckDB: pip install 'reput[sql]'") from None
    with (
        TemporaryDirectory(prefix="reput-sql-") as temporary,
        duckdb.connect(
            config={"enable_external_access": False, "temp_directory": temporary}
        ) as connection,
    ):
        connection.execute("set TimeZone = 'UTC'; set lock_configuration = true")
        connection.register(TABLE, messages)
        try:
            relation = connection.sql(query)
            if relation is None:
                raise UsageError(f"the query gives no result; select from the table {TABLE}")
            yield relation.to_arrow_reader()
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise messages.failure or _explained(error) from error


def _explained(error: Exception) -> Exception:
    import duckdb  # noqa: PLC0415

    if isinstance(error, duckdb.ProgrammingError):
        # below the query's line DuckDB draws where it failed: a log has no such columns
        reason = str(error).rstrip(" ^\n")
        return UsageError(f"the query cannot be run: {reason}")
    if isinstance(error, duckdb.PermissionException):
        return UsageError(
            "the query names a file, and sql opens none but the log: redirect the output to a "
            "file, or write Parquet files with reput export"
        )
    return StoreError(f"the query failed: {error}") if isinstance(error, duckdb.Error) else error
