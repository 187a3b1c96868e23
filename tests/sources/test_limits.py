"""The extent of a micro-batch at the borders of its limit, without Spark's part."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from reput.sources.offsets import limited_end
from reput.store.log.commitlog import CommitLog
from tests.support.wire import PlainLog

FILE_SIZE = 4096
LOG_START = 3 * FILE_SIZE
RECORDS = 40


@pytest.fixture
def plain() -> PlainLog:
    """A log of two files whose first three were removed; its records are equally long."""
    log = PlainLog(FILE_SIZE, LOG_START)
    for _ in range(RECORDS):
        log.append(body=b"b" * 40)
    assert len(log.image) == 2 * FILE_SIZE
    return log


def batch(plain: PlainLog, directory: Path, start: int, limit: ReadLimit) -> int:
    """The number of records of one micro-batch, which ends where a record or a file does."""
    log = CommitLog([plain.write(directory / "commitlog")], FILE_SIZE)
    end = limited_end(log, start, plain.end, limit)
    log.close()
    ends = {end for _, end in plain.spans} | {LOG_START + FILE_SIZE}
    assert end in ends
    return sum(start <= at < end for at, _ in plain.spans)


@pytest.mark.parametrize("start", [0, LOG_START - 1, LOG_START])
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (ReadMaxRows(1), 1),
        (ReadMaxRows(7), 7),
        (ReadMaxRows(RECORDS - 1), RECORDS - 1),
        (ReadMaxRows(RECORDS), RECORDS),
        (ReadMaxRows(RECORDS + 1), RECORDS),
        (ReadMaxBytes(1), 1),
        (ReadMaxBytes(LOG_START), RECORDS),
        (ReadAllAvailable(), RECORDS),
    ],
    ids=str,
)
def test_a_limit_counts_from_where_the_log_begins(
    plain: PlainLog, tmp_path: Path, start: int, limit: ReadLimit, expected: int
) -> None:
    """A stream may stand before it, where retention has removed messages: the batch that says so
    holds as much as any other."""
    assert batch(plain, tmp_path, start, limit) == expected


def test_a_limit_of_just_what_is_left_leaves_nothing(plain: PlainLog, tmp_path: Path) -> None:
    """With a byte less, what is left is two batches of one size, up to the border of the files
    that is near it."""
    left = plain.end - LOG_START
    assert batch(plain, tmp_path, LOG_START, ReadMaxBytes(left)) == RECORDS
    first = batch(plain, tmp_path, LOG_START, ReadMaxBytes(left - 1))
    in_first_file = sum(at < LOG_START + FILE_SIZE for at, _ in plain.spans)
    assert first == in_first_file


def test_no_batch_is_longer_than_its_limit(plain: PlainLog, tmp_path: Path) -> None:
    """Unless it has one record alone; the border of files may be near, and beyond the limit."""
    log = CommitLog([plain.write(tmp_path / "commitlog")], FILE_SIZE)
    for start, first_end in plain.spans[::5]:
        for most in range(50, 2 * FILE_SIZE, 150):
            end = limited_end(log, start, plain.end, ReadMaxBytes(most))
            assert start < end <= max(start + most, first_end), (start, most)
    log.close()
