"""The thread that delivers, in virtual time: it waits for as long as nothing is due."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, NoReturn

import pytest

from reput.overlay.delivery.deliveries import MAX_PAUSE_SECONDS, Deliveries
from reput.overlay.delivery.waiting import WaitingRecords
from reput.overlay.records.release import Writer
from reput.store.errors import StoreError
from reput.store.log.properties import parse
from reput.store.log.record import Record

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

    def submit(self, _records: list[Record]) -> NoReturn:
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
