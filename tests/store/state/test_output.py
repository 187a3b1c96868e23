"""Directories that pass for an output, and outputs that are of this log."""

from __future__ import annotations

import zlib
from contextlib import closing
from pathlib import Path

import pytest

from reput.store.errors import NotReadyError, UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.state.output import check_is_output, end_of_output, fingerprint, is_same_log
from reput.store.state.watermark import Watermark
from tests.support.wire import PlainLog, file_name

STORE_ID = "0" * 32
PARTS = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "reput")


def test_each_part_alone_makes_an_output(tmp_path: Path) -> None:
    """As where a single kind was built, or copied; other directories and files do not, but the
    store itself is one before its broker has built anything."""
    store = tmp_path / "store"
    store.mkdir()
    check_is_output(store, store)
    (tmp_path / "link").symlink_to(store)
    check_is_output(tmp_path / "link", store)
    for part in PARTS:
        output = tmp_path / part
        with pytest.raises(NotReadyError, match=f"there is no directory {output} "):
            check_is_output(output, store)
        output.mkdir()
        for name in ("commitlog", "config", f"{part}x"):
            (output / name).mkdir()
        (output / part).touch()
        with pytest.raises(NotReadyError, match=f"{output} is not an output: it holds no queues"):
            check_is_output(output, store)
        (output / part).unlink()
        (output / part).mkdir()
        check_is_output(output, store)
        check_is_output(output, tmp_path / "no store")


def watermark_at(plain: PlainLog, number: int, **changed: int) -> Watermark:
    """The watermark after a record, whose first 88 bytes it knows."""
    start, end = plain.spans[number]
    crc = zlib.crc32(plain.bytes_at((start, start + 88)))
    fields = {"last_record_offset": start, "last_record_crc": crc, **changed}
    return Watermark(STORE_ID, end, 1, 1, **fields)


def test_an_output_is_of_the_log_that_has_its_last_record(tmp_path: Path) -> None:
    """A record that retention has removed, and one that is not known, tell nothing. The log is
    looked at anew: a file may have come since it was opened."""
    plain = PlainLog(512, 512)
    while len(plain.spans) < 12:
        plain.append(body=b"x" * 9)
    directory, output = plain.write(tmp_path / "commitlog"), tmp_path / "output"
    (output / "consumequeue").mkdir(parents=True)
    newest = max(directory.iterdir())
    data = newest.read_bytes()
    newest.unlink()
    with closing(CommitLog([directory], 512)) as log:
        assert end_of_output(output, tmp_path, log) is None
        last = watermark_at(plain, -1)
        assert log.segments.at(last.last_record_offset) is None
        write(output, last)
        with pytest.raises(UsageError, match="is beyond the end of the log"):
            end_of_output(output, tmp_path, log)
        write(output, first := watermark_at(plain, 0))
        assert end_of_output(output, tmp_path, log) == first
        write(output, last)
        newest.write_bytes(data)
        assert end_of_output(output, tmp_path, log) == last
        assert is_same_log(log, last)
        write(output, other := watermark_at(plain, -1, last_record_crc=7))
        assert not is_same_log(log, other)
        with pytest.raises(UsageError, match="is another one in the log"):
            end_of_output(output, tmp_path, log)
        for found in (
            watermark_at(plain, -1, last_record_offset=-1, last_record_crc=7),
            watermark_at(plain, 0, last_record_offset=100, last_record_crc=7),
        ):
            write(output, found)
            assert end_of_output(output, tmp_path, log) == found
    assert file_name(512) == min(directory.iterdir()).name


def write(output: Path, watermark: Watermark) -> None:
    """Make it the watermark: its first slot."""
    (output / "reput").mkdir(exist_ok=True)
    (output / "reput" / "watermark").write_bytes(watermark.pack())


def test_a_fingerprint_is_of_a_whole_records_head(tmp_path: Path) -> None:
    """The CRC-32 of 88 bytes; 0 where the file ends before them, and where there is no record."""
    plain = PlainLog(512)
    plain.append()
    with closing(CommitLog([plain.write(tmp_path)])) as log:
        assert fingerprint(log, 0) == zlib.crc32(bytes(plain.image[:88]))
        assert fingerprint(log, 512 - 88) == zlib.crc32(bytes(plain.image[-88:]))
        for offset in (512 - 87, 512, -1):
            assert fingerprint(log, offset) == 0
