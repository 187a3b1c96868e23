"""``reput status``: where a store and its queues stand."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from checkpoints.status import FollowerStatus, read_status
from reput.cli import options, render


def status(
    store: options.Store,
    output: options.Output = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the log's end, the watermark, the lag and every queue's offsets. Reads only."""
    settings = options.store_settings(
        store, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    found = read_status(settings, output or store)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    typer.echo(f"log        [{found.log_min:,}, {found.log_end:,})")
    typer.echo(f"watermark  {render.known(found.watermark)}")
    lag = render.lag_text(found.lag_bytes)
    typer.echo(f"lag        {lag}, {render.known(found.lag_messages)} messages")
    typer.echo(f"writer     {f'process {found.writer_pid}' if found.writer_pid else 'none'}")
    if found.followers:
        render.print_table(
            "followers",
            ("follower", "target", "position", "lag", "counts", "failing since", "last error"),
            [_follower_row(follower) for follower in found.followers],
        )
    render.print_table(
        "queues",
        ("topic", "queue", "min offset", "max offset"),
        [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in found.queues],
    )


def _follower_row(found: FollowerStatus) -> tuple[object, ...]:
    counts = {"rows": found.rows, "lost bytes": found.lost_bytes, **found.counts}
    return (
        found.name, found.target, found.position, render.lag_text(found.lag_bytes),
        ", ".join(f"{name} {count:,}" for name, count in counts.items() if count),
        found.failing_since or "", found.error or "",
    )  # fmt: skip
