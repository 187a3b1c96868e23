r"""A message's properties in the order in which RocketMQ writes them: that of Java's HashMap.

Nothing reads the order. It is kept so that our records can be compared with a broker's as bytes.

A name's bucket is ``(h ^ h >>> 16) & (n - 1)``, h being its ``String.hashCode`` and n the number of
buckets; the map is read bucket by bucket, and within one in the order of insertion. A name that is
put again keeps its place, one that was removed goes to the end of its bucket. n doubles once more
than three quarters of it are names, and, below 64, once a bucket gets its ninth name; it never
shrinks. Source: JDK 17 ``HashMap``, RocketMQ 5.3.3 ``MessageDecoder.string2messageProperties`` and
``messageProperties2String``.

From 64 buckets on, Java makes a tree of a bucket with nine names and moves the tree's root to the
front. That takes names which were chosen for it, and is not followed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from reput.store.log import java, properties

REAL_TOPIC = b"REAL_TOPIC"
REAL_QUEUE_ID = b"REAL_QID"
RETRY_TOPIC = b"RETRY_TOPIC"
ORIGIN_MESSAGE_ID = b"ORIGIN_MESSAGE_ID"
WAIT = b"WAIT"
CLUSTER = b"CLUSTER"
MSG_REGION = b"MSG_REGION"
TRACE_ON = b"TRACE_ON"
POP_CHECKPOINT = b"POP_CK"
PRODUCER_GROUP = b"PGROUP"
TRANSACTION_PREPARED = b"TRAN_MSG"
TRANSACTION_ID = b"__transactionId__"
TRANSACTION_CHECK_TIMES = b"TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_SECONDS = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
BORN_TIMESTAMP = b"BORN_TIMESTAMP"
TRACE_CONTEXT = b"TRACE_CONTEXT"
TIMER_DELIVER_MS = b"TIMER_DELIVER_MS"
TIMER_DELAY_SEC = b"TIMER_DELAY_SEC"
TIMER_DELAY_MS = b"TIMER_DELAY_MS"
TIMER_OUT_MS = b"TIMER_OUT_MS"
TIMER_ENQUEUE_MS = b"TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = b"TIMER_DEQUEUE_MS"
TIMER_DELETED_KEY = b"TIMER_DEL_UNIQKEY"
TIMER_ROLL_TIMES = b"TIMER_ROLL_TIMES"

DEFAULT_CAPACITY = 16
"""Buckets of ``new HashMap<>()``: a message that RocketMQ builds without a text has them."""

_LARGEST_LOAD = 0.75
_LONGEST_BUCKET = 8
_TREE_CAPACITY = 64


class JavaProperties:
    """Names and values as ``HashMap<String, String>`` holds them; both are UTF-8."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """``capacity`` is the number of buckets at first, a power of two."""
        self._capacity = capacity
        self._values: dict[bytes, bytes] = {}

    @classmethod
    def parse(cls, text: bytes, capacity: int) -> JavaProperties:
        """The properties of a text: of equal names the last value counts, at the first one's place.

        Malformed UTF-8 is replaced as Java's decoder does it.
        """
        parsed = cls(capacity)
        values = properties.parse(java.decode(text).encode())
        if capacity >= _TREE_CAPACITY and len(values) <= _LARGEST_LOAD * capacity:
            parsed._values = values  # no number of names in a bucket changes it
            return parsed
        for name, value in values.items():
            parsed.put(name, value)
        return parsed

    def get(self, name: bytes) -> bytes | None:
        """The value of a name; None where there is none."""
        return self._values.get(name)

    def put(self, name: bytes, value: bytes) -> None:
        """Set a value."""
        is_new = name not in self._values
        self._values[name] = value
        if is_new:
            if self._capacity < _TREE_CAPACITY and self._bucket_length(name) > _LONGEST_BUCKET:
                self._capacity *= 2
            if len(self._values) > _LARGEST_LOAD * self._capacity:
                self._capacity *= 2

    def remove(self, name: bytes) -> None:
        """Remove a name, if it is there."""
        self._values.pop(name, None)

    def __iter__(self) -> Iterator[bytes]:
        """The names in the order of the text."""
        last = self._capacity - 1
        return iter(sorted(self._values, key=lambda name: _spread_hash(name) & last))

    def text(self, *, ends_with_separator: bool) -> bytes:
        r"""``name \x01 value \x02`` of every property, the last ``\x02`` if so wanted."""
        block = properties.format_block({name: self._values[name] for name in self})
        return block if ends_with_separator else block[: -len(properties.PROPERTY_SEPARATOR)]

    def _bucket_length(self, name: bytes) -> int:
        """How many names the bucket of this one has."""
        bucket = self._bucket(name)
        return sum(self._bucket(other) == bucket for other in self._values)

    def _bucket(self, name: bytes) -> int:
        return _spread_hash(name) & (self._capacity - 1)


@lru_cache(maxsize=4096)
def _spread_hash(name: bytes) -> int:
    """``HashMap.hash`` of a name, as an unsigned number."""
    code = java.hash_code(name) & 0xFFFFFFFF
    return code ^ code >> 16
