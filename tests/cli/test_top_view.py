"""``reput top`` draws readings that are made up, without a terminal and without a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from reput.checkpoints.history import Batch
from reput.cli import top, topview
from reput.cli.topview import Table, TopView, topics
from reput.store.state.ledger import LedgerCount
from reput.upkeep.watch.outputs import Reading, WatchedQueue
from reput.upkeep.watch.stages import RunStages, Stage
from reput.upkeep.watch.status import FollowerStatus, Lag

SECONDS = 60.0


def reading(rates: Sequence[float | None], dispatched: float | None = None) -> Reading:
    """An output with a topic for each rate."""
    queues = tuple(WatchedQueue(f"T{at}", 0, 0, 5, rate) for at, rate in enumerate(rates))
    return Reading(
        taken=1e9, log_min=0, log_end=100, watermark=100, watermark_age=1.0, lag=Lag(0, 0, 0.0),
        differs=None, writer_pid=None, unstopped_run=None, appended_rate=None,
        dispatched_rate=dispatched, queues=queues, ledger=(), followers=(), batches=(), damage=(),
        stages=None, unreadable={},
    )  # fmt: skip


def lines(view: TopView, found: Reading) -> list[str]:
    """A screen of 80 columns and 24 lines."""
    console = Console(width=80, height=24, force_terminal=False)
    with console.capture() as captured:
        console.print(view.picture(found, 80, 24), end="")
    return captured.get().splitlines()


def order(view: TopView, rates: Sequence[float | None]) -> list[str]:
    """The topics from above, in the view that is shown."""
    return [line[:2] for line in lines(view, reading(rates)) if line.startswith("T")]


@pytest.mark.parametrize("key", ["1", "2"])
def test_rows_stay_where_they_are_while_rates_jitter(key: str) -> None:
    """A rate counts as another one once it has changed by a quarter; it is shown as it is."""
    view = TopView("x")
    view.press(key)
    assert order(view, [100.0, 95.0, 20.0]) == ["T0", "T1", "T2"]
    assert order(view, [90.0, 99.0, 22.0]) == ["T0", "T1", "T2"]
    assert order(view, [81.0, 118.0, 19.0]) == ["T0", "T1", "T2"]
    assert any(line.split()[-1] == "118" for line in lines(view, reading([81.0, 118.0, 19.0])))
    assert order(view, [81.0, 126.0, 19.0]) == ["T1", "T0", "T2"]
    assert order(view, [81.0, 126.0, None]) == ["T1", "T0", "T2"]
    assert order(view, [81.0, 126.0, 500.0]) == ["T2", "T1", "T0"]
    view.press("r")
    assert order(view, [81.0, 126.0, 500.0]) == ["T0", "T1", "T2"]


def test_queues_of_one_topic_stay_where_they_are_while_rates_jitter() -> None:
    """Each has a rate of its own."""
    view = TopView("x")
    for rates in ((100.0, 95.0, 20.0), (81.0, 118.0, 19.0)):
        queues = tuple(WatchedQueue("T", at, 0, 5, rate) for at, rate in enumerate(rates))
        shown = lines(view, replace(reading(()), queues=queues))
        assert [line.split()[1] for line in shown if line.startswith("T ")] == ["0", "1", "2"]


def test_rates_that_are_unknown_are_left_out() -> None:
    """Each has its unit; where none is known this is said once. A part makes no sum."""
    for found, shown in (
        (reading([None]), "unknown"), (reading([2.0, None]), "unknown"),
        (reading([2.0], 2048.0), "2.0 messages/s, 2.0 KiB/s")
    ):  # fmt: skip
        (line,) = (line for line in lines(TopView("x"), found) if line.startswith("rates"))
        assert line.split(maxsplit=1)[1].rstrip() == shown


def test_the_sums_of_a_topic_with_an_unknown_queue_are_unknown() -> None:
    """A part of them would look like all of it."""
    queues = (
        WatchedQueue("T", 0, 0, 5, 1.0), WatchedQueue("T", 1, 0, 5, None),
        WatchedQueue("U", 0, 0, 5, 1.0), WatchedQueue("U", 1, 0, None, 2.0),
    )  # fmt: skip
    found = topics(replace(reading(()), queues=queues))
    assert isinstance(found, Table)
    assert [*map(tuple, found.rows)] == [("T", 2, 10, None), ("U", 2, None, 3.0)]


def test_numbers_stand_below_their_headings() -> None:
    """A queue has two bounds, and a batch two ends; this one was planned ten seconds ago."""
    found = replace(
        reading(()), queues=(WatchedQueue("T", 1, 2, 9, 4.0),), watermark=50,
        batches=(Batch(7, 30, 60, False, 999_999_990_000),),
    )  # fmt: skip
    rows = []
    for view in (topview.queues, topview.batches):
        table = view(found)
        assert isinstance(table, Table)
        ((*values,),) = table.rows
        rows.append(dict(zip((column.title for column in table.columns), values, strict=True)))
    assert rows == [
        {"topic": "T", "queue": 1, "min": 2, "max": 9, "messages": 7, "messages/s": 4.0},
        {"batch": 7, "start": 30, "end": 60, "size": 30, "planned": 10.0, "state": "planned"},
    ]


def rows_of(view: Callable[[Reading], Table | str], found: Reading) -> list[tuple[object, ...]]:
    table = view(found)
    assert isinstance(table, Table)
    return [*map(tuple, table.rows)]


def test_a_batch_is_durable_up_to_the_watermark() -> None:
    """The newest one is the first; without a watermark Spark's notes alone are known."""
    batches = tuple(
        Batch(number, 10, end, committed, None)
        for number, (end, committed) in enumerate(
            ((49, True), (50, False), (51, True), (52, False))
        )
    )
    found = replace(reading(()), batches=batches, watermark=50)
    states = [(row[0], row[-1]) for row in rows_of(topview.batches, found)]
    assert states == [(3, "planned"), (2, "committed"), (1, "durable"), (0, "durable")]
    states = [(row[0], row[-1]) for row in rows_of(topview.batches, replace(found, watermark=None))]
    assert states == [(3, "planned"), (2, "committed"), (1, "planned"), (0, "committed")]


