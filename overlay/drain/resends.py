"""Sends dead letters to their groups once more, by records in their retry topics.

The record has no attempts, and names the dead letter as its source, so that one append is both the
effect and the note of it: however often the command is killed, a dead letter is sent again once.
"""

from __future__ import annotations

from collections.abc import Sequence

from reput.overlay.drain.contents import Contents, Entry
from reput.overlay.drain.drain import LEFT_OUT
from reput.overlay.drain.drainjournal import check_not_drained
from reput.overlay.pipeline import Pipeline
from reput.overlay.records.drafts import draft_of
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.overlay.records.sources import Source
from reput.store.log import properties, record
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record

APPENDED_AT_ONCE = 256
"""Dead letters whose records have one sync."""


def resent(letter: Record) -> Record:
    """The record by which a group gets a dead letter again, as a message that has not failed yet.

    A client's send to the retry topic would have the same form. Raises RefusedMessageError.
    """
    writer = Writer(RELEASE_5_3_3, letter.store_host)
    source = Source(is_base=False, physical_offset=letter.physical_offset)
    draft = draft_of(letter, writer, source.field)
    for name in (*LEFT_OUT, properties.DELAY):
        draft.properties.remove(name)
    draft.render_text(writer)
    group = letter.topic.removeprefix(record.DLQ_GROUP_TOPIC_PREFIX)
    draft.topic = record.RETRY_GROUP_TOPIC_PREFIX + group
    draft.queue_id = draft.reconsume_times = 0
    return draft.as_record(writer)


def resend(contents: Contents, letters: Sequence[Entry]) -> None:
    """Append what sends dead letters again to their overlay, durably, and dispatch it. Raises
    OwnershipError while a server runs on the overlay, UsageError where a broker has its messages,
    StoreError."""
    check_not_drained(contents.root)
    with LogAppender(contents.root) as appender:
        for start in range(0, len(letters), APPENDED_AT_ONCE):
            portion = letters[start : start + APPENDED_AT_ONCE]
            appender.append_all([resent(contents.record(letter)) for letter in portion])
            appender.sync()
        with Pipeline(contents.root) as pipeline:
            pipeline.advance(appender.end_offset)
