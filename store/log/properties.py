r"""Message properties: ``name \x01 value \x02`` repeated, without escaping (formats.md §2).

Parser: ``MessageDecoder.string2messageProperties`` of RocketMQ 5.3.3. A segment counts only if its
first ``\x01`` is neither its first nor its last character; further ``\x01`` stay in the value; the
last duplicate wins; everything else is silently skipped, as RocketMQ does.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from reput.store.log import java

NAME_VALUE_SEPARATOR = b"\x01"
PROPERTY_SEPARATOR = b"\x02"

TAGS = b"TAGS"
KEYS = b"KEYS"
UNIQ_KEY = b"UNIQ_KEY"
KEY_SEPARATOR = b" "
"""Separates the keys in KEYS."""
DELAY = b"DELAY"
INNER_NUM = b"INNER_NUM"
INNER_BASE = b"INNER_BASE"
INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = b"INNER_MULTI_QUEUE_OFFSET"

PROPERTY_CRC_NAME = b"__CRC32#"
PROPERTY_CRC_DIGITS = 10
PROPERTY_CRC_SIZE = len(PROPERTY_CRC_NAME) + 1 + PROPERTY_CRC_DIGITS + 1


def parse(block: bytes) -> dict[bytes, bytes]:
    """Properties of a block as raw bytes, in the order of their first appearance."""
    values: dict[bytes, bytes] = {}
    for segment in block.split(PROPERTY_SEPARATOR):
        name, separator, value = segment.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            values[name] = value
    return values


def as_texts(values: Mapping[bytes, bytes]) -> dict[str, str]:
    """Properties as text; if names become equal as text, the last value counts."""
    return {java.decode(name): java.decode(value) for name, value in values.items()}


def format_block(properties: Mapping[bytes, bytes]) -> bytes:
    """The block that 5.3.3 writes: every property ends with the separator."""
    return b"".join([b"%b\x01%b\x02" % item for item in properties.items()])


def property_crc_tail(record_without_tail: bytes) -> bytes:
    """The 20-byte ``__CRC32#`` tail over all preceding bytes: digits least significant first."""
    value = zlib.crc32(record_without_tail) & 0x7FFFFFFF
    digits = f"{value:0{PROPERTY_CRC_DIGITS}d}"[::-1].encode()
    return PROPERTY_CRC_NAME + NAME_VALUE_SEPARATOR + digits + PROPERTY_SEPARATOR
