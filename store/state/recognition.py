"""Recognises from an output's files how it was built, if that is not recorded.

This concerns queues that a broker built, and outputs of a reput that kept no record
(``store.state.built``). It samples a few files and entries, and omits settings that do not show in
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from store.config import OnQueueGap, StoreSettings
from store.errors import StoreError
from store.index.indexfile import (
    INDEX_DIRECTORY,
    IndexFiles,
    IndexLayout,
    index_key_hash,
    index_keys,
    read_entry,
    read_header,
)
from store.log.commitlog import CommitLog, is_mapped_file_name
from store.log.record import Record
from store.queue.batchconsumequeue import BATCH_CONSUME_QUEUE_DIRECTORY
from store.queue.consumequeue import (
    CONSUME_QUEUE_DIRECTORY,
    ConsumeQueueFiles,
    QueueKey,
    list_queues,
    topic_directory,
)
from store.queue.consumequeueext import CONSUME_QUEUE_EXT_DIRECTORY
from store.state.ledger import FILE_NAME as LEDGER
from store.state.ledger import QUEUE_OFFSET_GAP
from store.state.watermark import STATE_DIRECTORY

_FILE_SIZES = {
    CONSUME_QUEUE_DIRECTORY: "mapped_file_size_consume_queue",
    CONSUME_QUEUE_EXT_DIRECTORY: "mapped_file_size_consume_queue_ext",
    BATCH_CONSUME_QUEUE_DIRECTORY: "mapper_file_size_batch_consume_queue",
}
"""Directory -> field of StoreSettings."""
_QUEUES = 8
_GAPS = 1000
_INDEX_FILES, _ENTRIES_PER_FILE = 4, 64
"""Sizes of the samples."""


def recognised_settings(output: Path, given: StoreSettings) -> dict[str, Any]:
    """Field of StoreSettings -> value, for settings that the files reveal.

    ``given`` has the log and other settings needed to read them. Raises CommitLogError if an
    index exists but its log cannot be opened.
    """
    found: dict[str, Any] = {}
    for kind, name in _FILE_SIZES.items():
        sizes = set(islice(_file_sizes(output / kind), _QUEUES))
        if len(sizes) == 1:
            found[name] = sizes.pop()
    queue_file_size = found.get(
        "mapped_file_size_consume_queue", given.mapped_file_size_consume_queue
    )
    gap = next(islice(_gaps(output, queue_file_size), _GAPS), None)
    if gap is not None:
        found["on_queue_gap"] = gap
    index_tags = next(_tags_indexed(output, given), None)
    if index_tags is not None:
        found["index_tags"] = index_tags
    return found


def _file_sizes(root: Path) -> Iterator[int]:
    """Bytes of one file of each queue; files have their full length from creation."""
    for key in list_queues(root):
        for path in (root / key.relative_path).iterdir():
            if is_mapped_file_name(path.name) and (size := path.stat().st_size):
                yield size
                break


def _gaps(output: Path, queue_file_size: int) -> Iterator[OnQueueGap]:
    """The action taken at each jump of queue offsets in the ledger.

    The position of the message after a jump equals its queue offset only if the gap was filled.
    """
    with suppress(OSError), (output / STATE_DIRECTORY / LEDGER).open("rb") as ledger:
        for line in ledger:
            with suppress(ValueError, KeyError, TypeError, AttributeError, StoreError):
                entry = json.loads(line)
                topic = topic_directory(entry["topic"].encode())
                if entry["reason"] != QUEUE_OFFSET_GAP or topic is None:
                    continue
                path = output / CONSUME_QUEUE_DIRECTORY
                path /= QueueKey(topic, entry["queue_id"]).relative_path
                units = ConsumeQueueFiles(path, queue_file_size).read(entry["queue_offset"], 1)
                is_filled = len(units) and units[0]["offset"] == entry["physical_offset"]
                yield OnQueueGap.BLANK if is_filled else OnQueueGap.ROCKETMQ


def _tags_indexed(output: Path, given: StoreSettings) -> Iterator[bool]:
    """For messages with tags, the newest first: whether their tags are in the index."""
    layout = IndexLayout(given.max_hash_slot_num, given.max_index_num)
    paths = IndexFiles(output / INDEX_DIRECTORY, layout).named_paths()
    if not paths:
        return
    log = CommitLog(given.commit_log_directories, given.mapped_file_size_commit_log)
    with closing(log):
        for path in paths[: -_INDEX_FILES - 1 : -1]:
            if path.stat().st_size == layout.file_size:
                count = min(read_header(path).index_count, layout.max_index_num)
                for index in range(count - 1, 0, -max(1, count // _ENTRIES_PER_FILE)):
                    found = _has_tags_entry(path, layout, index, count, log)
                    if found is not None:
                        yield found


def _has_tags_entry(
    path: Path, layout: IndexLayout, index: int, count: int, log: CommitLog
) -> bool | None:
    """Whether the message of an entry has an entry for its tags.

    None if its entries are incomplete, do not match its keys, or would be the same either way.
    """
    offset = read_entry(path, layout, index).phy_offset
    first, end = index, index + 1
    while first > 1 and read_entry(path, layout, first - 1).phy_offset == offset:
        first -= 1
    while end < count and read_entry(path, layout, end).phy_offset == offset:
        end += 1
    record = log.record_starting_at(offset)
    # entries after the last one of a full file may be in the next file
    if not isinstance(record, Record) or end == layout.max_index_num:
        return None
    found = [read_entry(path, layout, at).key_hash for at in range(first, end)]
    with_tags, without = (
        [index_key_hash(key) for key in index_keys(record, index_tags=index_tags)]
        for index_tags in (True, False)
    )
    return found == with_tags if found in (with_tags, without) and with_tags != without else None
