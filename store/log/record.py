"""The CommitLog record: its layout, the plain decoder that is the reference, and the encoder.

B and S are the lengths of the born and the store host: 8, or 20 where sysFlag says IPv6.

OFFSET  SIZE  FIELD
     0     4  totalSize, of the whole record
     4     4  magic: v1 0xDAA320A7, v2 0xDAA320AB, BLANK 0xCBD43194
     8     4  bodyCRC: CRC-32 & 0x7FFFFFFF of the body as stored
    12     4  queueId
    16     4  flag, the user's
    20     8  queueOffset; 0 in PREPARED and ROLLBACK records
    28     8  physicalOffset: log offset of the record's first byte
    36     4  sysFlag
    40     8  bornTimestamp, ms
    48     B  bornHost: address bytes, then the port in 4 bytes
  48+B     8  storeTimestamp, ms
  56+B     S  storeHost
56+B+S     4  reconsumeTimes
60+B+S     8  preparedTransactionOffset
68+B+S     4  bodyLength
72+B+S     n  body
           1  topicLength, signed; 2 bytes in v2
           n  topic, UTF-8
           2  propertiesLength, signed
           n  properties
Everything is big-endian and signed. Source: RocketMQ 5.3.3 ``MessageExtEncoder``,
``MessageDecoder``, ``CommitLog.checkMessageAndReturnSize``; formats.md §2 and §3.

The decoder is total: any bytes give a Record or an Outcome, never an exception. It is stricter
than RocketMQ's reput, which does not check these: the physical offset must equal the position,
and a BLANK must reach the end of its file.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from reput.store.log import java, properties
from reput.store.log.layout import field_positions
from reput.store.log.status import Outcome, Status
from reput.store.log.sysflag import SysFlag

MESSAGE_MAGIC_V1 = 0xDAA320A7
MESSAGE_MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194

_HEAD = struct.Struct(">iIiiiqqiq")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
_SIZE_MAGIC = struct.Struct(">iI")
_SHORT = struct.Struct(">h")
_PORT = struct.Struct(">i")


(
    _, MAGIC_POSITION, BODY_CRC_POSITION, QUEUE_ID_POSITION, FLAG_POSITION, QUEUE_OFFSET_POSITION,
    PHYSICAL_OFFSET_POSITION, SYS_FLAG_POSITION, BORN_TIMESTAMP_POSITION,
) = field_positions(_HEAD)  # fmt: skip
BORN_HOST_POSITION = _HEAD.size
STORE_TIMESTAMP_LENGTH = _LONG.size
RECONSUME_TIMES_IN_TAIL, PREPARED_OFFSET_IN_TAIL, BODY_LENGTH_IN_TAIL = field_positions(_TAIL)
"""Positions in the tail: the fixed fields from the store host to the body."""
TAIL_LENGTH = _TAIL.size
PROPERTIES_LENGTH_SIZE = _SHORT.size
SIZE_MAGIC_LENGTH = _SIZE_MAGIC.size
PORT_LENGTH = _PORT.size
HOSTS = 4096
"""Hosts whose text is kept: most records of a log have the same few."""
HOST_V4_LENGTH = 8
HOST_V6_LENGTH = 20
STORE_TIMESTAMP_END_MAX = BORN_HOST_POSITION + HOST_V6_LENGTH + _LONG.size
# the fixed part without hosts, and the bytes needed to decode the longest fixed part (IPv6 hosts)
FIXED_LENGTH = _HEAD.size + _LONG.size + _TAIL.size
MAX_FIXED_LENGTH = FIXED_LENGTH + 2 * HOST_V6_LENGTH
MIN_RECORD_LENGTH = FIXED_LENGTH + 2 * HOST_V4_LENGTH + 1 + _SHORT.size
END_FILE_MIN_BLANK_LENGTH = SIZE_MAGIC_LENGTH
if (BORN_HOST_POSITION, FIXED_LENGTH, MIN_RECORD_LENGTH) != (48, 72, 91):
    raise ImportError("the record layout does not add up to RocketMQ's calMsgLength")

# maxMessageSize is 4 MiB by default and is not checked on read; a length beyond this limit is
# treated as damage, so that no corrupt header makes us allocate a file's worth of memory
MAX_RECORD_LENGTH = 64 << 20

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
RETRY_GROUP_TOPIC_PREFIX = b"%RETRY%"
DLQ_GROUP_TOPIC_PREFIX = b"%DLQ%"
SYSTEM_TOPIC_PREFIX = b"rmq_sys_"
LMQ_PREFIX = b"%LMQ%"
# MessageStoreConfig.messageDelayLevel, in ms: levels 1..18
DEFAULT_DELAY_LEVELS_MS = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
)


class Frame(NamedTuple):
    """A whole record's parts, by their positions from its start, in bytes."""

    total_size: int
    store_timestamp: int
    body: int
    body_length: int
    topic: int
    topic_length: int
    properties: int


