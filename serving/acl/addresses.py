"""White addresses of ACL 1.0: clients that need no signature.

An address is exact, or has in any of its parts ``*``, a range ``a-b`` or a choice ``{a,b}``; after
a last ``*`` further parts may be left out. Several stand in a list with commas. ``*`` alone is
every address. Source: RocketMQ 5.3.2 ``RemoteAddressStrategyFactory``, which takes ranges in one
part only, and lists of exact addresses only.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

_COMMA_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")


class Family(NamedTuple):
    """How addresses of one kind are written."""

    separator: str
    part_count: int
    base: int
    largest: int
    """The largest value of a part."""


IPV4 = Family(".", 4, 10, 0xFF)
IPV6 = Family(":", 8, 16, 0xFFFF)

Part = tuple[tuple[int, int], ...]
"""Ranges of values, both ends included."""


class WhiteAddresses:
    """The addresses that one text names; a blank one names none."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for a text that is no list of addresses."""
        self._is_every = False
        self._patterns: list[tuple[Family, list[Part]]] = []
        for entry in _COMMA_OUTSIDE_BRACES.split(text) if text.strip() else ():
            pattern = entry.strip()
            if pattern in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
                self._is_every = True
            else:
                self._patterns.append(_parse(pattern))

    def has(self, host: str) -> bool:
        """Whether a client's address is one of them."""
        if self._is_every or not self._patterns:
            return self._is_every
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        packed = address.packed
        if len(packed) == 4:
            family, values = IPV4, list(packed)
        else:
            family = IPV6
            values = [int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2)]
        return any(
            kind is family and all(map(_has, parts, values)) for kind, parts in self._patterns
        )


def _has(part: Part, value: int) -> bool:
    return any(first <= value <= last for first, last in part)


def _parse(pattern: str) -> tuple[Family, list[Part]]:
    family = IPV6 if ":" in pattern else IPV4
    texts = pattern.split(family.separator)
    if family is IPV6 and "::" in pattern:
        left, right = ([text for text in half.split(":") if text] for half in _halves(pattern))
        texts = [*left, *["0"] * (family.part_count - len(left) - len(right)), *right]
    if texts[-1].strip() == "*":
        texts += ["*"] * (family.part_count - len(texts))
    if len(texts) != family.part_count:
        raise ValueError(f"{pattern!r:.80} is no address")
    try:
        return family, [_part(text.strip(), family) for text in texts]
    except ValueError:
        raise ValueError(f"{pattern!r:.80} is no address") from None


def _halves(pattern: str) -> tuple[str, str]:
    left, _, right = pattern.partition("::")
    if "::" in right:
        raise ValueError(f"{pattern!r:.80} is no address")
    return left, right


def _part(text: str, family: Family) -> Part:
    if text == "*":
        return ((0, family.largest),)
    if text.startswith("{") and text.endswith("}"):
        return tuple(_range(choice.strip(), family) for choice in text[1:-1].split(","))
    return (_range(text, family),)


def _range(text: str, family: Family) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    start = _value(first, family)
    end = _value(last, family) if dash else start
    if start > end:
        raise ValueError(text)
    return start, end


def _value(text: str, family: Family) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isalnum():
        raise ValueError(text)
    value = int(digits, family.base)
    if value > family.largest:
        raise ValueError(text)
    return value
