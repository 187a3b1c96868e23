"""Records of transactions: half messages, and their ends.

A half is a message of a transaction that is neither committed nor rolled back. The functions are
pure, as those of ``overlay.records.copies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reput.overlay.records import properties as names
from reput.overlay.records.drafts import HALF_TOPIC, Draft, draft_of
from reput.overlay.records.properties import JavaProperties
from reput.overlay.records.release import Writer
from reput.store.log import properties, systemtopics
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag

OP_TOPIC: Final = systemtopics.OP_TOPIC.encode()
DISCARDED_TOPIC = b"TRANS_CHECK_MAX_TIME_TOPIC"
_OP_TAG = b"d"


def make_half(draft: Draft, writer: Writer) -> None:
    """Turn a sent message into a half (``TransactionalMessageBridge.parseHalfMessageInner``)."""
    unique_key = draft.properties.get(properties.UNIQ_KEY)
    if writer.release.half_has_transaction_id and unique_key:
        draft.properties.put(names.TRANSACTION_ID, unique_key)
    draft.sys_flag &= ~SysFlag.TRANSACTION_MASK
    draft.redirect(HALF_TOPIC, 0)
    draft.render_text(writer)


def committed(half: Record, writer: Writer, *, source: int, now_ms: int) -> Record:
    """The message of a transaction that its producer commits.

    ``EndTransactionProcessor.endMessageTransaction``. A broker's source is the half's position.
    Raises RefusedMessageError if the half does not say where it belongs, or may not wait as long as
    it asks.
    """
    draft = draft_of(half, writer, source)
    draft.return_home(f"the half message at {half.physical_offset}")
    draft.sys_flag = draft.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.COMMIT
    draft.properties.remove(names.REAL_TOPIC)
    draft.properties.remove(names.REAL_QUEUE_ID)
    if not writer.release.commit_keeps_real_topic:
        draft.render_text(writer)
    return draft.put(writer, now_ms)


def op(
    queue_offsets: Sequence[int], queue_id: int, writer: Writer, *, source: int, now_ms: int
) -> Record:
    """The note that transactions have ended, by the queue offsets of their halves, which lie in one
    queue. A rollback writes nothing else.

    ``TransactionalMessageBridge.makeOpMessageInner``, and 5.x
    ``TransactionalMessageServiceImpl.getOpMessage``. Raises ValueError for several offsets in a
    release whose ops name one.
    """
    if writer.release.batches_ends:
        body = "".join(f"{offset}," for offset in queue_offsets)
    else:
        (offset,) = queue_offsets
        body = str(offset)
    values = JavaProperties()
    values.put(properties.TAGS, _OP_TAG)
    values.put(names.WAIT, b"true")
    draft = Draft(
        topic=OP_TOPIC,
        queue_id=queue_id,
        properties=values,
        body=body.encode(),
        born_timestamp=now_ms,
        born_host=writer.host,
        source=source,
    )
    draft.render_text(writer)
    return draft.as_record(writer)


def discarded(half: Record, writer: Writer, *, source: int, now_ms: int) -> Record:
    """A half whose producer was asked often enough, where no consumer looks for it.

    ``DefaultTransactionalMessageCheckListener.toMessageExtBrokerInner``. Raises RefusedMessageError
    if it may not wait as long as it asks.
    """
    draft = draft_of(half, writer, source)
    draft.topic, draft.queue_id = DISCARDED_TOPIC, 0
    # the text is made already: only one that has to wait shows this
    draft.properties.put(names.WAIT, b"false")
    return draft.put(writer, now_ms)
