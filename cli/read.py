"""``reput get``, ``tail``, ``query`` and ``search-time``: read a store as its consumers do."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from reput.cli import completion, messages, moments, options, render, texts
from reput.cli.messages import DEFAULT_BODIES, Bodies
from reput.cli.printer import Result, Table, printed_lines
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import NotFoundError, UsageError
from reput.store.files import CONSUMER_FILTER_FILE

if TYPE_CHECKING:
    from reput.readers.getmessage import GetMessageResult
    from reput.readers.messagefilter import MessageFilter
    from reput.readers.messages import Message
    from reput.readers.messagestore import MessageStore
    from reput.readers.tail import QueueMessage

MAX_TIMESTAMP_MS = (1 << 63) - 1
POLL_SECONDS = 0.2

Follow = Annotated[bool, options.flag("Go on with the messages that arrive.", "--follow", "-f")]
PRINTED_AT_ONCE = 100


@printed_lines
@options.with_options(settings=options.output_settings, body=messages.bodies)
def get(
    store: options.Store,
    settings: StoreSettings,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="The topic.",
            callback=options.optional_text,
            metavar="[TOPIC",
            autocompletion=completion.topics,
        ),
    ] = None,
    queue: Annotated[
        int | None, typer.Argument(min=0, help="The queue's id.", metavar="QUEUE")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Argument(min=0, help="The message's offset in the queue.", metavar="OFFSET]"),
    ] = None,
    message_id: Annotated[
        str | None,
        options.value(
            "ID",
            "Show the message with this id that a broker gave it (offsetMsgId, 32 or 56 digits); "
            "neither queues nor the broker are needed.",
        ),
    ] = None,
    output: options.ReadOutput = None,
    as_of: options.AsOf = None,
    body: Bodies = DEFAULT_BODIES,
) -> Result:
    """Show one message, of a place in a queue or by its id; exit code 1 if there is none."""
    if (message_id is None) == (topic is None):
        raise UsageError("give TOPIC, QUEUE and OFFSET, or --message-id")
    with _opened(settings, output, as_of) as opened:
        if message_id is not None:
            message = _message_by_id(opened, message_id)
            return messages.message_result(message, message.queue_offset, body)
        if topic is None or queue is None or offset is None:
            raise UsageError("give QUEUE and OFFSET after TOPIC")
        _check_queue(opened, topic, queue, output or store)
        pulled = opened.queue(topic, queue).get_message(offset, 1)
        # where a message is gone a later one is found; one in an inner batch begins before
        if not pulled.messages or not pulled.queue_offsets[0] <= offset < pulled.next_begin_offset:
            place = f"offset {offset} of queue {queue} of topic {topic}"
            _raise_not_found(pulled, place, opened, store)
    # a batch that cannot be taken apart is one message
    index = min(offset - pulled.queue_offsets[0], len(pulled.messages) - 1)
    return messages.message_result(pulled.messages[index], pulled.queue_offsets[0] + index, body)


def _message_by_id(opened: MessageStore, message_id: str) -> Message:
    """Raises UsageError for a text that is no such id, NotFoundError where no message has it."""
    from reput.readers.messages import message_place  # noqa: PLC0415

    message = opened.log.message_by_id(message_id)
    if message is not None:
        return message
    _, place = message_place(message_id)
    stored = opened.log.message_at(place)
    has = f"no record begins there in the log's [{opened.log.min_offset}, {opened.log.end})"
    if stored is not None:
        has = f"the one there has the id {stored.offset_message_id}, of another broker"
    raise NotFoundError(
        f"no message with id {message_id}, which means physical offset {place}: {has}"
    )


def _check_queue(store: MessageStore, topic: str, queue: int, root: Path) -> None:
    """Raises NotFoundError where ``root`` has no such queue, UsageError for an unknown topic."""
    if queue not in store.queue_ids(topic):
        store.check_topic(topic)
        raise NotFoundError(
            f"no queue {queue} of topic {topic} in {root}; "
            f"{store.command('status', '--topic', topic)} lists its queues, and --output "
            f"names another place of the queues{_unqueued(store)}"
        )


def _unqueued(store: MessageStore) -> str:
    """The end of a line that says that something is not there: it may only be in no queue yet."""
    line = store.note_coverage()
    return "" if line is None else f"; {line}"


def _raise_not_found(
    pulled: GetMessageResult, place: str, store: MessageStore, root: Path
) -> NoReturn:
    if pulled.damaged:
        raise NotFoundError(
            f"the record at {place} is lost or damaged, at physical offset {pulled.damaged[0]}; "
            f"look at it: {command_line('inspect record', root, None, str(pulled.damaged[0]))}",
            physical_offset=pulled.damaged[0],
        )
    has = f"[{pulled.min_offset}, {pulled.max_offset})" if pulled.max_offset else "no messages"
    raise NotFoundError(f"no message at {place}, which has {has}{_unqueued(store)}")


def _tail_settings(
    store: options.Store,
    output: options.ReadOutput = None,
    broker_conf: options.BrokerConf = None,
    commitlog_file_size: options.CommitLogFileSize = None,
    consume_queue_file_size: options.ConsumeQueueFileSize = None,
    follow: Follow = False,
) -> StoreSettings:
    read = options.awaited_settings if follow else options.output_settings
    return read(store, output, broker_conf, commitlog_file_size, consume_queue_file_size)


@printed_lines
@options.with_options(settings=_tail_settings, body=messages.bodies)
def tail(
    store: options.Store,
    settings: StoreSettings,
    topic: options.Topic,
    count: Annotated[
        int, options.value("N", "How many of the last messages to show.", "--count", "-n", min=0)
    ] = 10,
    from_time: Annotated[
        str | None, options.time_value("Show all messages since then instead")
    ] = None,
    follow: Follow = False,
    tag: Annotated[
        str | None, options.value("TAGS", "Show only messages with one of these tags: `A || B`.")
    ] = None,
    sql: Annotated[
        str | None,
        options.value("SQL92", "Show only messages whose properties fulfil this SQL92 expression."),
    ] = None,
    group: Annotated[
        str | None,
        options.value(
            "GROUP",
            "Show only messages that fulfil the SQL92 expression of this consumer group; bit maps "
            "are used as a broker does.",
        ),
    ] = None,
    output: options.ReadOutput = None,
    as_of: options.AsOf = None,
    fail_on_data_loss: options.FailOnDataLoss = False,
    body: Bodies = DEFAULT_BODIES,
) -> Iterator[Result]:
    """Show a topic's last messages in the order in which they were stored.

    Exit code 1 if there is none to show. With `--follow` it goes on until Ctrl-C or SIGTERM.
    """
    from reput.readers.tail import TopicTail  # noqa: PLC0415

    if follow and as_of is not None:
        raise UsageError("--follow waits for what arrives, and --as-of leaves it out; give one")
    since = options.optional_time_ms("--from-time", from_time)
    has_shown = False
    with (
        _opened(settings, output, as_of, fail_on_data_loss) as opened,
        render.stopped_by_signals() as stop,
    ):
        if (line := opened.note_coverage()) is not None:
            render.print_note(f"warning: {line}")
        if not opened.queue_ids(topic):
            missing = f"no queue of topic {topic} in {output or store}"
            if not follow:
                opened.check_topic(topic)
                raise NotFoundError(f"{missing}; --output names another place of the queues")
            render.print_note(f"{missing} yet; waiting for one")
        message_filter = _message_filter(opened, topic, tag, sql, group)
        topic_tail = TopicTail(opened, topic, message_filter)
        entries = topic_tail.last(count) if since is None else topic_tail.since(since)
        while True:
            has_shown |= yield from _results(entries, body, stop)
            opened.losses.say()
            if not follow or stop.wait(POLL_SECONDS):
                break
            entries = topic_tail.new()
    asked = count > 0 or since is not None
    if asked and not (has_shown or follow or stop.is_set()):
        raise NotFoundError(f"no message of topic {topic} to show")


@printed_lines
@options.with_options(settings=options.output_settings, body=messages.bodies)
def query(
    store: options.Store,
    settings: StoreSettings,
    topic: options.Topic,
    key: Annotated[str | None, options.value("KEY", "A key of the message.")] = None,
    unique_key: Annotated[
        str | None, options.value("ID", "The id that a client gave the message.")
    ] = None,
    begin: Annotated[str | None, options.time_value("Take messages stored then or later")] = None,
    end: Annotated[
        str | None, options.value("TIME", "Take messages stored then or earlier.")
    ] = None,
    most: Annotated[
        int | None,
        options.value(
            "N",
            "How many index entries to examine, the newest first; maxMsgsNumBatch if not "
            "given, as a broker does.",
            "--max",
            min=1,
        ),
    ] = None,
    output: options.ReadOutput = None,
    as_of: options.AsOf = None,
    fail_on_data_loss: options.FailOnDataLoss = False,
    body: Bodies = DEFAULT_BODIES,
) -> Iterator[Result]:
    """Show the newest messages with a key, which the index finds; exit code 1 if there is none.

    Without an index it looks at every message of the topic, and says so.
    """
    chosen_key = key if unique_key is None else unique_key
    if chosen_key is None or None not in (key, unique_key):
        raise UsageError("give --key or --unique-key, one of them")
    options.text(chosen_key)
    span = (
        options.optional_time_ms("--begin", begin) or 0,
        MAX_TIMESTAMP_MS if end is None else options.time_option_ms("--end", end),
    )
    with _opened(settings, output, as_of, fail_on_data_loss) as opened:
        has_shown = False
        for message in keyed_messages(
            opened, store, output, topic, chosen_key, span, most, is_unique=unique_key is not None
        ):
            yield messages.entry_result(message, message.queue_offset, body)
            has_shown = True
        if not has_shown:
            opened.check_topic(topic)
            raise NotFoundError(
                f"no message of topic {topic} with key {chosen_key} was found in {output or store}"
                f"{_unqueued(opened)}"
            )


def keyed_messages(
    opened: MessageStore,
    store: Path,
    output: Path | None,
    topic: str,
    key: str,
    span: tuple[int, int] = (0, MAX_TIMESTAMP_MS),
    most: int | None = None,
    *,
    is_unique: bool = False,
) -> Iterable[Message]:
    """Return the messages with a key, by physical offset; a note says what was not examined.

    Without an index every message of the topic is looked at, with a note.
    """
    root = output or store
    begin, end = span
    if opened.index.exists:
        result = opened.index.query(
            topic, key, max_count=most, begin_ms=begin, end_ms=end, is_limited=most is None
        )
        if result.has_more:
            render.print_note(
                f"the index in {root} has older entries with this key's hash, which were not "
                "examined; --max N examines more"
            )
        return result.with_key(topic, key, is_unique=is_unique)
    from reput.readers.keyscan import scan_for_key  # noqa: PLC0415

    bounds = [opened.queue(topic, each).bounds() for each in opened.queue_ids(topic)]
    count = sum(high - low for low, high in bounds)
    render.print_note(
        f"no index in {root}: looking at {texts.counted(count, 'message')} of topic {topic}; "
        f"{command_line('rebuild', store, output, '--only', 'index')} builds one"
    )
    return scan_for_key(opened, topic, key, is_unique=is_unique, begin_ms=begin, end_ms=end)


@printed_lines
@options.with_options(settings=options.output_settings)
def search_time(
    store: options.Store,
    settings: StoreSettings,
    topic: options.Topic,
    queue: options.Queue,
    time: Annotated[
        str,
        typer.Argument(
            help="A time: `2026-01-31T12:30Z`, `1h` (before now), or ms.", metavar="TIME"
        ),
    ],
    upper: Annotated[
        bool,
        options.flag("Show the last message stored then or earlier, not the first stored then or "
                     "later.", "--upper"),
    ] = False,
    output: options.ReadOutput = None,
    as_of: options.AsOf = None,
) -> Result:  # fmt: skip
    """Find the queue offset of a time; exit code 1 if there is no such queue."""
    from reput.store.queue.consumequeue import BoundaryType  # noqa: PLC0415

    time_ms = options.time_option_ms("TIME", time)
    boundary = BoundaryType.UPPER if upper else BoundaryType.LOWER
    with _opened(settings, output, as_of) as opened:
        _check_queue(opened, topic, queue, output or store)
        if (line := opened.note_coverage()) is not None:
            render.print_note(f"warning: {line}")
        reader = opened.queue(topic, queue)
        offset = reader.offset_by_time(time_ms, boundary)
        stored = reader.store_time(offset)
    fields = {"topic": topic, "queue_id": queue, "queue_offset": offset}
    # -1 beyond the last message
    shown = texts.time_text(stored) if stored >= 0 else "none stored yet"
    table = Table(topic, ("queue", "offset", "stored"), [(queue, offset, shown)])
    return Result({**fields, "store_timestamp": stored if stored >= 0 else None}, [table])


def _opened(
    settings: StoreSettings,
    output: Path | None,
    as_of: str | None,
    fail_on_data_loss: bool = False,
) -> MessageStore:
    from reput.readers.messagestore import MessageStore  # noqa: PLC0415

    moment = moments.as_of("--as-of", as_of, settings, output or settings.root)
    return MessageStore(
        settings.root, output=output, settings=settings, as_of=moment,
        fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip


def _message_filter(
    store: MessageStore, topic: str, tag: str | None, sql: str | None, group: str | None
) -> MessageFilter | None:
    """Raises UsageError for more than one filter, and for an expression that RocketMQ refuses."""
    from reput.readers.messagefilter import MessageFilter  # noqa: PLC0415

    if (tag, sql, group).count(None) < 2:
        raise UsageError("give one of --tag, --sql and --group: a subscription has one of them")
    if group is not None:
        message_filter = store.consumer_filter(topic, options.text(group))
        if message_filter is None:
            raise NotFoundError(
                f"no expression of consumer group {group} for topic {topic} in the store's "
                f"{CONSUMER_FILTER_FILE}"
            )
        return message_filter
    try:
        if sql is not None:
            return MessageFilter.by_sql(options.text(sql))
        return None if tag is None else MessageFilter.by_tags(options.text(tag))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _results(
    entries: Iterator[QueueMessage], body: Bodies, stop: Event
) -> Generator[Result, None, bool]:
    """Yield messages in portions, so that a signal ends it soon; return whether there were any."""
    has_shown = False
    while not stop.is_set() and (portion := list(islice(entries, PRINTED_AT_ONCE))):
        for entry in portion:
            if entry.message is not None:
                yield messages.entry_result(entry.message, entry.queue_offset, body)
                has_shown = True
        if bad := [entry for entry in portion if entry.message is None]:
            first, more = bad[0], f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            render.print_note(
                f"lost or damaged record at physical offset {first.physical_offset}, queue "
                f"{first.queue_id} offset {first.queue_offset}{more}"
            )
    return has_shown
