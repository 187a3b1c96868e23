"""``reput inspect``: shows records, queues and positions, and never writes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reput.cli import options, render, tables
from reput.cli.commands import Command, Group
from reput.store.config import StoreSettings, read_properties
from reput.store.log.record import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from reput.store.log.sysflag import sys_flag_names
from reput.upkeep.inspect import describe_checkpoint, describe_queue, describe_record

app = typer.Typer(
    cls=Group,
    help="Show records, queues and positions as they are, without writing.",
    no_args_is_help=True,
)


_MAGICS = {f"{MESSAGE_MAGIC_V1:#x}": "v1", f"{MESSAGE_MAGIC_V2:#x}": "v2"}
_NONE_WHERE_ZERO = ("prepared_transaction_offset", "store_checkpoint.")
"""Beginnings of the names of fields whose 0 means none; -1 means none in every field."""
_SINGULAR = {"properties": "property"}
"""The name before each entry of a mapping."""


def _show(title: str, fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        render.print_json(fields)
    else:
        named = {name: _named(name, one) for name, one in fields.items()}
        tables.print_fields(title, {_SINGULAR.get(name, name): one for name, one in named.items()})


def _named(name: str, value: Any) -> Any:
    """Return a number as what it means: a time, the names of its bits, none."""
    if name == "sys_flag":
        return f"{value} {' '.join(sys_flag_names(value))}".rstrip()
    if name == "magic":
        return f"{value} {_MAGICS.get(value, '')}".rstrip()
    if value == -1 or (value == 0 and name.startswith(_NONE_WHERE_ZERO)):
        return None
    if name.endswith("_timestamp") and isinstance(value, int):
        return tables.time_text(value)
    return value


@app.command("record", cls=Command)
@options.with_options(settings=options.store_settings)
def record(
    settings: StoreSettings,
    physical_offset: Annotated[
        int,
        typer.Argument(
            min=0, help="The byte of the log at which the record starts.", metavar="OFFSET"
        ),
    ],
    as_json: options.AsJson = False,
) -> None:
    """Decode what stands at a physical offset, whether it is a sound record or not."""
    fields = describe_record(settings, physical_offset)
    _show(f"physical offset {physical_offset}", fields, as_json)


@app.command("queue", cls=Command)
@options.with_options(settings=options.output_settings)
def queue(
    store: options.Store,
    settings: StoreSettings,
    topic: options.Topic,
    queue_id: options.Queue,
    first: Annotated[
        int, options.value("OFFSET", "The queue offset to begin at.", "--from", min=0)
    ] = 0,
    count: Annotated[
        int, options.value("N", "How many units to show.", "--count", "-n", min=1)
    ] = 20,
    output: options.ReadOutput = None,
    as_json: options.AsJson = False,
) -> None:
    """Show units of a consume queue, and whether the log has the record of each."""
    rows = describe_queue(settings, output or store, topic, queue_id, first, count)
    if as_json:
        render.print_json(rows)
    elif rows:
        title, columns = f"{topic} queue {queue_id}", tuple(rows[0])
        tables.print_table(title, columns, [tuple(row.values()) for row in rows])
    else:
        tables.print_line(f"no units from queue offset {first} on; begin lower with --from")


@app.command("checkpoint", cls=Command)
def checkpoint(
    store: options.ReadRoot,
    as_json: options.AsJson = False,
) -> None:
    """Show the store's positions: RocketMQ's checkpoint, the watermark, Spark's checkpoint."""
    read_properties(store)  # refuses a store of a kind that is not read
    fields = describe_checkpoint(store)
    _show("positions", fields, as_json)
