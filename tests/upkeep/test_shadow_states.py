"""Rare states of the comparison beside a broker: what lags, goes, is not durable yet, or fails; and
what it does while it runs, before all is looked at for the last time.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import StoreError
from reput.store.log.record import Record
from reput.store.queue.kinds import QueueKind
from reput.store.runs.dispatch import Run
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from reput.upkeep import shadow as module
from reput.upkeep.compare import PairReader
from reput.upkeep.shadow import EntryDifference, KindCounts, Shadow, ShadowResult
from reput.workload.appender import Appender
from tests.support import wire
from tests.upkeep.test_shadow import EVENT_SECONDS, entries, overwrite, shadowed, totals, unit_at

Golden = Callable[[str], Path]
SIZE = wire.UNIT.size
UNITS_PER_FILE = 10


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes the very unit that is read."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


class StillShadow(Shadow):
    """Looks when it is told to, and not on its own."""

    def _run(self) -> None:
        pass

    def look(self) -> list[EntryDifference]:
        """Look twice, as a difference needs; what has been found so far."""
        self._look_at_due()
        self._look_at_due()
        return self.result.differences


def built(root: Path, topics: Sequence[bytes], count: int) -> tuple[Path, Path, list[Run]]:
    """A store with so many messages in queue 0 of each topic, the output, which is in the place of
    the broker's queues as well, and the runs that were dispatched."""
    store, output = root / "store", root / "output"
    with Appender(store, file_size=1 << 20) as appender:
        for topic in topics * count:
            appender.append(Record(topic=topic, body=b"body"))
    (store / "broker.conf").write_text(f"mappedFileSizeConsumeQueue={SIZE * UNITS_PER_FILE}\n")
    found: list[Run] = []

    def note(_settings: StoreSettings, runs: Sequence[Run] | None) -> None:
        found.extend(runs or ())

    with running(DispatcherConfig(store, output, once=True), on_visible=note) as run:
        run.commit(run.scan(run.start.log_end))
    shutil.copytree(output / "consumequeue", store / "consumequeue")
    return store, output, found


def queue_file(root: Path, topic: str, number: int = 0) -> Path:
    """A file of queue 0 of a topic."""
    name = wire.file_name(number * SIZE * UNITS_PER_FILE)
    return root / "consumequeue" / topic / "0" / name


def compared(store: Path, output: Path) -> ShadowResult:
    """The comparison of an output that is built already."""
    settings = read_store_settings(store)
    with Shadow(settings, output) as shadow:
        shadow.end_moved(settings, None)
    return shadow.result


def test_equal_is_what_was_compared_without_a_difference() -> None:
    """Entries of one kind are enough: the other's queues may all be such as cannot be compared."""
    some, none = KindCounts(queues=1, entries=5), KindCounts(uncomparable=2, awaited=1)
    assert ShadowResult({QueueKind.CONSUME: some, QueueKind.BATCH: none}).is_equal
    assert not ShadowResult({QueueKind.CONSUME: KindCounts(1), QueueKind.BATCH: none}).is_equal
    other = EntryDifference(QueueKind.CONSUME, "T", 0, 0, wire.file_name(0), 0, None, None)
    assert not ShadowResult({QueueKind.CONSUME: some}, [other]).is_equal


def test_queues_that_grow_between_two_looks_are_looked_at(tmp_path: Path) -> None:
    """All of them, while the run goes on; the others are not."""
    store, output, runs = built(tmp_path, [b"A", b"B", b"C"], 3)
    for topic in "ABC":
        overwrite(queue_file(store, topic), 12, b"\x55")
    settings = read_store_settings(store)
    shadow = StillShadow(settings, output)
    for run in runs:
        if run.topic != b"B":
            shadow.end_moved(settings, [run])
    assert {(one.topic, one.unit) for one in shadow.look()} == {("A", 0), ("C", 0)}
    shadow.end_moved(settings, None)
    assert [one.topic for one in shadow.look()][2:] == ["B"]


