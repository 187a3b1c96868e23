"""The thread that delivers, in virtual time: it waits for as long as nothing is due."""

from __future__ import annotations

import errno
import logging
import os
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import pytest

from reput.overlay.delivery.deliveries import MAX_PAUSE_SECONDS, Deliveries
from reput.overlay.delivery.waiting import WaitingRecords
from reput.overlay.overlay import Overlay
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.overlay.records.sources import Source
from reput.store.config import read_store_settings
from reput.store.errors import StoreError
from reput.store.log.appender import LogAppender
from reput.store.log.properties import parse
from reput.store.log.record import Record
from tests.support.golden import log_records
from tests.support.processes import became

NOW = 1_700_000_000_000
LATEST_DELAY_MS = 3 * int(MAX_PAUSE_SECONDS * 1000)


class _Lock(threading.Condition):
    """To wait for it moves the clock on; it is never notified."""

    now = NOW

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        # the clock has whole milliseconds, so that a pause that ends within one is too short
        self.now += max(1, round(timeout * 1000))
        return False


class _Commits:
    """Stands in for the log's writer, which fails at the first delivery: it is the last one."""

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock
        self.failure: StoreError | None = None
        self.delivered_at: Future[int] = Future()
        self.records: list[Record] = []

    def submit(self, records: list[Record]) -> NoReturn:
        self.records = records
        self.delivered_at.set_result(self._lock.now)
        self.failure = StoreError("nothing is written any more")
        raise self.failure


@pytest.mark.parametrize("delay_ms", [1, 30, 999, 1001, 2500, LATEST_DELAY_MS])
def test_a_delivery_is_made_when_it_is_due(writer: Writer, delay_ms: int) -> None:
    """To the millisecond, after several looks at the clock as after none."""
    text = b"REAL_TOPIC\x01%RETRY%group\x02REAL_QID\x010\x02DELAY\x011\x02"
    record = Record(
        topic=b"SCHEDULE_TOPIC_XXXX", store_timestamp=NOW, properties=text,
        property_map=parse(text),
    )  # fmt: skip
    waiting, lock = WaitingRecords((delay_ms,)), _Lock()
    waiting.note(record)
    commits: Any = _Commits(lock)
    with Deliveries(
        waiting, lock, commits, lambda _: record, writer, lambda: lock.now, lambda: None
    ):
        assert commits.delivered_at.result(60) == NOW + delay_ms


def waiting_at(place: int, body: bytes, level: int, due: int, real_queue_id: int = 0) -> Record:
    """A retry that waits for a level of as many seconds, and is due then."""
    text = b"REAL_TOPIC\x01%%RETRY%%group\x02REAL_QID\x01%d\x02DELAY\x01%d\x02" % (
        real_queue_id, level,
    )  # fmt: skip
    return Record(
        topic=b"SCHEDULE_TOPIC_XXXX", queue_id=level - 1, body=body, physical_offset=place,
        store_timestamp=due - 1000 * level, properties=text, property_map=parse(text),
    )  # fmt: skip


def delivered(
    writer: Writer, own: Record, owed: Record, base_pid: int | None, *, is_readable: bool = True
) -> list[Record]:
    """The first commit of an overlay whose own record and one of its base are due together."""
    waiting, lock = WaitingRecords((1000, 2000)), _Lock()
    waiting.owe(owed)
    waiting.note(own)
    records = {False: own, True: owed if is_readable else None}
    commits: Any = _Commits(lock)
    with Deliveries(
        waiting, lock, commits, lambda place: records[place.is_base], writer, lambda: lock.now,
        lambda: base_pid,
    ):  # fmt: skip
        assert commits.delivered_at.result(60) == NOW
    found: list[Record] = commits.records
    return found


@pytest.mark.parametrize("own_level", [1, 2])
def test_a_broker_that_is_back_delivers_what_waits_beside_the_overlay_s(
    writer: Writer, own_level: int
) -> None:
    """Whichever of the two comes first: the level of the base's is the other one."""
    own = waiting_at(0, b"own", own_level, NOW)
    owed = waiting_at(0, b"owed", 3 - own_level, NOW)
    assert [one.body for one in delivered(writer, own, owed, base_pid=77)] == [b"own"]
    both = delivered(writer, own, owed, base_pid=None)
    assert [one.body for one in both] == [b"own", b"owed"][:: 3 - 2 * own_level]


def test_a_retry_of_the_base_comes_to_queue_0(writer: Writer) -> None:
    """One of the overlay's own keeps its queue: its group has as many there as it wants."""
    own, owed = (waiting_at(0, body, 1, NOW, 2) for body in (b"own", b"owed"))
    found = {one.body: one.queue_id for one in delivered(writer, own, owed, base_pid=None)}
    assert found == {b"own": 2, b"owed": 0}


def test_a_record_that_cannot_be_read_keeps_no_other_waiting(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is passed over with one line, also where it is the first that is due."""
    own, owed = waiting_at(0, b"own", 2, NOW), waiting_at(0, b"owed", 1, NOW)
    found = delivered(writer, own, owed, base_pid=None, is_readable=False)
    assert [one.body for one in found] == [b"own"]
    (line,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert line.startswith("not delivered: the record at ") and line.endswith(" cannot be read")


@pytest.mark.parametrize("fitting", [[b"first", b"last"], [b"first"]])
def test_a_message_that_the_log_cannot_hold_keeps_no_other_waiting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fitting: list[bytes],
) -> None:
    """It is larger than a file of the overlay's log, and due together with others: it is passed
    over with one line, and the next start tries it again."""
    base, born = tmp_path / "base", 1_700_000_000_000
    base.mkdir()
    with LogAppender(base, file_size=1 << 18) as appender:
        for body in (fitting[0], bytes(1 << 17), *fitting[1:]):
            appender.append(waiting_at(0, body, 1, born))
        appender.sync()
    monkeypatch.setattr("reput.overlay.overlay.FILE_SIZE", 1 << 16)
    settings, writer = read_store_settings(base), Writer(RELEASE_5_3_3, ("10.0.0.9", 10912))
    for _ in range(2):
        caplog.clear()
        overlay = Overlay(settings, base, writer, now_ms=lambda: 2 * born)
        with overlay:
            # the thread tells nobody of what it passes over
            assert became(lambda: not overlay._waiting.due(2 * born), 30)  # noqa: B023
        assert [one.body for one in log_records(overlay.root)] == fitting
        lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert [line.startswith("not delivered: a message of 131") for line in lines] == [True]


def test_a_record_that_the_disk_does_not_give_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in its place would end the thread that delivers. It is there again with the disk."""
    base = tmp_path / "base"
    base.mkdir()
    with LogAppender(base, file_size=4096) as appender:
        appender.append(Record(topic=b"topic", body=b"body"))
        appender.sync()
    pread = os.pread

    def from_a_bad_disk(fd: int, size: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(base / "commitlog"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    writer, place = (
        Writer(RELEASE_5_3_3, ("10.0.0.9", 10912)),
        Source(is_base=True, physical_offset=0),
    )
    with Overlay(read_store_settings(base), base, writer, now_ms=lambda: NOW) as overlay:
        found = overlay._read(place)
        assert found is not None and found.body == b"body"
        monkeypatch.setattr(os, "pread", from_a_bad_disk)
        assert overlay._read(place) is None
        monkeypatch.setattr(os, "pread", pread)
        assert overlay._read(place) == found
    assert "cannot be read: " in caplog.text
