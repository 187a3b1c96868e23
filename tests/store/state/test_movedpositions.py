"""Queues whose positions are no queue offsets any more, from lines of a ledger made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.files import CONSUMER_OFFSET_FILE
from reput.store.state.ledger import LedgerEntry
from reput.store.state.movedpositions import ADVICE, MovedQueue, moved_queues, warn_of_moved


def gap(physical: int, topic: str, queue_id: int, queue_offset: int, position: int) -> LedgerEntry:
    """The entry of a jump, as a dispatcher lists it."""
    detail = f"queue offset {queue_offset} at position {position}"
    return LedgerEntry(
        physical, physical + 90, "queue_offset_gap", topic, queue_id, queue_offset, detail
    )


def commit(root: Path, table: str) -> Path:
    path = root / CONSUMER_OFFSET_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"offsetTable":{{{table}}}}}', "utf-8")
    return root


def test_a_queue_counts_from_its_first_gap(tmp_path: Path) -> None:
    """The first in the log, in whatever order they are listed; sorted, and each once. Lines that
    are damaged or tell of something else do not count."""
    entries = [
        gap(900, "T", 1, 30, 12),
        None,
        gap(500, "T", 1, 20, 10),
        replace(gap(100, "T", 1, 5, 1), detail="a detail of another version"),
        replace(gap(100, "T", 1, 5, 1), queue_offset=None),
        replace(gap(100, "T", 1, 5, 1), reason="queue_offset_seen_before"),
        gap(700, "T", 1, 25, 11),
        gap(800, "T", 0, 7, 0),
        gap(850, "A", 3, 9, 4),
    ]
    assert moved_queues(entries, (tmp_path,)) == (
        MovedQueue("A", 3, 4, 9, 850, 0),
        MovedQueue("T", 0, 0, 7, 800, 0),
        MovedQueue("T", 1, 10, 20, 500, 0),
    )
    assert moved_queues(entries[1:2], (tmp_path,)) == ()


def test_groups_beyond_a_gap_are_counted_once(tmp_path: Path) -> None:
    """By the offsets of the last root that has any; of this queue alone. An offset that is the
    gap's own position is that of the message before and after."""
    store = commit(tmp_path / "store", '"T@other":{1:99}')
    output = commit(
        tmp_path / "output",
        '"T@a":{0:5,1:11},"T@b":{1:10},"T@c":{0:99},"T@d":{1:999},"T@a@broadcast":{1:11},'
        '"订单@a":{1:1}',
    )
    entries = [gap(500, "T", 1, 20, 10), gap(600, "订单", 1, 9, 0)]
    none = tmp_path / "none"
    for roots, groups in (
        ((store,), (1, 0)),
        ((store, output), (3, 1)),
        ((output, store), (1, 0)),
        ((store, none), (1, 0)),
        ((none,), (0, 0)),
    ):
        found = moved_queues(entries, roots)
        assert tuple(queue.groups for queue in found) == groups, roots


@pytest.mark.parametrize(
    ("count", "more"),
    [(0, None), (1, ""), (8, ""), (9, "1 queues more; "), (11, "3 queues more; ")],
)
def test_the_first_queues_are_named(
    count: int, more: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to eight, and the number of the others; then what it means. Nothing without a queue."""
    queues = [MovedQueue("T", number, 4, 9, 850, 2) for number in range(count)]
    warn_of_moved(queues)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        *(
            "positions no longer equal queue offsets: topic=T queue="
            f"{number} position=4 queue_offset=9 physical_offset=850 groups_beyond=2"
            for number in range(min(count, 8))
        ),
        *(() if more is None else (f"{more}{ADVICE}",)),
    ]
