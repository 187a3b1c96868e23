"""The quarantine ledger: every range once, durable before the watermark, whatever interrupts.

Held against JSON read line by line, and against an uninterrupted run of the same entries.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError, OutputError, SyncError
from reput.store.files import LEDGER_FILE
from reput.store.names import escaped
from reput.store.state.ledger import (
    Ledger,
    LedgerCount,
    LedgerCounter,
    LedgerEntry,
    RepeatedQueue,
    read_counts,
    read_entries,
    read_repeats,
)
from tests.support.processes import is_killed_at

ENTRIES = [LedgerEntry(offset, offset + 50, "bad_magic", "T", 1, 7) for offset in (0, 100, 200)]


def lines(directory: Path) -> list[dict[str, object]]:
    text = (directory / LEDGER_FILE).read_text("utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text[:-1].split("\n")]


def test_entries_are_lines_of_json_with_what_is_known(tmp_path: Path) -> None:
    """Absent fields are left out; nothing is written before the sync."""
    ledger = Ledger(tmp_path)
    assert ledger.add(LedgerEntry(5, 9, "zero_hole"))
    assert ledger.add(LedgerEntry(9, 19, "topic_name", 'a"\\n', 3, 4, "detail"))
    assert not (tmp_path / LEDGER_FILE).exists()
    ledger.sync()
    assert lines(tmp_path) == [
        {"physical_offset": 5, "end_physical_offset": 9, "reason": "zero_hole"},
        {
            "physical_offset": 9,
            "end_physical_offset": 19,
            "reason": "topic_name",
            "topic": 'a"\\n',
            "queue_id": 3,
            "queue_offset": 4,
            "detail": "detail",
        },
    ]


def test_a_range_is_listed_once_for_a_reason(tmp_path: Path) -> None:
    """In one run, after a restart, and beside another reason for the same place."""
    for _ in range(3):
        ledger = Ledger(tmp_path)
        for entry in ENTRIES:
            ledger.add(entry)
            assert not ledger.add(entry)
        ledger.sync()
        ledger.sync()
    assert [line["physical_offset"] for line in lines(tmp_path)] == [0, 100, 200]
    ledger = Ledger(tmp_path)
    assert not ledger.add(ENTRIES[1])
    assert ledger.add(LedgerEntry(100, 150, "queue_offset_gap"))
    ledger.sync()
    assert len(lines(tmp_path)) == 4


def test_a_message_is_listed_for_each_of_its_queues(tmp_path: Path) -> None:
    """Its own and light queues, whose ids may be equal; after a restart none of them again."""
    entries = [
        LedgerEntry(0, 50, "queue_offset_seen_before", topic, queue_id)
        for topic in ("T", "%LMQ%a")
        for queue_id in (0, 1)
    ]
    for expected in (True, False):
        ledger = Ledger(tmp_path)
        assert [ledger.add(entry) for entry in entries] == [expected] * len(entries)
        ledger.sync()
    assert [(line["topic"], line["queue_id"]) for line in lines(tmp_path)] == [
        (entry.topic, entry.queue_id) for entry in entries
    ]


def test_entries_are_read_back_as_they_were_listed(tmp_path: Path) -> None:
    """In their order; a damaged line is none."""
    entries = [LedgerEntry(10, 20, "bad_magic"), LedgerEntry(5, 9, "queue_id", "T", -1, 7, "why")]
    assert list(read_entries(tmp_path)) == []
    ledger = Ledger(tmp_path)
    for entry in entries:
        ledger.add(entry)
    ledger.sync()
    with (tmp_path / LEDGER_FILE).open("ab") as file:
        file.write(b"{damaged}\n")
    assert list(read_entries(tmp_path)) == [*entries, None]


def test_a_counter_follows_a_ledger_that_grows_or_is_replaced(tmp_path: Path) -> None:
    """By a longer or a shorter one, in place or by its name; a line that is not whole yet waits."""
    path, counter = tmp_path / LEDGER_FILE, LedgerCounter(tmp_path)
    lines = [LedgerEntry(at, at + 10, "bad_magic").to_json().encode() + b"\n" for at in (10, 30)]
    other = LedgerEntry(100, 105, "queue_id").to_json().encode() + b"\n"
    assert counter.counts() == ()
    path.write_bytes(lines[0] + lines[1][:9])
    assert counter.counts() == (LedgerCount("bad_magic", 1, 10),)
    path.write_bytes(b"".join(lines))
    assert counter.counts() == (LedgerCount("bad_magic", 2, 20),)
    path.write_bytes(other)
    assert counter.counts() == (LedgerCount("queue_id", 1, 5),)
    (tmp_path / "new").write_bytes(lines[0] + other)
    (tmp_path / "new").rename(path)
    wanted = (LedgerCount("bad_magic", 1, 10), LedgerCount("queue_id", 1, 5))
    assert counter.counts() == wanted == read_counts(tmp_path)
    path.unlink()
    assert counter.counts() == ()


def test_a_torn_last_line_is_cut_and_listed_again(tmp_path: Path) -> None:
    """A crash anywhere inside the last line: the next run ends with the same file."""
    ledger = Ledger(tmp_path)
    for entry in ENTRIES:
        ledger.add(entry)
    ledger.sync()
    path = tmp_path / LEDGER_FILE
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        ledger = Ledger(tmp_path)
        assert [ledger.add(entry) for entry in ENTRIES] == [False, False, True]
        ledger.sync()
        assert path.read_bytes() == whole


def test_nothing_of_a_torn_line_stays_after_a_shorter_one(tmp_path: Path) -> None:
    """The torn entry need not come again first, nor at all."""
    path = tmp_path / LEDGER_FILE
    path.write_bytes(
        ENTRIES[0].to_json().encode() + b"\n" + b'{"physical_offset": 7, ' + b"x" * 900
    )
    ledger = Ledger(tmp_path)
    ledger.add(ENTRIES[1])
    ledger.sync()
    assert [line["physical_offset"] for line in lines(tmp_path)] == [0, 100]


def test_a_damaged_line_stays_and_hides_no_other(tmp_path: Path) -> None:
    """People may want to see it; the entries around it are still known."""
    good = [entry.to_json().encode() for entry in ENTRIES]
    for odd in (b"{", b"null", b"[1]", b'"x"', b"\xff\xfe", b"{}", b'{"physical_offset":[]}', b""):
        path = tmp_path / LEDGER_FILE
        before = b"\n".join([good[0], odd, good[1]]) + b"\n"
        path.write_bytes(before)
        ledger = Ledger(tmp_path)
        assert [ledger.add(entry) for entry in ENTRIES] == [False, False, True]
        ledger.sync()
        assert path.read_bytes() == before + good[2] + b"\n"


@pytest.mark.parametrize(
    ("point", "error"),
    [
        ("open:1=ENOSPC", NoSpaceError),
        ("pwrite:1=ENOSPC", NoSpaceError),
        ("pwrite:1=EIO", OutputError),
        ("sync:1=EIO", SyncError),
    ],
)
def test_a_failed_sync_keeps_what_is_to_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, error: type[Exception]
) -> None:
    """The next try lists everything, once."""
    ledger = Ledger(tmp_path)
    ledger.add(ENTRIES[0])
    ledger.sync()
    monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(point))
    for entry in ENTRIES:
        ledger.add(entry)
    with pytest.raises(error, match="quarantine"):
        ledger.sync()
    ledger.sync()
    assert [line["physical_offset"] for line in lines(tmp_path)] == [0, 100, 200]


def test_a_cut_takes_later_lines_and_halves_along(tmp_path: Path) -> None:
    """A power cut leaves zeros for the pages of a line that were not written, or no line end; a
    damaged line that was whole once stays as evidence."""
    ledger = Ledger(tmp_path)
    for entry in ENTRIES:
        ledger.add(entry)
    ledger.sync()
    path = tmp_path / LEDGER_FILE
    first, *_ = whole = path.read_bytes().splitlines(keepends=True)
    damaged = b"{" + first
    for half in (bytes(20) + first[20:], first[:20] + bytes(40) + first[60:], first[:20]):
        path.write_bytes(damaged + b"".join(whole) + half)
        ledger = Ledger(tmp_path)
        ledger.truncate(100)
        assert path.read_bytes() == damaged + first
        assert ledger.add(ENTRIES[1])
        assert not ledger.add(ENTRIES[0])


def test_what_is_listed_after_a_cut_follows_what_stays(tmp_path: Path) -> None:
    """In the same run: the lines that were cut leave no gap of zeros, and may come again."""
    ledger = Ledger(tmp_path)
    for entry in ENTRIES:
        ledger.add(entry)
    ledger.sync()
    ledger.truncate(200)
    ledger.truncate(100)
    other = LedgerEntry(130, 150, "zero_hole")
    assert ledger.add(ENTRIES[1])
    assert ledger.add(other)
    ledger.sync()
    assert (tmp_path / LEDGER_FILE).read_bytes() == b"".join(
        entry.to_json().encode() + b"\n" for entry in (ENTRIES[0], ENTRIES[1], other)
    )


def test_queues_whose_offsets_began_again_are_counted(tmp_path: Path) -> None:
    """Sorted, from the first message in the log, in whatever order the ledger has them; other
    reasons and damaged lines do not count."""
    reason = "queue_offset_seen_before"
    places = ((700, "T", 1), (300, "T", 1), (500, "T", 0), (400, "A", 7), (900, "T", 1))
    entries = [LedgerEntry(at, at + 50, reason, topic, number) for at, topic, number in places]
    lines = [entry.to_json() for entry in (*entries, LedgerEntry(1, 2, "bad_magic", "T", 1))]
    assert read_repeats(tmp_path) == ()
    (tmp_path / LEDGER_FILE).write_text("\n".join([*lines[:2], "{", *lines[2:]]) + "\n")
    assert read_repeats(tmp_path) == (
        RepeatedQueue("A", 7, 1, 400, 400),
        RepeatedQueue("T", 0, 1, 500, 500),
        RepeatedQueue("T", 1, 3, 300, 300),
    )


@pytest.mark.parametrize("failpoints", ["", "pwrite:1=short,", "pwrite:2=short,"])
def test_killed_anywhere_the_ledger_ends_the_same(tmp_path: Path, failpoints: str) -> None:
    """kill -9 before every operation, writes cut in half or not; then the same entries again."""

    def work(directory: Path) -> None:
        ledger = Ledger(directory)
        for entry in ENTRIES:
            ledger.add(entry)
            ledger.sync()

    (tmp_path / "whole").mkdir()
    work(tmp_path / "whole")
    expected = (tmp_path / "whole" / LEDGER_FILE).read_bytes()
    for ordinal in count(1):
        directory = tmp_path / str(ordinal)
        directory.mkdir()
        killed = is_killed_at(ordinal, partial(work, directory), failpoints)
        work(directory)
        assert (directory / LEDGER_FILE).read_bytes() == expected
        if not killed:
            break
    assert ordinal > 9


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        (b"Topic", "Topic"),
        (b"../../x", "../../x"),
        (b"\x1b[31m\n", "\\x1b[31m\\n"),
        (b"\xff\x00", "\\xff\\x00"),
        ("订单".encode(), "订单"),
        ("a\u202eb".encode(), "a\\u202eb"),
        (b"t" * 255, "t" * 255),
        (b"t" * 256, "t" * 252 + "..."),
    ],
)
def test_names_from_the_log_are_shown_escaped(topic: bytes, shown: str) -> None:
    """As any other output has a topic that has queues; a terminal shows it as it is."""
    assert escaped(topic) == shown
    assert escaped(topic).isprintable()


def test_a_ledger_holds_a_topic_as_every_other_output_does(tmp_path: Path) -> None:
    """JSON escapes it once. Entries of older ledgers, which were escaped twice, are read as the
    same entries, so that none is listed again."""
    topic, entry = "订单", LedgerEntry(0, 50, "bad_magic", escaped("订单".encode()), 1)
    ledger = Ledger(tmp_path)
    ledger.add(entry)
    ledger.sync()
    assert [line["topic"] for line in lines(tmp_path)] == [topic]
    path = tmp_path / LEDGER_FILE
    path.write_text(
        path.read_text().replace("\\u8ba2", "\\\\u8ba2").replace("\\u5355", "\\\\u5355")
    )
    assert [line["topic"] for line in lines(tmp_path)] == ["\\u8ba2\\u5355"]
    assert [*read_entries(tmp_path)] == [entry]
    assert not Ledger(tmp_path).add(entry)
