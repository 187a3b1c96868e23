"""Java's string rules, which decide tag hashes and numbers in RocketMQ's files.

RocketMQ decodes bytes with ``new String(bytes, UTF_8)`` and hashes UTF-16 units. Python's decoder
replaces malformed bytes differently (one U+FFFD for each byte of an encoded lone surrogate, Java
one for all three), so equality needs Java's own rules: JDK 17 ``String.decodeUTF8_UTF16``.
"""

from __future__ import annotations

import re

REPLACEMENT = 0xFFFD
_DIGIT = re.compile(r"(?=[\x00-\uffff])\d")
_JAVA_INTEGER = re.compile(rb"([+-]?)0*([0-9]{1,19})\Z")


def utf16_units(data: bytes) -> list[int]:
    """UTF-16 code units of ``new String(data, UTF_8)``, malformed input replaced as JDK 17 does."""
    units: list[int] = []
    position, end = 0, len(data)
    while position < end:
        code_point, length = _decode_one(data, position, end)
        position += length
        if code_point > 0xFFFF:
            code_point -= 0x10000
            units.append(0xD800 | code_point >> 10)
            units.append(0xDC00 | code_point & 0x3FF)
        else:
            units.append(code_point)
    return units


def _is_continuation(data: bytes, position: int) -> bool:
    return data[position] & 0xC0 == 0x80


def _decode_one(data: bytes, position: int, end: int) -> tuple[int, int]:
    """(code point or U+FFFD, bytes consumed) at ``position``."""
    first = data[position]
    left = end - position
    if first < 0x80:
        return first, 1
    if 0xC2 <= first <= 0xDF:
        if left < 2:
            return REPLACEMENT, left
        if not _is_continuation(data, position + 1):
            return REPLACEMENT, 1
        return (first & 0x1F) << 6 | data[position + 1] & 0x3F, 2
    if 0xE0 <= first <= 0xEF:
        return _decode_three(data, position, left)
    if 0xF0 <= first <= 0xF7:
        return _decode_four(data, position, left)
    return REPLACEMENT, 1


def _decode_three(data: bytes, position: int, left: int) -> tuple[int, int]:
    first = data[position]
    if left < 2:
        return REPLACEMENT, left
    second_bad = (first == 0xE0 and data[position + 1] & 0xE0 == 0x80) or not _is_continuation(
        data, position + 1
    )
    if second_bad:
        return REPLACEMENT, 1
    if left < 3:
        return REPLACEMENT, left
    if not _is_continuation(data, position + 2):
        return REPLACEMENT, 2
    code_point = (first & 0xF) << 12 | (data[position + 1] & 0x3F) << 6 | data[position + 2] & 0x3F
    # an encoded lone surrogate is one replacement for its three bytes
    return (REPLACEMENT if 0xD800 <= code_point <= 0xDFFF else code_point), 3


def _decode_four(data: bytes, position: int, left: int) -> tuple[int, int]:
    first = data[position]
    if first > 0xF4:
        return REPLACEMENT, 1
    if left < 2:
        return REPLACEMENT, left
    second = data[position + 1]
    second_bad = (
        (first == 0xF0 and not 0x90 <= second <= 0xBF)
        or (first == 0xF4 and second & 0xF0 != 0x80)
        or second & 0xC0 != 0x80
    )
    if second_bad:
        return REPLACEMENT, 1
    if left < 3:
        return REPLACEMENT, left
    if not _is_continuation(data, position + 2):
        return REPLACEMENT, 2
    if left < 4:
        return REPLACEMENT, left
    if not _is_continuation(data, position + 3):
        return REPLACEMENT, 3
    code_point = (first & 7) << 18 | (second & 0x3F) << 12
    return code_point | (data[position + 2] & 0x3F) << 6 | data[position + 3] & 0x3F, 4


def decode(data: bytes) -> str:
    """``new String(data, UTF_8)`` as a Python string; it can always be encoded again."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        units = utf16_units(data)
        return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")


def hash_code(data: bytes) -> int:
    """``new String(data, UTF_8).hashCode()``: a signed 32-bit value."""
    value = 0
    for unit in utf16_units(data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def parse_integer(data: bytes, bits: int) -> int | None:
    """``Integer/Short/Long.parse*`` of ASCII digits; None where Java would throw.

    Java also takes other scripts' digits (``ascii_digits``); a broker writes none into its log,
    where we refuse them.
    """
    match = _JAVA_INTEGER.match(data)
    if match is None:
        return None
    value = int(match[1] + match[2])
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def ascii_digits(text: str) -> bytes:
    """A text with the digits of all scripts as ASCII digits, as ``Character.digit`` takes them: in
    UTF-16 units, and so none beyond U+FFFF."""
    return _DIGIT.sub(lambda match: str(int(match[0])), text).encode("utf-8", "surrogatepass")
