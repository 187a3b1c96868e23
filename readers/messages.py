"""A message as a consumer sees it: decoded names, a plain body, the messages of an inner batch.

Bodies are inflated and inner batches unwrapped only on demand.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from reput.store.errors import MessageBodyError, UsageError
from reput.store.log import java, properties, record
from reput.store.log.compression import compression, inflate
from reput.store.log.innerbatch import inner_messages, inner_sys_flag, is_inner_batch
from reput.store.log.record import Record

DEFAULT_MAX_BODY_BYTES = record.MAX_RECORD_LENGTH

_MESSAGE_ID = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Message:
    """One message; fields that are not decoded here are in ``record``."""

    record: Record
    """The record as stored. A message from an inner batch has the batch's record, but its own flag,
    queue offset, properties and body."""
    topic: str
    properties: dict[str, str]
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """Upper limit of an inflated body."""

    @classmethod
    def of(cls, log_record: Record, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> Message:
        """The message of a decoded record."""
        values = properties.as_texts(log_record.property_map)
        return cls(log_record, java.decode(log_record.topic), values, max_body_bytes)

    @property
    def queue_id(self) -> int:
        """Id of the message's own queue, also if a light queue led to it."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """Queue offset as stored; after a jump of queue offsets it is not the queue's index."""
        return self.record.queue_offset

    @property
    def physical_offset(self) -> int:
        """Physical offset of the record; messages of one inner batch share it."""
        return self.record.physical_offset

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return self.record.total_size

    @property
    def born_timestamp(self) -> int:
        """ms."""
        return self.record.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """ms."""
        return self.record.store_timestamp

    @property
    def tags(self) -> str | None:
        """The whole TAGS value."""
        return self.properties.get(properties.TAGS.decode())

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in KEYS."""
        keys = self.properties.get(properties.KEYS.decode(), "")
        return tuple(filter(None, keys.split(properties.KEY_SEPARATOR.decode())))

    @property
    def unique_key(self) -> str | None:
        """UNIQ_KEY, which clients show as the message's id."""
        return self.properties.get(properties.UNIQ_KEY.decode())

    def has_key(self, topic: str, key: str, is_unique: bool) -> bool:
        """Whether this is a message of ``topic`` with ``key`` among its keys, or as unique key."""
        is_key = key == self.unique_key if is_unique else key in self.keys
        return is_key and self.topic == topic

    @property
    def offset_message_id(self) -> str:
        """Store host and physical offset: the id that a broker assigns."""
        host = record.encode_host(self.record.store_host)
        return (host + _MESSAGE_ID.pack(self.physical_offset)).hex().upper()

    def body(self) -> bytes:
        """The inflated body.

        Raises MessageBodyError if inflating fails or needs more than ``max_body_bytes``.
        """
        codec = compression(self.record.sys_flag)
        if codec is None:
            return self.record.body
        plain = inflate(self.record.body, codec, self.max_body_bytes)
        if plain is None:
            raise MessageBodyError(
                f"the body of the message at physical offset {self.physical_offset} ({codec}, "
                f"{len(self.record.body)} bytes) cannot be inflated within "
                f"{self.max_body_bytes} bytes; raise the limit, or take the body as stored",
                physical_offset=self.physical_offset,
            )
        return plain

    def unwrap(self) -> list[Message]:
        """The messages of an inner batch, or just this message. Raises MessageBodyError."""
        if not is_inner_batch(self.record.sys_flag):
            return [self]
        inner = inner_messages(self.body())
        if inner is None:
            raise MessageBodyError(
                f"the body of the message at physical offset {self.physical_offset} is not an "
                "inner batch, though its sysFlag marks one; take the body as stored",
                physical_offset=self.physical_offset,
            )
        return [self._inner(index, *parts) for index, parts in enumerate(inner)]

    def _inner(self, index: int, flag: int, body: bytes, block: bytes) -> Message:
        inner_record = replace(
            self.record,
            flag=flag,
            body=body,
            properties=block,
            property_map=properties.parse(block),
            queue_offset=self.queue_offset + index,
            sys_flag=inner_sys_flag(self.record.sys_flag),
        )
        return Message.of(inner_record, self.max_body_bytes)


def decode_message_id(message_id: str) -> tuple[tuple[str, int], int] | None:
    """(store host, physical offset) of an ``offset_message_id``; None for any other text."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        return None
    host = data[: -_MESSAGE_ID.size]
    if len(host) not in (record.HOST_V4_LENGTH, record.HOST_V6_LENGTH):
        return None
    return record.decode_host(host), _MESSAGE_ID.unpack(data[len(host) :])[0]


def message_place(offset_message_id: str) -> tuple[tuple[str, int], int]:
    """Return (store host, physical offset) of the id that a broker assigned to a message.

    Raises UsageError if the text is not such an id.
    """
    decoded = decode_message_id(offset_message_id)
    if decoded is None:
        raise UsageError(
            f"{offset_message_id!r} is not an offset message id, which has 32 or 56 "
            "hexadecimal digits; query an id that a client made by unique key"
        )
    return decoded


@dataclass(frozen=True, slots=True)
class QueryMessageResult:
    """Result of a query by key (``QueryMessageResult``)."""

    messages: list[Message]
    """Each once, by physical offset."""
    index_last_update_timestamp: int
    """When the last message of the index was stored, ms; 0 without an index."""
    index_last_update_phyoffset: int
    has_more: bool
    """Whether the index has further, older entries with the key's hash in the span."""

    def with_key(self, topic: str, key: str, *, is_unique: bool = False) -> list[Message]:
        """The messages of ``topic`` that have ``key`` among their keys, or as unique key: a
        client's choice."""
        return [message for message in self.messages if message.has_key(topic, key, is_unique)]
