"""The files of an output tell how it was built, as far as they show it.

Files are written by hand from docs/formats.md, in states that a kill, damage or expiry leaves.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reput.store.config import OnQueueGap, StoreSettings, read_store_settings
from reput.store.index.indexfile import index_key_hash
from reput.store.state import recognition
from reput.store.state.recognition import recognised_settings, tags_begin
from tests.support.wire import UNIT, PlainLog, file_name

SLOTS, ENTRIES = 5, 11
"""Ten entries in a full file: number 0 is never used."""
HEADER, SLOT, ENTRY = 40, 4, 20
Entries = list[tuple[int, int]]
"""(key hash, physical offset) of each entry."""


def store_of(directory: Path, plain: PlainLog | None = None) -> StoreSettings:
    """The settings of a store with this log."""
    log = plain or PlainLog(4096)
    log.write(directory / "commitlog")
    lines = f"mappedFileSizeCommitLog=4096\nmaxHashSlotNum={SLOTS}\nmaxIndexNum={ENTRIES}\n"
    (directory / "broker.conf").write_text(lines)
    return read_store_settings(directory)


def make_queue(output: Path, queue_id: int, files: dict[int, bytes]) -> None:
    directory = output / "consumequeue" / "T" / str(queue_id)
    directory.mkdir(parents=True)
    for offset, data in files.items():
        (directory / file_name(offset)).write_bytes(data)


@pytest.mark.parametrize(
    ("queues", "size"),
    [
        (({0: bytes(400)}, {0: bytes(400), 400: bytes(400)}), 400),
        (({0: bytes(400)}, {0: bytes(6000)}), None),
        (({0: b""}, {0: bytes(400)}), 400),
        (({0: b""},), None),
    ],
)
def test_the_size_of_queue_files_is_one_or_is_not_known(
    tmp_path: Path, queues: Iterable[dict[int, bytes]], size: int | None
) -> None:
    """A kill may leave a file that has not got its size; queues of two sizes are no one's."""
    given = store_of(tmp_path)
    for queue_id, files in enumerate(queues):
        make_queue(tmp_path, queue_id, files)
    found = recognised_settings(tmp_path, given)
    assert found.get("mapped_file_size_consume_queue") == size


def ledger_line(reason: str, queue_offset: int, topic: str = "T") -> bytes:
    fields = {"physical_offset": 1000, "topic": topic, "queue_id": 0, "reason": reason}
    return json.dumps({**fields, "queue_offset": queue_offset}).encode() + b"\n"


@pytest.mark.parametrize("is_filled", [True, False])
def test_a_gap_alone_tells_what_was_done_at_gaps(tmp_path: Path, *, is_filled: bool) -> None:
    """A message that came again has no unit at its own offset whatever was done, and lines that
    nobody can read tell nothing."""
    given = store_of(tmp_path)
    place = 3 if is_filled else 1
    units = [UNIT.pack(1000 if number == place else 0, 91, 0) for number in range(20)]
    make_queue(tmp_path, 0, {0: b"".join(units)})
    other = 1 if is_filled else 3
    lines = [
        ledger_line("queue_offset_seen_before", 4 - other),
        ledger_line("queue_offset_seen_before", other),
        ledger_line("queue_offset_gap", place, topic="../T"),
        b"[]\n", b"{\n", b'{"reason": "queue_offset_gap"}\n',
    ]  # fmt: skip
    state = tmp_path / "reput"
    state.mkdir()
    (state / "quarantine.jsonl").write_bytes(b"".join(lines))
    assert "on_queue_gap" not in recognised_settings(tmp_path, given)
    with (state / "quarantine.jsonl").open("ab") as ledger:
        ledger.write(ledger_line("queue_offset_gap", 3))
    expected = OnQueueGap.BLANK if is_filled else OnQueueGap.ROCKETMQ
    assert recognised_settings(tmp_path, given)["on_queue_gap"] is expected


def tagged_log(count: int) -> PlainLog:
    """Messages with a key and tags each, about ten to a log file."""
    plain = PlainLog(4096)
    for number in range(count):
        properties = b"UNIQ_KEY\1u%d\2TAGS\1t%d\2" % (number, number)
        plain.append(
            topic=b"T", queue_id=0, queue_offset=number, body=bytes(250), properties=properties
        )
    return plain


