"""Recognises from an output's files how it was built, if that is not recorded.

This concerns queues that a broker built, and outputs of a reput that kept no record
(``store.state.built``). It samples a few files and entries, and omits settings that do not show in
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from reput.store import jsontext
from reput.store.config import FILE_SIZE_FIELDS, OnQueueGap, StoreSettings
from reput.store.errors import StoreError
from reput.store.files import (
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    LEDGER_FILE,
    STATE_DIRECTORY,
    is_mapped_file_name,
)
from reput.store.index.indexfile import (
    IndexFiles,
    IndexLayout,
    index_key_hash,
    index_keys,
    read_entry,
    read_header,
)
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.queue.consumequeue import ConsumeQueueFiles, QueueKey, list_queues, topic_directory
from reput.store.state.ledger import QUEUE_OFFSET_GAP

_QUEUES = 8
_GAPS = 1000
_INDEX_FILES, _ENTRIES_PER_FILE, _ENTRIES_IN_A_ROW = 4, 64, 1024
"""Sizes of the samples."""


def recognised_settings(output: Path, given: StoreSettings) -> dict[str, Any]:
    """Field of StoreSettings -> value, for settings that the files reveal.

    ``given`` has the log and other settings needed to read them. Raises CommitLogError if an
    index exists but its log cannot be opened.
    """
    settings: dict[str, Any] = {}
    for kind, name in FILE_SIZE_FIELDS.items():
        sizes = set(islice(_file_sizes(output / kind), _QUEUES))
        if len(sizes) == 1:
            settings[name] = sizes.pop()
    queue_file_size = settings.get(
        "mapped_file_size_consume_queue", given.mapped_file_size_consume_queue
    )
    gap = next(islice(_gaps(output, queue_file_size), _GAPS), None)
    if gap is not None:
        settings["on_queue_gap"] = gap
    index_tags = next(_tags_indexed(output, given), None)
    if index_tags is not None:
        settings["index_tags"] = index_tags
    return settings


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
    with suppress(OSError), (output / STATE_DIRECTORY / LEDGER_FILE).open("rb") as ledger:
        for line in ledger:
            with suppress(ValueError, KeyError, TypeError, AttributeError, StoreError):
                entry = jsontext.parse(line)
                topic = topic_directory(entry["topic"].encode())
                if entry["reason"] != QUEUE_OFFSET_GAP or topic is None:
                    continue
                path = output / CONSUME_QUEUE_DIRECTORY
                path /= QueueKey(topic, entry["queue_id"]).relative_path
                units = ConsumeQueueFiles(path, queue_file_size).read(entry["queue_offset"], 1)
                is_filled = len(units) and units[0]["offset"] == entry["physical_offset"]
                yield OnQueueGap.BLANK if is_filled else OnQueueGap.ROCKETMQ


def _tags_indexed(output: Path, given: StoreSettings) -> Iterator[bool]:
    """Yield, for messages with tags, the newest first, whether the index has their tags."""
    layout = given.index_layout
    files = _index_files(output, layout)
    if not files:
        return
    log = given.open_log()
    with closing(log):
        for path, count in files[: -_INDEX_FILES - 1 : -1]:
            for index in range(count - 1, 0, -max(1, count // _ENTRIES_PER_FILE)):
                is_tagged = _has_tags_entry(path, layout, index, count, log)
                if is_tagged is not None:
                    yield is_tagged


def tags_begin(output: Path, settings: StoreSettings, log: CommitLog) -> int | None:
    """The physical offset from which the index has the tags of messages: 0 if it has all, None if
    it has none.

    RocketMQ 5.5 continues the index that RocketMQ 5.3 began without tags. A binary search over the
    entries finds the first message with its tags after those without. As one entry may be damaged,
    a message counts as one without tags only if the one before it does. Where no message among many
    shows it, the search goes on before them.
    """
    layout = settings.index_layout
    files = _index_files(output, layout)
    firsts = list(accumulate((count - 1 for _, count in files), initial=0))

    def has_tags(numbers: Iterable[int]) -> tuple[int, bool | None]:
        """The first of some entries that shows it, and whether its message has its tags."""
        for number in islice(numbers, _ENTRIES_IN_A_ROW):
            file = bisect_right(firsts, number) - 1
            path, count = files[file]
            is_tagged = _has_tags_entry(path, layout, number - firsts[file] + 1, count, log)
            if is_tagged is not None:
                return number, is_tagged
        return -1, None

    def offset_of(number: int) -> int:
        file = bisect_right(firsts, number) - 1
        return read_entry(files[file][0], layout, number - firsts[file] + 1).phy_offset

    low, high = 0, firsts[-1]
    has_untagged = False
    while low < high:
        middle = (low + high) // 2
        if offset_of(middle) < log.min_offset:
            low = middle + 1
            continue
        number, is_tagged = has_tags(range(middle, high))
        if is_tagged is False:
            offset = offset_of(number)
            before = (n for n in range(number - 1, -1, -1) if offset_of(n) != offset)
            is_tagged = has_tags(before)[1] or False
        if is_tagged is False:
            low, has_untagged = number + 1, True
        else:
            high = middle
    if not has_untagged:
        return 0
    # between the two, a message with tags and without keys has no entry
    number, is_tagged = has_tags(range(low, firsts[-1]))
    return offset_of(number if is_tagged else low) if low < firsts[-1] else None


def _index_files(output: Path, layout: IndexLayout) -> list[tuple[Path, int]]:
    """The whole files of the index, the oldest first, each with the number of its next entry."""
    return [
        (path, min(max(read_header(path).index_count, 1), layout.max_index_num))
        for path in IndexFiles(output / INDEX_DIRECTORY, layout).named_paths()
        if path.stat().st_size == layout.file_size
    ]


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
    hashes = [read_entry(path, layout, at).key_hash for at in range(first, end)]
    with_tags, without = (
        [index_key_hash(key) for key in index_keys(record, index_tags=index_tags)]
        for index_tags in (True, False)
    )
    return hashes == with_tags if hashes in (with_tags, without) and with_tags != without else None
