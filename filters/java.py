"""Java's rules for the strings that a filter meets: trim, hash, numbers.

RocketMQ converts property values with the JDK's ``Integer.valueOf``, ``Long.valueOf`` and
``Double.valueOf``. They accept other texts than Python's ``int`` and ``float``, and the difference
decides whether a filter matches. Source: JDK 17 ``Integer.parseInt``,
``FloatingDecimal.readJavaFormatString``.
"""

from __future__ import annotations

import math
import re
import struct
import unicodedata

_WHITE = "".join(map(chr, range(0x21)))
_USUAL_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")
_INTEGER = re.compile(r"[+-]?\d+\Z")
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\Z"
)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?\Z"
)
_DOUBLE = struct.Struct(">d")
_BITS = struct.Struct(">q")
_NAN_BITS = 0x7FF8000000000000


def trim(text: str) -> str:
    """``String.trim``: strip every character up to U+0020 from both ends."""
    return text.strip(_WHITE)


def hash_code(text: str) -> int:
    """``String.hashCode``: a signed 32-bit value over UTF-16 units."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def parse_integer(text: str, bits: int) -> int | None:
    """``Integer.valueOf`` (32) or ``Long.valueOf`` (64); None where Java would throw.

    Digits of every script are accepted, but Java reads UTF-16 units, so not those beyond U+FFFF.
    """
    if _USUAL_INTEGER.match(text):
        value = int(text)
    elif not _INTEGER.match(text) or max(text) > "\uffff":
        return None
    else:
        digits = "".join(str(unicodedata.decimal(char)) for char in text.lstrip("+-")).lstrip("0")
        if len(digits) > 19:
            return None
        value = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def parse_double(text: str) -> float | None:
    """``Double.valueOf``: trims, takes f and d suffixes and hexadecimal; None if it throws."""
    text = trim(text)
    if _DECIMAL.match(text):
        return float(text if text[-1:] in "Ny" else text.rstrip("fFdD"))
    match = _HEXADECIMAL.match(text)
    if not match:
        return None
    try:
        return float.fromhex(match[1])
    except OverflowError:
        return float("-inf" if text[0] == "-" else "inf")


def compare_doubles(left: float, right: float) -> int:
    """``Double.compare``: -0.0 is less than 0.0; NaN equals itself and exceeds all else."""
    if left < right:
        return -1
    if left > right:
        return 1
    left_bits, right_bits = _double_bits(left), _double_bits(right)
    return (left_bits > right_bits) - (left_bits < right_bits)


def _double_bits(value: float) -> int:
    if math.isnan(value):
        return _NAN_BITS
    bits: int = _BITS.unpack(_DOUBLE.pack(value))[0]
    return bits
