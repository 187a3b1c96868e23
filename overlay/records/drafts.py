"""A message on its way into the log: what all of RocketMQ's writing paths have in common.

A draft holds the properties twice, as RocketMQ's ``MessageExtBrokerInner`` does: as a map, from
which decisions are made, and as the text that is stored. A path that changes the map after it made
the text does not change the record, unless the message turns out to have to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reput.overlay.records import properties as names
from reput.overlay.records.properties import JavaProperties
from reput.overlay.records.release import Refusal, Writer
from reput.store.errors import RefusedMessageError
from reput.store.log import java, properties, record, systemtopics
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag

TIMER_TOPIC: Final = systemtopics.TIMER_TOPIC.encode()
HALF_TOPIC: Final = systemtopics.HALF_TOPIC.encode()

MAX_PROPERTIES_LENGTH = 32767
"""Bytes of a text: its length is a signed short."""
TIMER_PRECISION_MS = 1000
"""``timerPrecisionMs``."""
_TIMER_REQUESTS = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
"""By which a producer asks for a time, the first one that is there counting."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A message that is being made."""

    topic: bytes
    queue_id: int
    properties: JavaProperties
    text: bytes = b""
    body: bytes
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int
    born_host: tuple[str, int]
    reconsume_times: int = 0
    source: int = 0
    """The record that it is made from, stored as preparedTransactionOffset; 0 for nothing."""

    @property
    def delay_level(self) -> int:
        """DELAY; 0 where it is none. A broker would answer a DELAY that is no number with an error,
        and never let go of a message that has one."""
        return java.parse_integer(self.properties.get(properties.DELAY) or b"", 32) or 0

    def render_text(self, writer: Writer) -> None:
        """Make the text anew, from the map."""
        self.text = self.properties.text(ends_with_separator=writer.release.ends_with_separator)

    def redirect(self, topic: bytes, queue_id: int) -> None:
        """Send it to a topic of RocketMQ's own; it remembers where it belongs."""
        self.properties.put(names.REAL_TOPIC, self.topic)
        self.properties.put(names.REAL_QUEUE_ID, str(self.queue_id).encode())
        self.topic, self.queue_id = topic, queue_id

    def return_home(self, place: str) -> None:
        """Send it to the topic and queue where it belongs, as ``redirect`` noted them.

        ``place`` says where the message lies. Raises RefusedMessageError if there is no such note.
        """
        topic = self.properties.get(names.REAL_TOPIC)
        queue_id = java.parse_integer(self.properties.get(names.REAL_QUEUE_ID) or b"", 32)
        if topic is None or queue_id is None or queue_id < 0:
            raise RefusedMessageError(
                Refusal.SYSTEM_ERROR,
                f"{place} does not say to which queue it belongs; it is left out",
            )
        self.topic, self.queue_id = topic, queue_id

    def put(self, writer: Writer, now_ms: int) -> Record:
        """The record, of a message that may have to wait first.

        Raises RefusedMessageError, as ``schedule`` and ``as_record`` do.
        """
        schedule(self, writer, now_ms)
        return self.as_record(writer)

    def as_record(self, writer: Writer) -> Record:
        """The record as it stands: the log sets its offsets and its store time.

        Raises RefusedMessageError if the text does not fit into a record.
        """
        if len(self.text) > MAX_PROPERTIES_LENGTH:
            raise RefusedMessageError(
                Refusal.MESSAGE_ILLEGAL,
                f"the properties have {len(self.text)} bytes, {MAX_PROPERTIES_LENGTH} fit into a "
                "record: send fewer or shorter ones",
            )
        return Record(
            topic=self.topic,
            body=self.body,
            properties=self.text,
            queue_id=self.queue_id,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            store_host=writer.host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.source,
            magic=record.magic_for(self.topic),
            property_map=properties.parse(self.text),
        )


def draft_of(copy: Record, writer: Writer, source: int) -> Draft:
    """A draft that is like a copy, with the text as the writer's release would write it."""
    draft = Draft(
        topic=copy.topic,
        queue_id=copy.queue_id,
        properties=JavaProperties.parse(copy.properties, writer.release.properties_capacity),
        body=copy.body,
        flag=copy.flag,
        sys_flag=copy.sys_flag,
        born_timestamp=copy.born_timestamp,
        born_host=copy.born_host,
        reconsume_times=copy.reconsume_times,
        source=source,
    )
    draft.render_text(writer)
    return draft


def schedule(draft: Draft, writer: Writer, now_ms: int) -> None:
    """Let a message wait that has a delay level or asks for a time, in the topic for that.

    ``HookUtils.handleScheduleMessage``; in 4.9 ``CommitLog.asyncPutMessage``. Every put passes
    here, but for the messages of a batch. Raises RefusedMessageError for a time that cannot be.
    """
    if draft.sys_flag & SysFlag.TRANSACTION_MASK not in (0, SysFlag.COMMIT):
        return
    level = draft.delay_level
    if writer.release.has_timers and draft.topic != TIMER_TOPIC:
        if level > 0:
            for name in _TIMER_REQUESTS:
                draft.properties.remove(name)
        elif draft.properties.get(names.TIMER_OUT_MS) is None:
            _await_time(draft, writer, now_ms)
    if level > 0:
        if level > writer.max_delay_level:
            level = writer.max_delay_level
            draft.properties.put(properties.DELAY, str(level).encode())
        draft.redirect(record.SCHEDULE_TOPIC, level - 1)
        draft.render_text(writer)


def _await_time(draft: Draft, writer: Writer, now_ms: int) -> None:
    """``HookUtils.transformTimerMessage``: a time that has come is no reason to wait."""
    due_ms = _asked_time(draft, now_ms)
    if due_ms is None:
        return
    if due_ms <= now_ms:
        if draft.properties.get(names.TIMER_DELETED_KEY) is not None:
            raise RefusedMessageError(
                Refusal.MESSAGE_ILLEGAL, "what is recalled has been delivered: recall it earlier"
            )
        return
    if due_ms - now_ms > writer.max_timer_delay_ms:
        raise RefusedMessageError(
            Refusal.MESSAGE_ILLEGAL,
            f"a message may wait for {writer.max_timer_delay_ms} ms, not {due_ms - now_ms}: "
            "ask for an earlier time",
        )
    out_ms = (due_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    draft.properties.put(names.TIMER_OUT_MS, str(out_ms).encode())
    draft.redirect(TIMER_TOPIC, 0)
    draft.render_text(writer)


def _asked_time(draft: Draft, now_ms: int) -> int | None:
    """When a message wants to be delivered, in ms; None if it does not say."""
    for name in _TIMER_REQUESTS:
        value = draft.properties.get(name)
        if value is None:
            continue
        number = java.parse_integer(value, 64)
        if number is None:
            raise RefusedMessageError(
                Refusal.MESSAGE_ILLEGAL,
                f"{name.decode()} is {java.decode(value)!r:.40}: it must be a number",
            )
        if name == names.TIMER_DELIVER_MS:
            return number
        return now_ms + number * (1000 if name == names.TIMER_DELAY_SEC else 1)
    return None