def test_a_stage_has_the_mean_of_its_durations() -> None:
    """One that has not run has none, which is not 0."""
    stages = (Stage("commit", 4, 0.5, 80.0), Stage("sync", 0, 0.0, None))
    found = replace(reading(()), stages=RunStages("x", 4, stages))
    assert rows_of(topview.stages, found) == [
        ("commit", 4, 80.0, 125.0, 0.5), ("sync", 0, None, None, 0.0)
    ]  # fmt: skip


def test_a_follower_has_one_state() -> None:
    """One that fails may have to be truncated as well."""
    followers = (
        FollowerStatus("a", "t", position=3, rows=4, lost_bytes=5, lag_bytes=6),
        FollowerStatus("b", "t", truncate_to=0),
        FollowerStatus("c", "t", error="no", truncate_to=7),
    )
    found = replace(reading(()), followers=followers)
    assert rows_of(topview.followers, found) == [
        ("a", 3, 6, 4, 5, "ok"), ("b", None, None, 0, 0, "truncating"),
        ("c", None, None, 0, 0, "failing"),
    ]  # fmt: skip
    (line,) = (line for line in lines(TopView("x"), found) if line.startswith("followers"))
    shown = "a lag 6 B; b lag unknown; c lag unknown, failing"
    assert line.split(maxsplit=1)[1].rstrip() == shown


def test_every_fault_has_a_line() -> None:
    """Gaps are places, and other ranges have bytes; the log's own fault is the first."""
    found = replace(
        reading(()), differs="it was cut", unstopped_run="it was killed",
        unreadable={"queues": "no"}, damage=("offsets/3",),
        ledger=(LedgerCount("queue_offset_gap", 2, 0), LedgerCount("bad_magic", 1, 1234)),
        followers=(
            FollowerStatus("a", "t"),
            FollowerStatus("b", "t", error="no", failing_since="2026-01-31T20:00:00+08:00"),
        ),
    )  # fmt: skip
    assert topview.faults(found) == [
        "log: it was cut", "run: it was killed", "queues: no",
        "follower b: no; since 2026-01-31T12:00:00.000Z",
        "gaps: queue offsets jump at 2 places",
        "quarantine: bad_magic, 1 range of 1,234 bytes", "spark's checkpoint: offsets/3",
    ]  # fmt: skip
    (line,) = (line for line in lines(TopView("x"), found) if line.startswith("faults"))
    assert line.split(maxsplit=1)[1].rstrip() == "7: log: it was cut"


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_reading_that_fails_ends_the_view(good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many came before: the last one would stand there as if it were now."""
    monkeypatch.setattr(top, "READ_SECONDS", 0.0)
    readings, drawn, failed = iter([reading([1.0])] * good), list[object](), threading.Event()

    class Watch:
        def read(self) -> Reading:
            for one in readings:
                return one
            raise ZeroDivisionError

    def on_reading() -> None:
        drawn.append(None)
        if len(drawn) > good:
            failed.set()

    with top._Readings(Watch(), on_reading) as found:  # type: ignore[arg-type]
        assert failed.wait(SECONDS)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                found.latest()
