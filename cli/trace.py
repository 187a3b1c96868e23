"""``reput trace``: the events of a message that clients with tracing on have stored."""

from __future__ import annotations

from typing import Annotated

import typer

from reput.cli import options, texts
from reput.cli.printer import Result, Table, printed_lines
from reput.store.config import StoreSettings
from reput.store.errors import NotFoundError

MAX_BODIES = 10_000
"""Limit of the index entries that one question examines."""
_COLUMNS = ("group", "topic", "client_host", "store_host", "cost_ms", "success", "retry_times")


@printed_lines
@options.with_options(settings=options.output_settings)
def trace(
    store: options.Store,
    settings: StoreSettings,
    message_id: Annotated[
        str,
        typer.Argument(
            help="The id that a client gave the message, or one of its keys.",
            callback=options.text, metavar="ID",
        ),
    ],
    topic: Annotated[
        str | None,
        options.value("TOPIC", "The topic of traces; RMQ_SYS_TRACE_TOPIC if not given.", "--topic",
                      "-t"),
    ] = None,
    output: options.ReadOutput = None,
) -> Result:  # fmt: skip
    """Show when a message was sent and consumed, from the traces that clients have stored.

    Exit code 1 if there is none: clients trace only where that is switched on.
    """
    from reput.cli.read import keyed_messages  # noqa: PLC0415
    from reput.readers.messagestore import MessageStore  # noqa: PLC0415
    from reput.readers.trace import TRACE_TOPIC, events_of  # noqa: PLC0415

    place, root = topic or TRACE_TOPIC, output or store
    with MessageStore(settings.root, output=output, settings=settings) as opened:
        bodies = keyed_messages(opened, store, output, place, message_id, most=MAX_BODIES)
        events = events_of(bodies, message_id)
    if not events:
        raise NotFoundError(f"no event of message {message_id} in topic {place} of {root}")
    rows = [
        (texts.time_text(event.get("time")), event["kind"], *map(event.get, _COLUMNS))
        for event in events
    ]
    columns = ("time", "event", *map(texts.label, _COLUMNS))
    return Result(events, [Table(f"message {message_id}", columns, rows)], are_lines=True)
