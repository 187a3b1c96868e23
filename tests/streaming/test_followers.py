"""Followers of a real run go at their own pace, whatever happens to their targets."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from reput.checkpoints.followers import FollowerState, read_follower_states, write_follower_state
from reput.sinks.delta.table import DeltaTarget
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import NoSpaceError, OutputError, StoreError
from reput.store.files import FOLLOWERS_DIRECTORY
from reput.store.rows.rowform import AS_STORED, DEFAULT_FORM, RowForm
from reput.streaming import followers
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.followers import Followers
from reput.streaming.progress import Progress
from reput.upkeep.rebuild import rebuild
from reput.upkeep.watch.status import read_status
from reput.workload.appender import Appender
from reput.workload.messages import Workload
from tests.streaming.test_golden import dispatch
from tests.support.cli import reput
from tests.support.golden import difference
from tests.support.plain_rows import is_internal
from tests.support.plain_rows import plain_rows as plain_rows_of
from tests.support.processes import became
from tests.support.tables import log_end, plain_columns, plain_rows, table_rows
from tests.support.wire import PlainLog

LONGEST_SECONDS = 60.0
Golden = Callable[[str], Path]


def delta(table: Path) -> tuple[DeltaTarget, ...]:
    """A table, committed to without waiting."""
    return (DeltaTarget(str(table), interval_seconds=0.0),)


def state(output: Path) -> FollowerState:
    """The one follower's file."""
    (found,) = read_follower_states(output / "reput")
    return found


@pytest.mark.usefixtures("spark")
def test_table_is_complete_after_every_run(golden: Golden, tmp_path: Path) -> None:
    """In many batches; without Spark's checkpoint, dispatched again, rebuilt: never a row twice."""
    store, output, table = golden("plain"), tmp_path / "output", tmp_path / "table"
    expected = plain_rows(store)
    dispatch(store, output, followers=delta(table), max_bytes_per_trigger=400 << 10)
    assert plain_columns(table) == expected
    assert state(output).position == log_end(store)
    assert state(output).rows == len(expected)
    shutil.rmtree(output / "reput" / "spark")
    dispatch(store, output, followers=delta(table), replay_from="earliest")
    assert plain_columns(table) == expected
    rebuild(DispatcherConfig(store, output), threading.Event())
    dispatch(store, output, followers=delta(table))
    assert plain_columns(table) == expected


def break_table(table: Path) -> None:
    """A directory that no table can be in."""
    table.mkdir()
    (table / "_delta_log").write_text("no directory", "utf-8")