def entries_of(plain: PlainLog, tagged: range) -> list[Entries]:
    """The entries of each message: that of its key and, of some messages, that of its tags."""
    return [
        [(index_key_hash(b"T#u%d" % number), start)]
        + ([(index_key_hash(b"T#T#t%d" % number), start)] if number in tagged else [])
        for number, (start, _) in enumerate(plain.spans)
    ]


def write_index(output: Path, entries: Sequence[tuple[int, int]]) -> None:
    """Full files, and the last one."""
    (output / "index").mkdir(exist_ok=True)
    for number, first in enumerate(range(0, len(entries), ENTRIES - 1)):
        part = entries[first : first + ENTRIES - 1]
        data = bytearray(HEADER + SLOT * SLOTS + ENTRY * ENTRIES)
        struct.pack_into(">i", data, 36, len(part) + 1)
        for index, (key_hash, offset) in enumerate(part, 1):
            at = HEADER + SLOT * SLOTS + ENTRY * index
            struct.pack_into(">iqii", data, at, key_hash, offset, 0, 0)
        (output / "index" / f"{20260101000000000 + number}").write_bytes(data)


def joined(entries: Iterable[Entries]) -> Entries:
    return [entry for message in entries for entry in message]


def test_tags_in_the_next_file_are_not_missing(tmp_path: Path) -> None:
    """The last message of a full file has its key in it, and its tags in the one after it."""
    plain = tagged_log(6)
    given, entries = store_of(tmp_path, plain), joined(entries_of(plain, range(6)))
    # a message without keys makes the last one of the file begin with its last entry
    write_index(tmp_path, entries[1:])
    assert recognised_settings(tmp_path, given)["index_tags"] is True


@pytest.mark.parametrize("has_tags", [True, False])
def test_an_index_file_that_is_cut_tells_nothing(tmp_path: Path, *, has_tags: bool) -> None:
    """Nor does it hide what the others tell."""
    plain = tagged_log(10)
    given, whole = store_of(tmp_path, plain), range(10) if has_tags else range(0)
    write_index(tmp_path, joined(entries_of(plain, whole)))
    newest = tmp_path / "index" / "20260101000000009"
    newest.write_bytes((tmp_path / "index" / "20260101000000000").read_bytes()[:100])
    assert recognised_settings(tmp_path, given)["index_tags"] is has_tags


def begin_of_tags(given: StoreSettings) -> int | None:
    with closing(given.open_log()) as log:
        return tags_begin(given.root, given, log)


def test_tags_begin_after_messages_that_the_log_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are asked in a row: what the log no longer has shows nothing."""
    monkeypatch.setattr(recognition, "_ENTRIES_IN_A_ROW", 4)
    plain = tagged_log(60)
    given, tagged = store_of(tmp_path, plain), range(52, 60)
    write_index(tmp_path, joined(entries_of(plain, tagged)))
    gone = [start for start, _ in plain.spans if start < plain.spans[44][0] // 4096 * 4096]
    for path in sorted((tmp_path / "commitlog").iterdir())[: plain.spans[44][0] // 4096]:
        path.unlink()
    assert len(gone) > 35
    begin = begin_of_tags(given)
    assert begin is not None
    assert plain.spans[51][0] < begin <= plain.spans[52][0]


@pytest.mark.parametrize("kind", ["an offset", "a hash"])
def test_one_damaged_entry_does_not_move_the_begin_of_tags(tmp_path: Path, kind: Any) -> None:
    """It may be of any message but the first, before which nothing says so."""
    plain = tagged_log(20)
    given, entries = store_of(tmp_path, plain), entries_of(plain, range(20))
    for number in range(1, 20):
        key, (key_hash, offset) = entries[number]
        damaged = (key_hash, 1 << 50) if kind == "an offset" else (key_hash ^ 1, offset)
        messages = [*entries[:number], [key, damaged], *entries[number + 1 :]]
        write_index(tmp_path, joined(messages))
        assert begin_of_tags(given) == 0, number
