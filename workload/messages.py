"""Made-up messages whose every byte follows from a seed and a sequence number.

A demo, test or benchmark appends them and checks afterwards that a queue holds exactly the appended
messages; it only has to remember how many there were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from reput.store.log import properties

SEQUENCE_DIGITS = 12
TAG_COUNT = 4
_POOL_SIZE = 1 << 16
_MIN_BODY = SEQUENCE_DIGITS


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages as columns; value i of an arena is ``arena[bounds[i]:bounds[i + 1]]``."""

    topics: tuple[bytes, ...]
    topic_ids: NDArray[np.int32]
    queue_ids: NDArray[np.int32]
    sys_flags: NDArray[np.int32]
    flags: NDArray[np.int32]
    born_timestamps: NDArray[np.int64]
    """The born timestamps, in ms."""
    bodies: NDArray[np.uint8]
    body_bounds: NDArray[np.int64]
    properties: NDArray[np.uint8]
    property_bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.topic_ids)


class Workload:
    """A made-up workload: message n goes to topic n % topics, queue n / topics % queues; all sizes
    are equal."""

    def __init__(self, topic_count: int, queue_count: int, body_size: int, seed: int) -> None:
        """``body_size`` is in bytes and at least 12: a body begins with its sequence number."""
        self.topics = tuple(f"Topic_{index:03d}".encode() for index in range(topic_count))
        self.queue_count = queue_count
        self.body_size = max(body_size, _MIN_BODY)
        rng = np.random.default_rng(seed)
        pool = rng.integers(32, 127, _POOL_SIZE, np.uint8)
        self._pool = np.concatenate([pool, np.resize(pool, self.body_size)])
        sequence = b"0" * SEQUENCE_DIGITS
        self._template = np.frombuffer(
            properties.format_block(
                {
                    b"KEYS": b"order-" + sequence,
                    b"UNIQ_KEY": b"7F0000010000" + sequence + b"00000000",
                    b"WAIT": b"true",
                    properties.TAGS: b"TagA",
                }
            ),
            np.uint8,
        )
        text = self._template.tobytes()
        first = text.index(sequence)
        self._sequence_at = (first, text.index(sequence, first + SEQUENCE_DIGITS))
        self._tag_at = len(text) - 2

    def batch(self, first: int, count: int, born_timestamp: int) -> MessageBatch:
        """Return messages [``first``, ``first + count``)."""
        return self._columns(np.arange(first, first + count, dtype=np.int64), born_timestamp)

    def queue_slice(self, topic_id: int, queue_id: int, first: int, count: int) -> MessageBatch:
        """Return the messages that positions [``first``, ``first + count``) of one queue must
        hold."""
        positions = np.arange(first, first + count, dtype=np.int64)
        return self._columns(
            (positions * self.queue_count + queue_id) * len(self.topics) + topic_id
        )

    def _columns(self, sequence: NDArray[np.int64], born_timestamp: int = 0) -> MessageBatch:
        count = len(sequence)
        digits = self._digits(sequence)
        starts = sequence * 7919 % _POOL_SIZE
        bodies = sliding_window_view(self._pool, self.body_size)[starts]
        bodies[:, :SEQUENCE_DIGITS] = digits
        props = np.tile(self._template, (count, 1))
        for at in self._sequence_at:
            props[:, at : at + SEQUENCE_DIGITS] = digits
        props[:, self._tag_at] = 65 + sequence % TAG_COUNT
        zeros = np.zeros(count, np.int32)
        return MessageBatch(
            topics=self.topics,
            topic_ids=(sequence % len(self.topics)).astype(np.int32),
            queue_ids=(sequence // len(self.topics) % self.queue_count).astype(np.int32),
            sys_flags=zeros,
            flags=zeros,
            born_timestamps=np.full(count, born_timestamp, np.int64),
            bodies=bodies.reshape(-1),
            body_bounds=np.arange(count + 1, dtype=np.int64) * self.body_size,
            properties=props.reshape(-1),
            property_bounds=np.arange(count + 1, dtype=np.int64) * len(self._template),
        )

    def queue_length(self, topic_id: int, queue_id: int, count: int) -> int:
        """Return how many of the first ``count`` messages go to one queue."""
        period = len(self.topics) * self.queue_count
        first = queue_id * len(self.topics) + topic_id
        return max(0, -(-(count - first) // period))

    def _digits(self, sequence: NDArray[np.int64]) -> NDArray[np.uint8]:
        powers = 10 ** np.arange(SEQUENCE_DIGITS - 1, -1, -1, dtype=np.int64)
        return (sequence[:, None] // powers % 10 + 48).astype(np.uint8)
