"""``reput get``, ``tail``, ``query`` and ``search-time``: a store read as its consumers do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from reput.cli import messages, options, render
from reput.cli.messages import Body, BodyForm
from store.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from readers.getmessage import GetMessageResult
    from readers.messagefilter import MessageFilter
    from readers.messagestore import MessageStore
    from readers.tail import QueueMessage
    from store.config import StoreSettings

POLL_SECONDS = 0.2
PRINTED_AT_ONCE = 100

Topic = Annotated[str, typer.Argument(help="The topic.", callback=options.text)]
Queue = Annotated[int, typer.Argument(min=0, help="The queue's id.")]


def get(
    store: options.Store,
    topic: Topic,
    queue: Queue,
    offset: Annotated[int, typer.Argument(min=0, help="Where the message stands in the queue.")],
    output: options.ReadOutput = None,
    body: Body = BodyForm.TEXT,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJsonLines = False,
) -> None:
    """Show one message of a queue. Exit code 1 where there is none."""
    settings = options.output_settings(
        store, output, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    with _opened(settings, output) as opened:
        found = opened.get_message(topic, queue, offset, 1)
    # where a message is gone a later one is found; one in an inner batch begins before the offset
    if not found.messages or not found.queue_offsets[0] <= offset < found.next_begin_offset:
        place = f"offset {offset} of queue {queue} of topic {topic}"
        _raise_not_found(found, place, output or store)
    # a batch that cannot be taken apart is one message
    index = min(offset - found.queue_offsets[0], len(found.messages) - 1)
    messages.print_message(found.messages[index], found.queue_offsets[0] + index, body, as_json)


def _raise_not_found(found: GetMessageResult, place: str, output: Path) -> NoReturn:
    if found.damaged:
        raise NotFoundError(
            f"the record at {place}, physical offset {found.damaged[0]}, is damaged; look at it "
            "with reput inspect record"
        )
    has = f"has [{found.min_offset}, {found.max_offset})"
    if not found.max_offset:
        has = f"has none in {output} (are its queues in another --output?)"
    raise NotFoundError(f"no message at {place}, which {has}")


def tail(
    store: options.Store,
    topic: Topic,
    lines: Annotated[
        int, options.value("N", "How many of the last ones to show.", "--lines", "-n", min=0)
    ] = 10,
    from_time: Annotated[str | None, options.time_value("Show all since then instead")] = None,
    follow: Annotated[bool, options.flag("Go on with what comes.", "--follow", "-f")] = False,
    tag: Annotated[str | None, options.value("TAGS", "Only with such a tag: `A || B`.")] = None,
    sql: Annotated[
        str | None,
        options.value("SQL92", "Only those whose properties fulfil an SQL92 expression."),
    ] = None,
    group: Annotated[
        str | None,
        options.value(
            "GROUP", "Only what a consumer group registered for, in SQL92; bit maps count."
        ),
    ] = None,
    output: options.ReadOutput = None,
    body: Body = BodyForm.TEXT,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJsonLines = False,
) -> None:
    """Show a topic's last messages, in the order in which they were stored.

    Exit code 1 where there is none to show. With `--follow` until Ctrl-C or SIGTERM.
    """
    from readers.tail import TopicTail  # noqa: PLC0415

    since = options.optional_time_ms("--from-time", from_time)
    printed = messages.MessageList(body, as_json)
    settings = options.output_settings(
        store, output, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    with _opened(settings, output) as opened, render.stopped_by_signals() as stop:
        if not opened.queue_ids(topic):
            missing = f"no queue of topic {topic} in {output or store}"
            if not follow:
                raise NotFoundError(missing)
            render.print_note(f"{missing} yet; waiting for one")
        wanted = _message_filter(opened, topic, tag, sql, group)
        topic_tail = TopicTail(opened, topic, wanted)
        found = topic_tail.last(lines) if since is None else topic_tail.since(since)
        while True:
            _print_all(found, printed, stop)
            if not follow or stop.wait(POLL_SECONDS):
                break
            found = topic_tail.new()
    asked = lines > 0 or since is not None
    if asked and not (printed.count or follow or stop.is_set()):
        raise NotFoundError(f"no message of topic {topic} to show")


def query(
    store: options.Store,
    topic: Topic,
    key: Annotated[str | None, options.value("KEY", "One of a message's keys.")] = None,
    unique_key: Annotated[
        str | None, options.value("ID", "The id that its client gave a message.")
    ] = None,
    begin: Annotated[str | None, options.time_value("Stored then or later")] = None,
    end: Annotated[str | None, options.value("TIME", "Stored then or earlier.")] = None,
    output: options.ReadOutput = None,
    body: Body = BodyForm.TEXT,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJsonLines = False,
) -> None:
    """Show the newest messages with a key, by the index. Exit code 1 where there is none."""
    wanted = key if unique_key is None else unique_key
    if wanted is None or None not in (key, unique_key):
        raise UsageError("give --key or --unique-key, one of them")
    options.text(wanted)
    bounds = {}
    if begin is not None:
        bounds["begin_ms"] = options.time_option_ms("--begin", begin)
    if end is not None:
        bounds["end_ms"] = options.time_option_ms("--end", end)
    settings = options.output_settings(
        store, output, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    with _opened(settings, output) as opened:
        ask = opened.query if unique_key is None else opened.query_unique_key
        found = ask(topic, wanted, **bounds)
        if not found:
            raise NotFoundError(
                f"the index in {output or store} has no message of topic {topic} with key {wanted}"
            )
        messages.MessageList(body, as_json).print((m, m.queue_offset) for m in found)


def search_time(
    store: options.Store,
    topic: Topic,
    queue: Queue,
    time: Annotated[
        str, typer.Argument(help="As `2026-01-31T12:30Z`, `1h` (before now), or ms.")
    ],
    upper: Annotated[
        bool,
        options.flag("The last message stored then or earlier; else the first stored then or "
                     "later.", "--upper"),
    ] = False,
    output: options.ReadOutput = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    as_json: options.AsJsonLines = False,
) -> None:  # fmt: skip
    """Show at which offset of a queue a time is. Exit code 1 where there is no such queue."""
    from store.queue.consumequeue import BoundaryType  # noqa: PLC0415

    wanted = options.time_option_ms("TIME", time)
    boundary = BoundaryType.UPPER if upper else BoundaryType.LOWER
    settings = options.output_settings(
        store, output, broker_conf, commitlog_file_size, consume_queue_file_size
    )
    with _opened(settings, output) as opened:
        if queue not in opened.queue_ids(topic):
            raise NotFoundError(f"no queue {queue} of topic {topic} in {output or store}")
        offset = opened.offset_by_time(topic, queue, wanted, boundary)
        stored = opened.store_time(topic, queue, offset)
    messages.print_place(topic, queue, offset, stored if stored >= 0 else None, as_json)


def _opened(settings: StoreSettings, output: Path | None) -> MessageStore:
    from readers.messagestore import MessageStore  # noqa: PLC0415

    return MessageStore(settings.root, output=output, settings=settings)


def _message_filter(
    store: MessageStore, topic: str, tag: str | None, sql: str | None, group: str | None
) -> MessageFilter | None:
    """Raises UsageError for several, and for what RocketMQ refuses."""
    from readers.messagefilter import MessageFilter  # noqa: PLC0415

    if (tag, sql, group).count(None) < 2:
        raise UsageError("give one of --tag, --sql and --group: a subscription has one of them")
    if group is not None:
        found = store.consumer_filter(topic, options.text(group))
        if found is None:
            raise NotFoundError(
                f"no expression of consumer group {group} for topic {topic} in the store's "
                "config/consumerFilter.json"
            )
        return found
    try:
        if sql is not None:
            return MessageFilter.by_sql(options.text(sql))
        return None if tag is None else MessageFilter.by_tags(options.text(tag))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _print_all(found: Iterator[QueueMessage], printed: messages.MessageList, stop: Event) -> None:
    """In portions, so that a signal is heard."""
    while not stop.is_set() and (portion := list(islice(found, PRINTED_AT_ONCE))):
        printed.print((m.message, m.queue_offset) for m in portion if m.message is not None)
        for damaged in portion:
            if damaged.message is None:
                render.print_note(
                    f"damaged record at physical offset {damaged.physical_offset}, queue "
                    f"{damaged.queue_id} offset {damaged.queue_offset}"
                )
