"""``reput inspect``: shows records, queues and positions, and never writes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reput.cli import options, texts
from reput.cli.commands import Command, Group
from reput.cli.messages import shown_field
from reput.cli.printer import Record, Result, Table, printed
from reput.store.config import StoreSettings, read_properties
from reput.upkeep.inspect import describe_checkpoint, describe_queue, describe_record

app = typer.Typer(
    cls=Group,
    help="Show records, queues and positions as they are, without writing.",
    no_args_is_help=True,
)


_SINGULAR = {"properties": "property"}
"""The name before each entry of a mapping."""


def _result(title: str, fields: dict[str, Any]) -> Result:
    named = {texts.label(_SINGULAR.get(name, name)): shown_field(name, value)
             for name, value in fields.items()}  # fmt: skip
    return Result(fields, [Record(title, named)])


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
    named = [tuple(shown_field(*field) for field in row.items()) for row in rows]
    table = Table(f"{topic} queue {queue_id}", columns, named)
    return Result(rows, [table])


@app.command("checkpoint", cls=Command)
@printed
def checkpoint(store: options.ReadRoot) -> Result:
    """Show the store's positions: RocketMQ's checkpoint, the watermark, Spark's checkpoint."""
    read_properties(store)  # refuses a store of a kind that is not read
    return _result("positions", describe_checkpoint(store))
