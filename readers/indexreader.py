"""Queries by key: the messages that a store's index finds by hash, and those that have the key.

Source: RocketMQ 5.3.3 ``DefaultMessageStore.queryMessage``, and its client's ``MQAdminImpl``.
"""

from __future__ import annotations

from reput.readers.logreader import LogReader
from reput.readers.messages import QueryMessageResult
from reput.store.index.indexfile import TOPIC_KEY_SEPARATOR, IndexFiles

UNIQUE_KEY_MAX_COUNT = 32
"""Number of messages that a broker examines for a unique key."""
MAX_TIMESTAMP_MS = (1 << 63) - 1


class IndexReader:
    """A store's index, and the messages in the log to which its entries lead."""

    def __init__(self, files: IndexFiles, log: LogReader, max_msgs_num_batch: int) -> None:
        self._files = files
        self._log = log
        self._most = max_msgs_num_batch

    @property
    def exists(self) -> bool:
        """Whether the index has a file."""
        return bool(self._files.paths())

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_count: int | None = None,
        begin_ms: int = 0,
        end_ms: int = MAX_TIMESTAMP_MS,
        is_limited: bool = True,
    ) -> QueryMessageResult:
        """Messages with the hash of ``topic#key``, as a broker sends them: its clients choose those
        that have the key (``QueryMessageResult.with_key``).

        Only the newest ``max_count`` entries with that hash and a store time in [begin, end], to
        the second, are examined. ``is_limited`` keeps ``max_count`` within the store's
        maxMsgsNumBatch, which is the default.
        """
        whole = topic.encode() + TOPIC_KEY_SEPARATOR + key.encode()
        most = self._most if max_count is None else max_count
        most = min(most, self._most) if is_limited else most
        result = self._files.query_offset(whole, most + 1, begin_ms, end_ms, self._log.end)
        offsets = sorted(set(result.phy_offsets[:most]))
        messages = [self._log.message_at(offset) for offset in offsets]
        for offset, message in zip(offsets, messages, strict=True):
            if message is None and offset >= self._log.min_offset:
                self._log.note_loss(offset)
        self._log.losses.say()
        return QueryMessageResult(
            [message for message in messages if message is not None],
            result.index_last_update_timestamp,
            result.index_last_update_phyoffset,
            len(result.phy_offsets) > most,
        )
