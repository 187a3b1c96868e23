"""``reput inspect``: look at bytes without changing any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from checkpoints.inspect import describe_checkpoint, describe_queue, describe_record
from reput.cli import options, render
from store.config import read_properties

app = typer.Typer(help="Look at records, queues and positions; never writes.", no_args_is_help=True)


def _show(title: str, fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(fields))
    else:
        render.print_table(title, ("field", "value"), list(fields.items()))


@app.command("record")
def record(
    store: options.Store,
    physical_offset: Annotated[int, typer.Argument(min=0, help="Where the record starts.")],
    broker_conf: options.BrokerConf = None,
    as_json: options.AsJson = False,
) -> None:
    """Decode what stands at a physical offset, be it sound or not."""
    fields = describe_record(options.store_settings(store, broker_conf), physical_offset)
    _show(f"physical offset {physical_offset}", fields, as_json)


@app.command("queue")
def queue(
    store: options.Store,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    queue_id: Annotated[int, typer.Argument(min=0, help="The queue.")],
    first: Annotated[int, typer.Option("--from", min=0, help="First queue offset.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many units.")] = 20,
    output: options.Output = None,
    broker_conf: options.BrokerConf = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Show units of a consume queue and whether each one's record is there."""
    settings = options.store_settings(store, broker_conf, None, consume_queue_file_size)
    rows = describe_queue(settings, output or store, topic, queue_id, first, count)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        columns = tuple(rows[0]) if rows else ("no units",)
        render.print_table(f"{topic} queue {queue_id}", columns, [tuple(r.values()) for r in rows])


@app.command("checkpoint")
def checkpoint(
    store: Annotated[Path, typer.Argument(help="Root of a store, or of another output.")],
    as_json: options.AsJson = False,
) -> None:
    """Show the store's positions: RocketMQ's checkpoint, the watermark, Spark's checkpoint."""
    read_properties(store)  # refuses a store of a kind that is not read
    fields = describe_checkpoint(store)
    _show("positions", fields, as_json)