@dataclass(frozen=True, slots=True)
class Record:
    """One message as stored. Byte fields are exactly the log's; times are ms since the epoch."""

    topic: bytes
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    store_timestamp: int = 0
    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = MESSAGE_MAGIC_V1
    body_crc: int = 0
    """As stored; the encoder computes it."""
    total_size: int = 0
    """As stored; the encoder computes it."""
    property_map: dict[bytes, bytes] = field(default_factory=dict, compare=False)

    @property
    def transaction_type(self) -> int:
        """0, or SysFlag.PREPARED, COMMIT, ROLLBACK."""
        return self.sys_flag & SysFlag.TRANSACTION_MASK

    @property
    def dispatched_to_queue(self) -> bool:
        """Only NOT and COMMIT records enter a consume queue (formats.md §4)."""
        return self.transaction_type in (0, SysFlag.COMMIT)


def decode(
    data: bytes | memoryview,
    physical_offset: int,
    file_end: int,
    *,
    verify_crc: bool = False,
) -> Record | Outcome:
    """Decode the record at the start of ``data``, which is at ``physical_offset`` of the log.

    ``data`` may end anywhere; ``file_end`` is the physical offset at which its file ends
    (exclusive). With ``verify_crc`` the body must have its stored CRC.
    """
    view = memoryview(data)
    framed = frame(view, physical_offset, file_end)
    if isinstance(framed, Outcome):
        return framed
    record = _decode_framed(view, framed)
    if verify_crc and not body_crc_is_right(record):
        return Outcome(Status.BAD_BODY_CRC, record.total_size)
    if not _numbers_are_numbers(record):
        return Outcome(Status.BAD_PROPERTY, record.total_size)
    return record


def frame(view: memoryview, physical_offset: int, file_end: int) -> Frame | Outcome:
    """The parts of the record at the start of ``view``, if it is whole and its lengths add up; the
    arguments are ``decode``'s. The contents are not looked at."""
    remaining = file_end - physical_offset
    if remaining < END_FILE_MIN_BLANK_LENGTH:
        return Outcome(Status.BAD_FILE_END)
    if len(view) < SIZE_MAGIC_LENGTH:
        return Outcome(Status.NEED_MORE)
    total_size, magic = _SIZE_MAGIC.unpack_from(view)
    if magic == BLANK_MAGIC:
        return Outcome(Status.BLANK if total_size == remaining else Status.BAD_BLANK, total_size)
    if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2):
        empty = magic == 0 and total_size == 0
        return Outcome(Status.EMPTY if empty else Status.BAD_MAGIC, total_size)
    longest = min(remaining - END_FILE_MIN_BLANK_LENGTH, MAX_RECORD_LENGTH)
    if not MIN_RECORD_LENGTH <= total_size <= longest:
        return Outcome(Status.BAD_SIZE, total_size)
    if len(view) < PHYSICAL_OFFSET_POSITION + _LONG.size:
        return Outcome(Status.NEED_MORE, total_size)
    if _LONG.unpack_from(view, PHYSICAL_OFFSET_POSITION)[0] != physical_offset:
        return Outcome(Status.BAD_PHYSICAL_OFFSET, total_size)
    if len(view) < total_size:
        return Outcome(Status.NEED_MORE, total_size)
    bad_length = Outcome(Status.BAD_LENGTH, total_size)
    (sys_flag,) = _INT.unpack_from(view, SYS_FLAG_POSITION)
    born_length = HOST_V6_LENGTH if sys_flag & SysFlag.BORN_HOST_V6 else HOST_V4_LENGTH
    store_length = HOST_V6_LENGTH if sys_flag & SysFlag.STORE_HOST_V6 else HOST_V4_LENGTH
    topic_length_size = _topic_length_size(magic)
    body = FIXED_LENGTH + born_length + store_length
    if body + topic_length_size + _SHORT.size > total_size:
        return bad_length
    (body_length,) = _INT.unpack_from(view, body - TAIL_LENGTH + BODY_LENGTH_IN_TAIL)
    topic = body + body_length
    if body_length < 0 or topic + topic_length_size + _SHORT.size > total_size:
        return bad_length
    topic_length = int.from_bytes(view[topic : topic + topic_length_size], "big", signed=True)
    topic += topic_length_size
    properties_position = topic + topic_length
    if topic_length < 0 or properties_position + _SHORT.size > total_size:
        return bad_length
    (properties_length,) = _SHORT.unpack_from(view, properties_position)
    properties_position += _SHORT.size
    if properties_length < 0 or properties_position + properties_length != total_size:
        return bad_length
    store_timestamp = BORN_HOST_POSITION + born_length
    return Frame(
        total_size, store_timestamp, body, body_length, topic, topic_length, properties_position
    )


