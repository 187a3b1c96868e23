"""The source of a record: the record that it was made from, in the base's log or the overlay's.

An overlay's record keeps it in ``preparedTransactionOffset``, which no version of RocketMQ reads: a
physical offset of the overlay's log plus 1, or that of the base's plus 1, negated; 0 where a client
sent the record.
"""

from __future__ import annotations

from typing import NamedTuple

from reput.store.log.record import Record


class Source(NamedTuple):
    """The place of a record."""

    is_base: bool
    """Whether it is in the log of the base."""
    physical_offset: int

    @property
    def field(self) -> int:
        """The value of ``preparedTransactionOffset``."""
        return -(self.physical_offset + 1) if self.is_base else self.physical_offset + 1


def source_of(record: Record) -> Source | None:
    """Return the source of a record of an overlay; None where a client sent it."""
    value = record.prepared_transaction_offset
    return Source(value < 0, abs(value) - 1) if value else None
