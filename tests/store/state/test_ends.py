"""The record of where the entries of an output end: what was written is read back, or nothing is.

The lines are those that the module's docstring describes, written here by hand.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from reput.store.files import ENDS_FILE
from reput.store.state.ends import Ends, EntryEnd, EntryName, drop_ends, read_ends, write_ends
from tests.support.power_cuts import Disk
from tests.support.recorder import Recorder

STORE = "0123456789abcdef0123456789abcdef"
TOPICS = ("Topic", "订单 主题", "%RETRY%g", "a\u2028b", "c\u2029", "\u3000", "\ufeffd")
"""None has a control character; some have what a text's lines may end with as well."""
ENTRIES = {
    **{EntryName("consumequeue", topic, 3): EntryEnd(20 * n, 7) for n, topic in enumerate(TOPICS)},
    EntryName("batchconsumequeue", "B", 0): EntryEnd(46, 1 << 40),
    EntryName("index", "20260101000000000"): EntryEnd(9, 0),
}
ENDS = Ends(STORE, 123_456, ENTRIES)


def file_of(lines: str, **fields: object) -> bytes:
    """The file with some fields of its first line that are others."""
    head = {"version": 1, "store_id": STORE, "end": 123_456, "crc32": zlib.crc32(lines.encode())}
    return json.dumps({**head, **fields}).encode() + b"\n" + lines.encode()


def test_ends_are_read_back(tmp_path: Path) -> None:
    """They are of every kind, and of any topic that can name a directory."""
    assert read_ends(tmp_path) is None
    write_ends(tmp_path, ENDS)
    assert read_ends(tmp_path) == ENDS
    lines = "consumequeue\ta\u2028b\t3\t60\t7\nindex\t20260101000000000\t0\t9\t0\n"
    assert Ends.decode(file_of(lines)) == Ends(
        STORE,
        123_456,
        {
            EntryName("consumequeue", "a\u2028b", 3): EntryEnd(60, 7),
            EntryName("index", "20260101000000000"): EntryEnd(9, 0),
        },
    )
    assert Ends.decode(file_of("")) == Ends(STORE, 123_456, {})


@pytest.mark.parametrize(
    "data",
    [
        file_of("index\ta\t0\t9\t0\n", version=2),
        file_of("index\ta\t0\t9\t0\n", crc32=5),
        file_of("index\ta\t0\t9\n"),
        file_of("index\ta\t0\tx\t0\n"),
        file_of("index\ta\t0\t9\t0\n", end="x"),
        b"[]\n", b"{}\n", b"", b"\xff\n",
    ],
)  # fmt: skip
def test_what_is_no_record_of_ends_is_none(data: bytes) -> None:
    """Another version's, and one that a disk has damaged, name no end."""
    assert Ends.decode(data) is None


def test_a_damaged_end_is_none() -> None:
    """Every byte of the lines counts, and every cut of them."""
    data = ENDS.encode()
    first = data.index(b"\n") + 1
    for at in range(first, len(data)):
        assert Ends.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None, at
        assert Ends.decode(data[:at]) is None, at


def test_ends_that_are_dropped_are_gone_after_a_power_cut(tmp_path: Path) -> None:
    """Before the entries are cut that they list; a second time there is nothing to drop."""
    write_ends(tmp_path, ENDS)
    with Recorder(tmp_path) as recorder:
        drop_ends(tmp_path)
        drop_ends(tmp_path)
    recorder.check()
    assert ENDS_FILE not in Disk.after(recorder).durable()
    assert read_ends(tmp_path) is None