def hop_records(
    data: Any,
    length: int,
    base: int,
    file_end: int,
    pos: int,
    stop: int,
    max_records: int,
    max_timestamp: int,
) -> tuple[int, int, int, int]:
    """The plain twin of ``store.log.kernels.hop_records``; ``data`` is any buffer of bytes."""
    view, count, last = memoryview(data)[:length], 0, -1
    while count < max_records and base + pos < stop:
        framed = frame(view[pos:], base + pos, file_end)
        if isinstance(framed, Outcome):
            return framed.status, pos, count, last
        (stored,) = _LONG.unpack_from(view, pos + framed.store_timestamp)
        if base + pos + framed.total_size > stop or stored > max_timestamp:
            break
        last = pos
        pos += framed.total_size
        count += 1
    return Status.OK, pos, count, last


def _decode_framed(view: memoryview, framed: Frame) -> Record:
    (_, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born) = (
        _HEAD.unpack_from(view)
    )
    total_size, stored, body, body_length, topic, topic_length, properties_position = framed
    (store_timestamp,) = _LONG.unpack_from(view, stored)
    tail = body - TAIL_LENGTH
    reconsume_times, prepared_offset, _ = _TAIL.unpack_from(view, tail)
    block = bytes(view[properties_position:total_size])
    return Record(
        topic=bytes(view[topic : topic + topic_length]),
        body=bytes(view[body : body + body_length]),
        properties=block,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=decode_host(bytes(view[BORN_HOST_POSITION:stored])),
        store_timestamp=store_timestamp,
        store_host=decode_host(bytes(view[stored + _LONG.size : tail])),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        magic=magic,
        body_crc=body_crc,
        total_size=total_size,
        property_map=properties.parse(block),
    )


@lru_cache(maxsize=HOSTS)
def decode_host(data: bytes) -> tuple[str, int]:
    """Address and port of 8 or 20 stored bytes."""
    address = ipaddress.ip_address(data[:-PORT_LENGTH])
    return str(address), _PORT.unpack(data[-PORT_LENGTH:])[0]


@lru_cache(maxsize=HOSTS)
def encode_host(host: tuple[str, int]) -> bytes:
    """Address bytes and port: 8 bytes for IPv4, 20 for IPv6."""
    return ipaddress.ip_address(host[0]).packed + _PORT.pack(host[1])


