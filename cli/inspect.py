"""``reput inspect``: shows records, queues and positions, and never writes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reput.cli import options, texts
from reput.cli.commands import Command, Group
from reput.cli.printer import Record, Result, Table, printed
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


def _result(title: str, fields: dict[str, Any]) -> Result:
    named = {texts.label(_SINGULAR.get(name, name)): _named(name, one)
             for name, one in fields.items()}  # fmt: skip
    return Result(fields, [Record(title, named)])


def _named(name: str, value: Any) -> Any:
    """Return a number as what it means: a time, the names of its bits, none."""
    if name == "sys_flag":
        return f"{value} {' '.join(sys_flag_names(value))}".rstrip()
    if name == "magic":
        return f"{value} {_MAGICS.get(value, '')}".rstrip()
    if value == -1 or (value == 0 and name.startswith(_NONE_WHERE_ZERO)):
        return None
    if name.endswith("_timestamp") and isinstance(value, int):
        return texts.time_text(value)
    return value


@app.command("record", cls=Command)
@printed
@options.with_options(settings=options.store_settings)
def record(
    settings: StoreSettings,
    physical_offset: Annotated[
        int,
        typer.Argument(
            min=0, help="The byte of the log at which the record starts.", metavar="OFFSET"
        ),
    ],
) -> Result:
    """Decode what stands at a physical offset, whether it is a sound record or not."""
    fields = describe_record(settings, physical_offset)
    return _result(f"physical offset {physical_offset}", fields)


@app.command("queue", cls=Command)
@printed
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
) -> Result:
    """Show units of a consume queue, and whether the log has the record of each."""
    rows = describe_queue(settings, output or store, topic, queue_id, first, count)
    if not rows:
        return Result([], [f"no units from queue offset {first} on; begin lower with --from"])
    columns = [texts.label(name) for name in rows[0]]
    table = Table(f"{topic} queue {queue_id}", columns, [tuple(row.values()) for row in rows])
    return Result(rows, [table])


@app.command("checkpoint", cls=Command)
@printed
def checkpoint(store: options.ReadRoot) -> Result:
    """Show the store's positions: RocketMQ's checkpoint, the watermark, Spark's checkpoint."""
    read_properties(store)  # refuses a store of a kind that is not read
    return _result("positions", describe_checkpoint(store))
