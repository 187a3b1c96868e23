"""``reput inspect``: look at bytes without changing any."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli import options, render, tables
from reput.cli.commands import Command, Group
from store.config import read_properties
from store.log.record import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, sys_flag_names
from upkeep.inspect import describe_checkpoint, describe_queue, describe_record

app = typer.Typer(
    cls=Group, help="Look at records, queues and positions; never writes.", no_args_is_help=True
)


_MAGICS = {f"{MESSAGE_MAGIC_V1:#x}": "v1", f"{MESSAGE_MAGIC_V2:#x}": "v2"}
_NONE_WHERE_ZERO = ("prepared_transaction_offset", "store_checkpoint.")
"""Beginnings of names; -1 is none everywhere."""


def _show(title: str, fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        render.print_json(fields)
    else:
        tables.print_fields(title, {name: _named(name, one) for name, one in fields.items()})


def _named(name: str, value: Any) -> Any:
    """A number by what it means: a time, a bit's name."""
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
def record(
    store: options.Store,
    physical_offset: Annotated[int, typer.Argument(min=0, help="Where the record starts.")],
    broker_conf: options.BrokerConf = None,
    as_json: options.AsJson = False,
) -> None:
    """Decode what stands at a physical offset, be it sound or not."""
    fields = describe_record(options.store_settings(store, broker_conf), physical_offset)
    _show(f"physical offset {physical_offset}", fields, as_json)


@app.command("queue", cls=Command)
def queue(
    store: options.Store,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    queue_id: Annotated[int, typer.Argument(min=0, help="The queue.")],
    first: Annotated[int, options.value("OFFSET", "First queue offset.", "--from", min=0)] = 0,
    count: Annotated[int, options.value("N", "How many units.", "--count", "-n", min=1)] = 20,
    output: options.Output = None,
    broker_conf: options.BrokerConf = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Show units of a consume queue and whether each one's record is there."""
    settings = options.output_settings(store, output, broker_conf, None, consume_queue_file_size)
    rows = describe_queue(settings, output or store, topic, queue_id, first, count)
    if as_json:
        render.print_json(rows)
    elif rows:
        title, columns = f"{topic} queue {queue_id}", tuple(rows[0])
        tables.print_table(title, columns, [tuple(row.values()) for row in rows])
    else:
        tables.print_line(f"no units from queue offset {first} on")


@app.command("checkpoint", cls=Command)
def checkpoint(
    store: Annotated[Path, typer.Argument(help="Root of a store, or of another output.")],
    as_json: options.AsJson = False,
) -> None:
    """Show the store's positions: RocketMQ's checkpoint, the watermark, Spark's checkpoint."""
    read_properties(store)  # refuses a store of a kind that is not read
    fields = describe_checkpoint(store)
    _show("positions", fields, as_json)