def host_text(host: tuple[str, int]) -> str:
    """``address:port``, an IPv6 address in brackets."""
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def fields_for_json(record: Record) -> dict[str, Any]:
    """All fields of a record except its properties and body."""
    return {
        "topic": java.decode(record.topic),
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.total_size,
        "born_timestamp": record.born_timestamp,
        "store_timestamp": record.store_timestamp,
        "born_host": host_text(record.born_host),
        "store_host": host_text(record.store_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
    }


def _numbers_are_numbers(record: Record) -> bool:
    """Whether RocketMQ's number parsing of this record's properties would not throw."""
    values = record.property_map
    delay = values.get(properties.DELAY)
    if record.topic == SCHEDULE_TOPIC and delay and java.parse_integer(delay, 32) is None:
        return False
    if properties.INNER_NUM in values and properties.INNER_BASE in values:
        return (
            java.parse_integer(values[properties.INNER_NUM], 16) is not None
            and java.parse_integer(values[properties.INNER_BASE], 64) is not None
        )
    return True


def store_timestamp(head: bytes) -> int:
    """ms, of the first STORE_TIMESTAMP_END_MAX bytes of a record."""
    is_v6 = int.from_bytes(head[SYS_FLAG_POSITION:BORN_TIMESTAMP_POSITION]) & SysFlag.BORN_HOST_V6
    length = HOST_V6_LENGTH if is_v6 else HOST_V4_LENGTH
    timestamp: int = _LONG.unpack_from(head, BORN_HOST_POSITION + length)[0]
    return timestamp


def body_crc(body: bytes | memoryview) -> int:
    """CRC-32 & 0x7FFFFFFF (``UtilAll.crc32``); 0 for an empty body."""
    return zlib.crc32(body) & 0x7FFFFFFF


def body_crc_is_right(record: Record) -> bool:
    """Whether the body CRC passes RocketMQ's recovery; an empty body has nothing to check."""
    return not record.body or record.body_crc == body_crc(record.body)


def looks_written(view: memoryview, framed: Frame) -> bool:
    """Whether the end of each text has been written, as far as the record shows: its body has the
    CRC that recovery checks; topic and properties have none, and end in zeros while they are torn.
    """
    body = view[framed.body : framed.body + framed.body_length]
    (stored,) = _INT.unpack_from(view, BODY_CRC_POSITION)
    if body and stored != body_crc(body):
        return False
    ends = framed.topic + framed.topic_length, framed.total_size
    starts = framed.topic, framed.properties
    return all(start == end or view[end - 1] for start, end in zip(starts, ends, strict=True))


def has_zeros(view: memoryview, framed: Frame) -> bool:
    """Whether zeros are within topic or properties: hardly any text has them, and an unwritten part
    does."""
    topic = view[framed.topic : framed.topic + framed.topic_length]
    return b"\0" in bytes(topic) or b"\0" in bytes(view[framed.properties : framed.total_size])


def tags_code(record: Record, delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS) -> int:
    """The i64 that is stored in the consume queue (``CommitLog.checkMessageAndReturnSize``).

    It is the hash of the whole TAGS value, or for a delayed message the time at which it is due.
    """
    tags = record.property_map.get(properties.TAGS)
    code = java.hash_code(tags) if tags else 0
    delay = record.property_map.get(properties.DELAY)
    if record.topic == SCHEDULE_TOPIC and delay is not None:
        level = min(java.parse_integer(delay, 32) or 0, len(delay_levels_ms))
        if level > 0:
            code = record.store_timestamp + delay_levels_ms[level - 1]
    return (code + (1 << 63)) % (1 << 64) - (1 << 63)  # Java's long wraps


def magic_for(topic: bytes) -> int:
    """v2 if the topic exceeds v1's signed length byte (``autoMessageVersionOnTopicLen``)."""
    return MESSAGE_MAGIC_V2 if len(topic) > 127 else MESSAGE_MAGIC_V1


def encode(record: Record, *, property_crc: bool = False) -> bytes:
    """Encode a record for its ``physical_offset``; sizes and body CRC are computed.

    IPv6 hosts set their sysFlag bits. With ``property_crc`` the property block gets its tail.
    Raises ValueError if a length does not fit its field.
    """
    if property_crc:
        block = record.properties
        if block and not block.endswith(properties.PROPERTY_SEPARATOR):
            block += properties.PROPERTY_SEPARATOR
        tail = bytes(properties.PROPERTY_CRC_SIZE)
        data = encode(replace(record, properties=block + tail))[: -len(tail)]
        return data + properties.property_crc_tail(data)
    born_host, store_host = encode_host(record.born_host), encode_host(record.store_host)
    topic_length_size = _topic_length_size(record.magic)
    if len(record.topic) >= 1 << (8 * topic_length_size - 1) or len(record.properties) > 32767:
        raise ValueError("topic or properties exceed their length field")
    parts = (
        born_host,
        _LONG.pack(record.store_timestamp),
        store_host,
        _TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body)),
        record.body,
        len(record.topic).to_bytes(topic_length_size, "big"),
        record.topic,
        _SHORT.pack(len(record.properties)),
        record.properties,
    )
    head = _HEAD.pack(
        stored_size(record, record.magic),
        record.magic,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        stored_sys_flag(record),
        record.born_timestamp,
    )
    return b"".join((head, *parts))


def stored_size(record: Record, magic: int) -> int:
    """Bytes of a record that is stored with a magic, without a tail of its properties
    (``CommitLog.calMsgLength``)."""
    hosts = len(encode_host(record.born_host)) + len(encode_host(record.store_host))
    topic = _topic_length_size(magic) + len(record.topic)
    return FIXED_LENGTH + hosts + len(record.body) + topic + _SHORT.size + len(record.properties)


def _topic_length_size(magic: int) -> int:
    return 2 if magic == MESSAGE_MAGIC_V2 else 1


def stored_sys_flag(record: Record) -> int:
    """The flag with the bits of the hosts' addresses."""
    sys_flag = record.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    if len(encode_host(record.born_host)) == HOST_V6_LENGTH:
        sys_flag |= SysFlag.BORN_HOST_V6
    if len(encode_host(record.store_host)) == HOST_V6_LENGTH:
        sys_flag |= SysFlag.STORE_HOST_V6
    return sys_flag


def encode_blank(remaining: int) -> bytes:
    """The eight bytes that end a file in which ``remaining`` bytes are left."""
    return _SIZE_MAGIC.pack(remaining, BLANK_MAGIC)
