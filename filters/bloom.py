"""Bloom bit maps: the bits of an ext unit that state which consumers' filters match a message.

Each consumer owns ``hash_count`` bit positions, given by the hash of ``group#topic``. A message's
bit map has the bits of every consumer whose SQL92 expression is true; bit p is byte p/8, mask
1 << p%8. If one of a consumer's bits is missing, the consumer does not want the message; if all are
set, it may want it. Source: RocketMQ 5.3.3 ``BloomFilter``, ``BitsArray``; formats.md §10.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import mmh3

# BrokerConfig.maxErrorRateOfBloomFilter (percent) and expectConsumerNumUseFilter
DEFAULT_ERROR_RATE = 20
DEFAULT_EXPECTED_CONSUMERS = 32


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """The filter size and hash count that all consumers of a broker share."""

    bit_count: int
    """m, a multiple of 8."""
    hash_count: int
    """k, the number of positions of one consumer."""

    @classmethod
    def create_by_fn(
        cls,
        error_rate: int = DEFAULT_ERROR_RATE,
        expected_consumers: int = DEFAULT_EXPECTED_CONSUMERS,
    ) -> Self:
        """Size a filter for an ``error_rate`` in percent, 1..99; raises ValueError outside."""
        if not 1 <= error_rate < 100 or expected_consumers < 1:
            raise ValueError(
                f"a Bloom filter of {error_rate} % for {expected_consumers} consumers is "
                "impossible; give 1 to 99 percent and at least one consumer"
            )
        rate = error_rate / 100.0
        bits = math.ceil(expected_consumers * _log(2, 1 / rate) * _log(2, math.e))
        return cls(8 * math.ceil(bits / 8), math.ceil(_log(0.5, rate)))

    def positions(self, group: str, topic: str) -> tuple[int, ...]:
        """Bits of a consumer group on a topic, int[hash_count], each less than ``bit_count``."""
        key = f"{group}#{topic}".encode()
        digest = mmh3.hash64(key, 0, True, signed=False)[0]
        low, high = digest & 0xFFFFFFFF, digest >> 32
        return tuple(self._position(low + i * high) for i in range(1, self.hash_count + 1))

    def _position(self, combined: int) -> int:
        # Java's int wraps, and a negative sum has all its bits flipped
        combined &= 0xFFFFFFFF
        return (combined ^ 0xFFFFFFFF if combined >> 31 else combined) % self.bit_count


def _log(base: float, value: float) -> float:
    return math.log(value) / math.log(base)


def set_bits(bit_map: bytearray, positions: Iterable[int]) -> None:
    """Set a consumer's bits (``BloomFilter.hashTo``)."""
    for position in positions:
        bit_map[position >> 3] |= 1 << (position & 7)


def has_bits(bit_map: bytes, positions: Iterable[int]) -> bool:
    """Whether all of a consumer's bits are set (``BloomFilter.isHit``)."""
    return all(bit_map[position >> 3] >> (position & 7) & 1 for position in positions)