def test_a_broker_that_lags_is_looked_at_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the output's queue does not grow: what the broker writes then is compared, and a
    difference is logged once."""
    store, output, runs = built(tmp_path, [b"A"], 3)
    overwrite(queue_file(store, "A"), 2 * SIZE, bytes(SIZE))
    settings = read_store_settings(store)
    shadow = StillShadow(settings, output)
    shadow.end_moved(settings, runs)
    assert shadow.look() == []
    overwrite(queue_file(store, "A"), 2 * SIZE, wire.UNIT.pack(1, 2, 3))
    with caplog.at_level(logging.ERROR, "reput"):
        (found,) = shadow.look()
        shadow.look()
    assert (found.unit, found.broker) == (2, {"offset": 1, "size": 2, "tags_code": 3})
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    (line,) = [record.getMessage() for record in errors]
    place = f"consumequeue/A/0/{wire.file_name(0)}, byte {found.position}"
    assert line == f"the broker's queue differs: {place}"


def test_a_queue_with_a_difference_awaits_nothing(tmp_path: Path) -> None:
    """Its entries up to there are equal, and nobody knows of the others."""
    store, output, _ = built(tmp_path, [b"A", b"B"], 9)
    overwrite(queue_file(store, "A"), 4 * SIZE + 3, b"\x01")
    overwrite(queue_file(store, "B"), 7 * SIZE, bytes(2 * SIZE))
    result = compared(store, output)
    assert [one.unit for one in result.differences] == [4]
    assert result.compared[QueueKind.CONSUME] == KindCounts(2, entries=4 + 7, awaited=2)


def test_files_that_the_broker_lacks(tmp_path: Path) -> None:
    """The last one is awaited; one in the middle is a difference at its first byte that differs."""
    store, output, _ = built(tmp_path, [b"A"], 35)
    queue_file(store, "A", 3).unlink()
    assert totals(compared(store, output)) == (30, 5, 0)
    unit = queue_file(store, "A", 1).read_bytes()[:SIZE]
    overwrite(queue_file(store, "A", 1), 0, bytes(UNITS_PER_FILE * SIZE))
    (found,) = compared(store, output).differences
    first = next(at for at, byte in enumerate(unit) if byte)
    assert (found.file, found.position) == (wire.file_name(UNITS_PER_FILE * SIZE), first)
    assert (found.unit, found.broker) == (UNITS_PER_FILE, None)


def test_what_lies_beyond_the_watermark_is_not_compared(tmp_path: Path) -> None:
    """The dispatcher has written it, and may write it again: neither a difference nor awaited."""
    store, output, _ = built(tmp_path, [b"A", b"B"], 3)
    path, last, _ = entries(output, queue="A/0")[-1]
    offset, size, code = unit_at(path, last)
    beyond = wire.UNIT.pack(offset + 10 * size, size, code)
    for topic in "AB":
        overwrite(queue_file(output, topic), 3 * SIZE, beyond)
    overwrite(queue_file(store, "A"), 3 * SIZE, wire.UNIT.pack(offset + 10 * size, size, 1))
    result = compared(store, output)
    assert (result.is_equal, totals(result)) == (True, (6, 0, 0))


def test_a_batch_queue_that_the_broker_has_not_begun(golden: Golden, tmp_path: Path) -> None:
    """Its file is there and blank, and the log has lost its front: its entries are awaited."""
    store = golden("batch")
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    for path in (store / "batchconsumequeue").glob("*/*/*"):
        path.write_bytes(bytes(path.stat().st_size))
    found = shadowed(store, tmp_path / "output").compared[QueueKind.BATCH]
    assert (found.entries, found.uncomparable) == (0, 0)
    assert found.awaited == len(entries(tmp_path / "output", "batchconsumequeue")) > 0


def test_a_log_that_loses_its_front_after_the_output_began(golden: Golden, tmp_path: Path) -> None:
    """Batch queues of both sides begin with the same lost message, so that they are compared."""
    store, output = golden("batch"), tmp_path / "output"
    shadowed(store, output)
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    result = compared(store, output)
    assert (result.is_equal, totals(result)) == (True, (len(entries(store)), 0, 0))


def test_an_error_of_the_run_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the block as it is, also where the comparison has failed, and nothing is compared at
    last."""
    store, output, _ = built(tmp_path, [b"A"], 3)
    settings = read_store_settings(store)
    shadow = Shadow(settings, output)
    with pytest.raises(KeyError), shadow:
        shadow.end_moved(settings, None)
        raise KeyError
    assert shadow.result == ShadowResult()

    def fail(*_arguments: object) -> None:
        raise StoreError("made up")

    monkeypatch.setattr(PairReader, "first_difference", fail)
    shadow = Shadow(settings, output)
    with pytest.raises(KeyError), shadow:
        failed(shadow, settings)
        raise KeyError


def failed(shadow: Shadow, settings: StoreSettings) -> None:
    """Let the comparison begin, and wait until it has failed."""
    shadow.end_moved(settings, None)
    assert shadow._thread is not None
    shadow._thread.join(EVENT_SECONDS)
    assert not shadow._thread.is_alive()


def test_a_comparison_that_has_failed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next batch, since a run that goes on would be compared with nothing."""
    store, output, runs = built(tmp_path, [b"A"], 3)
    settings = read_store_settings(store)

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(PairReader, "first_difference", fail)
    shadow = Shadow(settings, output)
    with pytest.raises(StoreError, match="the comparison with the broker has failed"), shadow:
        failed(shadow, settings)
        shadow.end_moved(settings, runs)
        pytest.fail("the run goes on")


def test_no_file_stays_open(tmp_path: Path) -> None:
    """Whether the comparison has found a difference or not."""
    store, output, _ = built(tmp_path, [b"A", b"B"], 3)
    before = sorted(Path("/proc/self/fd").iterdir())
    assert compared(store, output).is_equal
    overwrite(queue_file(store, "B"), 3, b"\x01")
    assert not compared(store, output).is_equal
    assert sorted(Path("/proc/self/fd").iterdir()) == before
