"""``reput verify``: all that was built against the log."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from reput.cli import options, render
from sinks.consumequeue import OnQueueGap

SHOWN_DIFFERENCES = 200


def verify(
    store: options.Store,
    output: options.Output = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Cut what is wrong; the next run writes it again.")
    ] = False,
    on_queue_gap: Annotated[
        OnQueueGap, typer.Option(help="As the queues were built with.")
    ] = OnQueueGap.ROCKETMQ,
    verify_crc: Annotated[
        bool, typer.Option("--verify-crc", help="If the queues were built with it.")
    ] = False,
    index_tags: options.IndexTags = False,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare all that is below the watermark with what the log says; exit code 1 if any differs.

    Only reads, unless told to repair; then `reput run` writes what was cut.
    """
    from streaming.verify import verify as verify_output  # noqa: PLC0415

    settings = options.store_settings(
        store, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    found = verify_output(
        settings, output or store, repair=repair, on_queue_gap=on_queue_gap,
        verify_crc=verify_crc, index_tags=index_tags,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps({**asdict(found), "repaired": repair}))
    else:
        render.print_table(
            "differences",
            ("what", "file", "byte", "entry", "count", "physical offset", "log says", "found"),
            [
                (d.damage, d.path, d.position, d.entry, d.count, d.physical_offset, d.expected,
                 d.found)
                for d in found.differences[:SHOWN_DIFFERENCES]
            ],
        )  # fmt: skip
        typer.echo(
            f"{found.queues:,} queues, {found.units:,} units, {found.index_entries:,} index "
            f"entries compared with the log [{found.log_start:,}, {found.log_end:,}): "
            f"{len(found.differences):,} differences"
        )
        if repair and found.differences:
            typer.echo("cut; `reput run` writes the rest again before a broker may start here")
    if found.differences and not repair:
        raise typer.Exit(1)
