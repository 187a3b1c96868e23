"""The words about parts of a log that a reader has passed without a message."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from reput.store.errors import CommitLogDataLossError, CorruptRecordError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.losses import Losses, loss_error, warn_of_unmounted, warn_of_unread_end
from reput.store.log.status import Status
from tests.support.wire import PlainLog

LOST, BAD = Status.SEGMENT_DELETED, Status.BAD_MAGIC


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    """Lines and their fields since the last call."""
    lines = [(one.getMessage(), getattr(one, "fields", None)) for one in caplog.records]
    caplog.clear()
    return lines


def test_each_range_counts_once_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Lost bytes apart from damaged ones, in the log's order; again only where more came."""
    losses = Losses()
    losses.say()
    assert said(caplog) == []
    for bad in (BadRange(900, 950, BAD), BadRange(100, 300, LOST), BadRange(900, 950, BAD)):
        losses.add(bad)
    assert (losses.lost_bytes, losses.damaged_bytes) == (200, 50)
    losses.say()
    losses.say()
    ((line, fields),) = said(caplog)
    assert "200 bytes are lost and 50 damaged" in line
    assert fields == {
        "lost_bytes": 200, "damaged_bytes": 50, "lost": "[100, 300)", "damaged": "[900, 950)",
    }  # fmt: skip
    losses.add(BadRange(100, 300, LOST))
    losses.say()
    assert said(caplog) == []
    losses.add(BadRange(0, 7, Status.ZERO_HOLE))
    losses.say()
    ((line, fields),) = said(caplog)
    assert "200 bytes are lost and 57 damaged" in line
    assert isinstance(fields, dict)
    assert fields["damaged"] == "[0, 7), [900, 950)"


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_the_first_ranges_are_named(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Up to three of a kind; then the number of the others. What there is none of is left out."""
    losses = Losses()
    for number in reversed(range(count)):
        losses.add(BadRange(10 * number, 10 * number + 5, LOST))
    losses.say()
    ((_, fields),) = said(caplog)
    shown = [f"[{10 * number}, {10 * number + 5})" for number in range(min(count, 3))]
    shown += [f"{count - 3} more"] if count > 3 else []
    assert fields == {"lost_bytes": 5 * count, "damaged_bytes": 0, "lost": ", ".join(shown)}


def test_a_reader_that_must_not_pass_a_range_is_told_of_its_place(tmp_path: Path) -> None:
    """With the file of a damaged one."""
    plain = PlainLog(512)
    plain.append()
    path = plain.write(tmp_path / "commitlog") / f"{0:020d}"
    with closing(CommitLog([path.parent])) as log:
        lost = loss_error(log, BadRange(600, 700, LOST))
        assert isinstance(lost, CommitLogDataLossError)
        assert "no commitlog file covers [600, 700)" in str(lost)
        damaged = loss_error(log, BadRange(10, 90, BAD))
        assert isinstance(damaged, CorruptRecordError)
        assert damaged.physical_offset == 10
        for part in (str(path), "80 bytes", "BAD_MAGIC"):
            assert part in str(damaged)


def test_what_stands_at_the_end_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of zeros, and nothing at the end of the last file."""
    plain = PlainLog(512)
    plain.append()
    plain.put(plain.end + 7, b"\1")
    with closing(CommitLog([plain.write(tmp_path / "commitlog")])) as log:
        for end, is_told in ((plain.end, True), (plain.end + 8, False), (512, False), (0, True)):
            warn_of_unread_end(log, end)
            lines = said(caplog)
            assert bool(lines) == is_told, end
            assert all(f"up to physical offset {end}, " in line for line, _ in lines)


def test_a_directory_without_a_file_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one of several; a log in one directory may be new."""
    plain = PlainLog(512, 512)
    plain.append()
    log, empty = plain.write(tmp_path / "disk1"), tmp_path / "disk2"
    empty.mkdir()
    for directories, told in (((empty,), []), ((log,), []), ((log, empty), [empty])):
        with closing(CommitLog([*directories])) as opened:
            warn_of_unmounted(opened)
        lines = [line for line, _ in said(caplog)]
        assert len(lines) == len(told)
        assert all(f"{empty} has no file" in line and "begins at 512" in line for line in lines)
