"""``reput sql``: runs SQL over the raw log, without a broker and without Spark."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Annotated, Any

import typer

from reput.cli import options
from reput.cli.printer import Part, Result, Table, printed_lines
from reput.store.config import StoreSettings
from reput.store.rows.rowform import RowForm

ROWS_OF_A_TABLE = 1000


@printed_lines
@options.with_options(settings=options.store_settings, form=options.row_form)
def sql(
    settings: StoreSettings,
    query: Annotated[
        str,
        typer.Argument(help="A query in DuckDB's SQL on the table `messages`.", metavar="QUERY"),
    ],
    fail_on_data_loss: options.FailOnDataLoss = False,
    *,
    form: RowForm,
) -> Iterator[Result]:
    """Query the log in SQL: `select topic, count(*) from messages group by topic`.

    The table has a row per message. A query reads only the columns that it names, from the log
    files that its conditions on physicalOffset and storeTimestamp allow. It opens no other file:
    redirect the output, or write Parquet files with `reput export`.
    """
    from reput.readers.dataset import MessageDataset  # noqa: PLC0415
    from reput.readers.sql import answer  # noqa: PLC0415

    dataset = MessageDataset(settings, form, fail_on_data_loss=fail_on_data_loss)
    with answer(dataset, query) as reader:
        records = (row for batch in reader for row in batch.to_pylist(maps_as_pydicts="lossy"))
        # the answer may be larger than memory: a line or a table at a time is taken of it
        yield Result(map(_plain, records), _tables(reader.schema.names, records), are_lines=True)
    options.note_internal(dataset.internal_left_out)


def _tables(names: Sequence[str], records: Iterator[dict[str, Any]]) -> Iterator[Part]:
    rows, has_rows = (tuple(map(_for_people, row.values())) for row in records), False
    while portion := list(islice(rows, ROWS_OF_A_TABLE)):
        yield Table("", names, portion)
        has_rows = True
    if not has_rows:
        yield "no rows"


def _for_people(value: Any) -> Any:
    return _plain(value, (bytes, datetime))


def _plain(value: Any, shown: tuple[type, ...] = ()) -> Any:
    """Return a value as JSON has it: times and intervals in ISO 8601; NaN and infinity as text, as
    Spark's ``to_json`` does; bytes as the text that they are in UTF-8, since base64 would hide it,
    and otherwise an object with their ``base64``. Values of the types in ``shown`` stay."""
    match value:
        case datetime() if value.tzinfo is None:
            return value.isoformat()
        case _ if isinstance(value, shown):
            return value
        case dict():
            return {name: _plain(inner, shown) for name, inner in value.items()}
        case tuple():  # Arrow's interval
            months, days, nanoseconds = value
            return f"P{months}M{days}DT{Decimal(nanoseconds).scaleb(-9).normalize():f}S"
        case list():
            return [_plain(inner, shown) for inner in value]
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case Decimal() if value.as_tuple().exponent == 0:  # DuckDB's sum of integers
            return int(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case None | bool() | int() | float() | str():
            return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