@pytest.mark.usefixtures("spark")
def test_failing_target_does_not_hold_up_the_queues(tmp_path: Path) -> None:
    """Its lag and error are shown, the run says so at its end, the next one catches up."""
    store, output, table = tmp_path / "store", tmp_path / "output", tmp_path / "table"
    workload = Workload(2, 2, 100, seed=1)
    with Appender(store, file_size=1 << 20) as appender:
        appender.append_batch(workload.batch(0, 300, time.time_ns() // 1_000_000))
        dispatch(store, output, followers=delta(table))
        reached = appender.end_offset
        appender.append_batch(workload.batch(300, 300, time.time_ns() // 1_000_000))
        table.rename(tmp_path / "away")
        break_table(table)
        with pytest.raises(StoreError, match="the queues are complete"):
            dispatch(store, output, followers=delta(table))
    # the queues' part of the run had ended, so the next start needs no recovery
    assert not (output / "reput" / "abort").exists()
    dispatch(store, tmp_path / "plain")
    assert difference(output / "consumequeue", tmp_path / "plain" / "consumequeue") == []
    (found,) = read_status(read_store_settings(store), output).followers
    assert (found.position, found.lag_bytes) == (reached, log_end(store) - reached)
    assert found.error is not None and found.failing_since is not None
    assert "[31m" not in found.error  # the library's colours
    shown = " ".join(reput("status", store, "--output", output).stdout.split())
    assert str(reached) in shown and "delta" in shown
    shutil.rmtree(table)
    (tmp_path / "away").rename(table)
    dispatch(store, output, followers=delta(table))
    assert plain_columns(table) == plain_rows(store)
    assert state(output).error is None


@pytest.mark.usefixtures("spark")
def test_target_that_comes_back_is_caught_up_with_by_itself(tmp_path: Path) -> None:
    """In one live run: the queues go on while it fails, twice, then it is filled."""
    store, output, table = tmp_path / "store", tmp_path / "output", tmp_path / "table"
    workload, deadline = Workload(2, 2, 100, seed=1), time.monotonic() + LONGEST_SECONDS
    break_table(table)
    stop, ends = threading.Event(), list[int]()
    with Appender(store, file_size=1 << 20) as appender:

        def append() -> None:
            at = 200 * len(ends)
            appender.append_batch(workload.batch(at, 200, time.time_ns() // 1_000_000))
            ends.append(appender.end_offset)

        def watch(progress: Progress) -> None:
            assert time.monotonic() < deadline
            states = list(read_follower_states(output / "reput"))
            if progress.end_offset != ends[-1] or not states:
                return
            if len(ends) < 3:
                assert states[0].error is not None
                append()
            elif (table / "_delta_log").is_file():
                shutil.rmtree(table)
            elif states[0].position == ends[-1]:
                stop.set()

        append()
        config = DispatcherConfig(store, output, followers=delta(table))
        assert run_dispatcher(config, stop, watch).end_offset == ends[-1]
    assert plain_columns(table) == plain_rows(store)
    assert (state(output).error, state(output).rows) == (None, 600)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("case", ["runs at the cut", "runs later", "its file is damaged"])
def test_log_that_was_cut_and_written_anew(tmp_path: Path, case: str) -> None:
    """As after a power loss of the broker: what it lost leaves the table, by the next run with
    the follower; the one that finds the log cut may be it."""
    store, output, table = tmp_path / "store", tmp_path / "output", tmp_path / "table"
    bodies = [b"old%d" % number for number in range(40)]

    def lay(kept: int, more: int) -> None:
        log = PlainLog(1 << 20)
        for at, body in enumerate([*bodies[:kept], *[b"new%d" % number for number in range(more)]]):
            log.append(body=body, queue_offset=at)
        log.write(store / "commitlog")

    lay(40, 0)
    dispatch(store, output, followers=delta(table))
    lay(25, 0)
    if case == "its file is damaged":
        (output / "reput" / FOLLOWERS_DIRECTORY / "delta.json").write_text("{")
    if case == "runs at the cut":
        dispatch(store, output, followers=delta(table))
        assert plain_columns(table) == plain_rows(store)
    else:
        dispatch(store, output)
        assert state(output).truncate_to == log_end(store)
        assert len(table_rows(table)) == 40
    lay(25, 30)
    dispatch(store, output, followers=delta(table))
    assert state(output).truncate_to is None
    assert plain_columns(table) == plain_rows(store)


@pytest.mark.usefixtures("spark")
def test_log_that_was_lost_before_it_was_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention passed a follower that did not run, and a record was damaged after its dispatch:
    the range is counted, rows say so, and a warning gives the bytes of both."""
    store, output, table = tmp_path / "store", tmp_path / "output", tmp_path / "table"
    log = PlainLog(4000)
    for at in range(20):
        log.append(body=b"b" * 50, queue_offset=at)
    log.write(store / "commitlog")
    dispatch(store, output, followers=delta(table))
    reached, delivered = log.end, len(log.spans)
    for at in range(20, 100):
        log.append(body=b"b" * 50, queue_offset=at)
    log.write(store / "commitlog")
    dispatch(store, output)
    broken = log.spans[-3]
    log.put(broken[0] + 4, bytes(4))
    log.write(store / "commitlog")
    for start in (0, 4000):
        (store / "commitlog" / f"{start:020d}").unlink()
    dispatch(store, output, followers=delta(table))
    assert f"{8000 - reached} bytes are lost" in caplog.text
    assert f"{broken[1] - broken[0]} bytes are damaged" in caplog.text
    starts = [start for start, _ in log.spans]
    expected = [*starts[:delivered], reached, *(start for start in starts if start >= 8000)]
    assert [row["physicalOffset"] for row in table_rows(table)] == expected
    assert state(output).lost_bytes == 8000 - reached > 0


@dataclass
class Held:
    """A target that takes rows only while it is let; holds them in memory."""

    name: str = "held"
    description: str = "memory"
    interval_seconds: float = 0.0
    local_path: None = None
    position_is_apart: bool = True
    offsets: list[int] = field(default_factory=list)
    end: int | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def open(self, _store_id: str, _settings: StoreSettings) -> Held:
        """Itself."""
        return self

    def position(self) -> int | None:
        """The end of what it holds."""
        return self.end

    def row_form(self) -> RowForm:
        """All that there is."""
        return AS_STORED

    def write(self, _start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Take all rows or none."""
        self.begun.set()
        assert self.go_on.wait(LONGEST_SECONDS)
        taken = [offset for batch in rows for offset in batch.column("physicalOffset").to_pylist()]
        self.offsets += taken
        self.end = end

    def truncate(self, end: int) -> None:
        """Nobody asks for it here."""
        raise AssertionError(end)

    def counts(self) -> Mapping[str, int]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing to do."""


def test_stop_does_not_wait_for_a_target(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs is left alone, and gets no row afterwards; the next run gives it all."""
    monkeypatch.setattr(followers, "STOP_SECONDS", 0.01)
    store, output, target = golden("plain"), tmp_path / "output", Held()
    (output / "reput").mkdir(parents=True)
    end = log_end(store)
    config = DispatcherConfig(store, output, followers=(target,))
    first = Followers(config, read_store_settings(store), "0" * 32)
    first.start(0, end)
    first.advance(end)
    assert target.begun.wait(LONGEST_SECONDS)
    first.close()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "reput-held")
    target.go_on.set()
    thread.join(LONGEST_SECONDS)
    assert not thread.is_alive()
    assert target.offsets == []
    second = Followers(config, read_store_settings(store), "0" * 32)
    second.start(end, end)
    second.catch_up(threading.Event())
    second.close()
    assert target.offsets == [row["physicalOffset"] for row in plain_rows(store)]


def test_a_cut_reaches_a_target_that_was_killed_at_its_first_write(
    golden: Golden, tmp_path: Path
) -> None:
    """It is known before it holds anything: else a log that was cut would be taken for another."""
    store, output, target = golden("plain"), tmp_path / "output", Held()
    (output / "reput").mkdir(parents=True)
    end = log_end(store)
    config = DispatcherConfig(store, output, followers=(target,))
    killed = Followers(config, read_store_settings(store), "0" * 32)
    killed.start(end, end)
    assert target.begun.wait(LONGEST_SECONDS)
    killed.truncate(end - 1)
    assert state(output).truncate_to == end - 1
    target.go_on.set()
    killed.close()


def test_a_cut_that_could_not_be_noted_is_made_again(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written: the next run would take back what came since."""
    store, output, calls = golden("plain"), tmp_path / "output", list[str]()
    (output / "reput").mkdir(parents=True)
    end = log_end(store)
    write_follower_state(output / "reput", FollowerState("held", "memory", truncate_to=end))

    class Noting(Held):
        def truncate(self, end: int) -> None:  # noqa: ARG002
            calls.append("truncate")

        def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
            calls.append("write")
            super().write(start, end, rows)

    def fail_once(directory: Path, state: FollowerState) -> None:
        if state.truncate_to is None and len(calls) == 1:
            raise OutputError("no space")
        write_follower_state(directory, state)

    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(followers, "write_follower_state", fail_once)
    target = Noting()
    target.go_on.set()
    config = DispatcherConfig(store, output, followers=(target,))
    running = Followers(config, read_store_settings(store), "0" * 32)
    running.start(end, end)
    running.catch_up(threading.Event())
    running.close()
    assert calls == ["truncate", "truncate", "write"]


def test_an_old_failure_to_read_explains_no_new_one(golden: Golden, tmp_path: Path) -> None:
    """Each attempt is explained by its own error."""
    store, output = golden("plain"), tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    end, log_file = log_end(store), store / "commitlog" / f"{0:020d}"

    class Away(Held):
        def position(self) -> int | None:
            if not log_file.exists():
                raise StoreError("the target is away")
            return None

        def write(self, _start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:  # noqa: ARG002
            log_file.unlink()
            list(rows)

    config = DispatcherConfig(store, output, followers=(Away(),))
    running = Followers(config, read_store_settings(store), "0" * 32)
    running.start(end, end)
    with pytest.raises(StoreError, match="the target is away"):
        running.catch_up(threading.Event())
    running.close()


def test_a_write_that_fails_beyond_the_logs_first_end_is_tried_again(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has grown since the start, and the target with it: it is the same log."""
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.01)
    store, output = golden("plain"), tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    expected = [row["physicalOffset"] for row in plain_rows(store)]
    first, second, end = expected[30], expected[60], log_end(store)

    class Failing(Held):
        def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
            if start == second and self.begun.is_set():
                self.begun.clear()
                raise OutputError("the target is away")
            super().write(start, end, rows)

    target = Failing()
    target.go_on.set()
    running = Followers(
        DispatcherConfig(store, output, followers=(target,)), read_store_settings(store), "0" * 32
    )
    running.start(first, first)
    for reached in (first, second):
        running.advance(reached)
        assert became(lambda: target.end == reached, LONGEST_SECONDS)  # noqa: B023
    running.advance(end)
    running.catch_up(threading.Event())
    running.close()
    assert target.offsets == expected


def test_a_position_that_could_not_be_saved_is_saved_later(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has room again, and no message comes any more: people see where the target is."""
    monkeypatch.setattr(followers, "SAVE_SECONDS", 0.0)
    store, output = golden("plain"), tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    end, failures = log_end(store), list[int]()

    def fail_once(directory: Path, state: FollowerState) -> None:
        if state.position == end and not failures:
            failures.append(end)
            raise OutputError("no space")
        write_follower_state(directory, state)

    monkeypatch.setattr(followers, "write_follower_state", fail_once)
    target = Held()
    target.go_on.set()
    config = DispatcherConfig(store, output, followers=(target,))
    running = Followers(config, read_store_settings(store), "0" * 32)
    running.start(end, end)
    try:
        assert became(lambda: failures and state(output).position == end, LONGEST_SECONDS)
    finally:
        running.close()


def test_little_is_collected_for_a_while(golden: Golden, tmp_path: Path) -> None:
    """Between two writes lies the target's interval, unless much has come or the run ends."""
    store, output = golden("plain"), tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    expected = [row["physicalOffset"] for row in plain_rows(store)]
    middle, end = expected[50], log_end(store)
    target = Held(interval_seconds=3600.0)
    target.go_on.set()
    config = DispatcherConfig(store, output, followers=(target,))
    running = Followers(config, read_store_settings(store), "0" * 32)
    running.start(0, end)
    running.advance(middle)
    assert target.begun.wait(LONGEST_SECONDS)
    running.advance(end)
    assert became(lambda: state_position(output) == middle, LONGEST_SECONDS)
    assert target.end == middle
    running.catch_up(threading.Event())
    running.close()
    assert (target.end, target.offsets) == (end, expected)


def state_position(output: Path) -> int | None:
    """As the follower's file says, if it is there."""
    return next((found.position for found in read_follower_states(output / "reput")), None)


def test_target_of_another_log_is_refused(golden: Golden, tmp_path: Path) -> None:
    """It holds more than the log ever had: nothing is written over it, the run fails."""
    store, output = golden("plain"), tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    end = log_end(store)
    target = Held(end=end + 1)
    config = DispatcherConfig(store, output, followers=(target,))
    running = Followers(config, read_store_settings(store), "0" * 32)
    running.start(end, end)
    with pytest.raises(StoreError, match="another log"):
        running.catch_up(threading.Event())
    running.close()
    assert target.offsets == []


def test_a_full_disk_of_a_target_is_no_other_error(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits for room and tries again; it does not for what a target says otherwise."""
    store, output = golden("plain"), tmp_path / "output"
    (output / "reput").mkdir(parents=True)
    end = log_end(store)
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.01)
    for text, kind in (("No space left on device (os error 28)", NoSpaceError), ("?", StoreError)):

        class Full(Held):
            def write(self, _start: int, _end: int, _rows: Iterator[pa.RecordBatch]) -> None:
                raise OSError(text)  # noqa: B023

        config = DispatcherConfig(store, output, followers=(Full(),))
        running = Followers(config, read_store_settings(store), "0" * 32)
        running.start(end, end)
        with pytest.raises(StoreError, match="the queues are complete") as caught:
            running.catch_up(threading.Event())
        assert type(caught.value) is kind
        running.close()


@pytest.mark.parametrize("form", [DEFAULT_FORM, AS_STORED])
def test_a_target_gets_rows_in_its_form(golden: Golden, tmp_path: Path, form: RowForm) -> None:
    """Internal records are counted in the follower's state, over runs."""

    class Formed(Held):
        def row_form(self) -> RowForm:
            return form

    store, output, target = golden("mixed"), tmp_path / "output", Formed()
    (output / "reput").mkdir(parents=True)
    log = read_store_settings(store).open_log()
    expected = list(plain_rows_of(log, log.min_offset, log_end(store)))
    internal = 0 if form.include_internal else sum(map(is_internal, expected))
    target.go_on.set()
    for end in (expected[len(expected) // 2]["physicalOffset"], log_end(store)):
        config = DispatcherConfig(store, output, followers=(target,))
        running = Followers(config, read_store_settings(store), "0" * 32)
        running.start(end, log_end(store))
        running.catch_up(threading.Event())
        running.close()
    assert target.offsets == [
        row["physicalOffset"] for row in expected if form.include_internal or not is_internal(row)
    ]
    found = state(output)
    assert (found.rows, found.internal_left_out) == (len(target.offsets), internal)
    assert len(target.offsets) + internal == len(expected)
