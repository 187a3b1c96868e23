"""Snapshots of an overlay: a start reads the rest of the log, or all of it."""

from __future__ import annotations

import logging
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reput.overlay import overlay as overlays
from reput.overlay.delivery.waiting import WaitingRecords
from reput.overlay.overlay import Overlay, overlay_root
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.overlay.records.sends import RetryGroup, Send, Target
from reput.overlay.records.sources import Source
from reput.overlay.snapshot import Part, Snapshots
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.errors import NoSpaceError
from reput.store.log.appender import LogAppender
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.properties import format_block
from reput.store.log.record import Record
from tests.readers.stores import SmallStore
from tests.support import power_cuts
from tests.support.power_cuts import Disk, mount
from tests.support.processes import became, is_killed_at
from tests.support.recorder import Recorder

DELAYS = (1000, 5000)
FILE_SIZE = 4096
DAY_MS = 24 * 3600 * 1000
IMAGES = 60
SECONDS = 30.0
WRITER = Writer(RELEASE_5_3_3, ("10.0.0.9", 10912))


class Following:
    """A start that follows the log of one store, from a snapshot on."""

    def __init__(self, root: Path, delays: tuple[int, ...] = DELAYS) -> None:
        self.root = root
        self.waiting = WaitingRecords(delays)
        self.parts: dict[str, Part] = {"waiting": self.waiting}
        self.snapshots = Snapshots(root, threading.Condition(), delays, self.parts)
        self.was_read = 0
        """Records that the start has read."""

    def start(self) -> Following:
        """Read the snapshot and the rest of the log."""
        with LogAppender(self.root, file_size=FILE_SIZE) as appender:
            end = appender.end_offset
        with closing(CommitLog([self.root / "commitlog"])) as log:
            for record in records(log, self.snapshots.restore(log, end), end):
                assert isinstance(record, Record)
                self.note(record)
                self.was_read += 1
        return self

    def note(self, record: Record) -> None:
        self.waiting.note(record)
        self.snapshots.note(record)

    def write(self) -> None:
        """Write a snapshot, if there is anything new."""
        with self.snapshots:
            pass

    @property
    def state(self) -> dict[str, Any]:
        make_state = self.waiting.frozen()
        assert make_state is not None
        state = make_state()
        return {name: part for name, part in state.items() if name != "dead"} | {
            "dead": sorted(state["dead"])
        }


def append(root: Path, count: int, body: bytes = b"body") -> list[Record]:
    """Records that wait, are dead, or are delivered, of messages of a base and of the overlay."""
    rng = random.Random(count)
    with LogAppender(root, file_size=FILE_SIZE) as appender:
        stored: list[Record] = []
        for number in range(count):
            values = {b"REAL_TOPIC": b"%RETRY%g", b"UNIQ_KEY": b"\xff%d" % number}
            topic, source = b"%RETRY%g", -(1 + 1000 * number)
            if number % 3 == 0:
                topic = b"SCHEDULE_TOPIC_XXXX"
            elif number % 3 == 1:
                topic = b"%DLQ%g"
            elif stored and rng.random() < 0.5:
                source = stored[number - 2].physical_offset + 1
            record = Record(
                topic=topic, body=body, properties=format_block(values),
                prepared_transaction_offset=source,
            )  # fmt: skip
            stored.append(appender.append(record))
        appender.sync()
    return stored


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of a few files, with a snapshot of all but its last records."""
    root = tmp_path / "overlay"
    append(root, 60)
    (root / "reput").mkdir()
    Following(root).start().write()
    append(root, 5)
    return root


@pytest.fixture
def whole(root: Path) -> dict[str, Any]:
    """The state that the whole log makes."""
    following = Following(root)
    (root / "reput" / "snapshot.json").rename(root / "kept")
    following.start()
    (root / "kept").rename(root / "reput" / "snapshot.json")
    assert following.was_read == 65
    return following.state


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_a_start_reads_the_rest(root: Path, whole: dict[str, Any]) -> None:
    """It knows the same, as often as it starts; a snapshot of nothing new is not written."""
    following = Following(root).start()
    assert (following.was_read, following.state) == (5, whole)
    following.write()
    before = (root / "reput" / "snapshot.json").stat()
    for _ in range(2):
        following = Following(root).start()
        assert (following.was_read, following.state) == (0, whole)
        following.write()
    assert (root / "reput" / "snapshot.json").stat().st_ino == before.st_ino


def test_without_a_snapshot_the_log_is_read(
    root: Path, whole: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As after an update; one line says so, and none before the first record."""
    caplog.set_level(logging.INFO, "reput")
    (root / "reput" / "snapshot.json").unlink()
    following = Following(root).start()
    assert (following.was_read, following.state) == (65, whole)
    assert [one.getMessage().count("there is no snapshot") for one in caplog.records] == [1]
    caplog.clear()
    (root / "empty" / "reput").mkdir(parents=True)
    assert Following(root / "empty").start().was_read == 0
    assert caplog.records == []


def damaged(data: bytes) -> Iterator[bytes]:
    """Torn at every length, and with one byte changed anywhere."""
    rng = random.Random(7)
    yield from (data[: rng.randrange(len(data))] for _ in range(20))
    yield b""
    yield bytes(len(data))
    for _ in range(20):
        position = rng.randrange(len(data))
        yield data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_a_damaged_snapshot_is_not_used(
    root: Path, whole: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The whole log is read, and a line says so each time."""
    path = root / "reput" / "snapshot.json"
    for data in list(damaged(path.read_bytes())):
        path.write_bytes(data)
        caplog.clear()
        following = Following(root).start()
        assert (following.was_read, following.state) == (65, whole)
        assert [line.endswith("snapshot.json is damaged") for line in warnings(caplog)] == [True]
    following.write()
    assert Following(root).start().was_read == 0


def test_a_snapshot_beyond_the_log(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A power cut has taken what was after the log's end, and later records take its place."""
    begin = root.with_name("begin")
    shutil.copytree(root, begin)
    append(root, 30)
    Following(root).start().write()
    shutil.copy(root / "reput" / "snapshot.json", begin / "reput" / "snapshot.json")
    assert Following(begin).start().was_read == 65
    assert ["it ends before the snapshot" in line for line in warnings(caplog)] == [True]
    append(begin, 40, b"more of another body")
    assert Following(begin).start().was_read == 105
    assert ["of another log" in line for line in warnings(caplog)] == [False, True]


def test_a_snapshot_of_another_log(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has records of the same sizes at the same places, or begins elsewhere."""
    other = root.with_name("other")
    append(other, 65, b"ydob")
    (other / "reput").mkdir()
    shutil.copy(root / "reput" / "snapshot.json", other / "reput" / "snapshot.json")
    assert Following(other).start().was_read == 65
    (root / "commitlog" / "00000000000000000000").unlink()
    assert 0 < Following(root).start().was_read < 65
    assert ["of another log" in line for line in warnings(caplog)] == [True, True]


def test_other_delay_levels(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records that wait are due at other times."""
    following = Following(root, (1000, 6000)).start()
    assert following.was_read == 65
    assert ["delay levels have changed" in line for line in warnings(caplog)] == [True]


def test_another_version(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version may know more of what the log says."""
    following = Following(root)
    following.parts["more"] = WaitingRecords(DELAYS)
    assert following.start().was_read == 65
    monkeypatch.setattr("reput.overlay.snapshot.VERSION", 2)
    assert Following(root).start().was_read == 65
    assert ["another version" in line for line in warnings(caplog)] == [True, True]


def test_kills_while_it_is_written(root: Path, whole: dict[str, Any]) -> None:
    """The one before stays until the new one is whole, also between its write and its rename."""
    kept = (root / "reput" / "snapshot.json").read_bytes()
    following, ordinal = Following(root).start(), 1
    while is_killed_at(ordinal, following.write):
        started = Following(root).start()
        assert (started.was_read, started.state) in ((5, whole), (0, whole))
        (root / "reput" / "snapshot.json").write_bytes(kept)
        ordinal += 1
    assert ordinal > 4


def test_power_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Some records and snapshots are on the disk, and other records may follow: a start knows what
    the whole log says, whichever it reads."""
    monkeypatch.setattr(power_cuts, "PARTED_BYTES", power_cuts.PAGE)
    rng, disk_root = random.Random(seed), tmp_path / "disk"
    root = disk_root / "overlay"
    (root / "reput").mkdir(parents=True)
    append(root, 3)
    with Recorder(disk_root) as recorder:
        for _ in range(6):
            append(root, rng.randrange(1, 12), rng.randbytes(rng.randrange(1, 60)))
            Following(root).start().write()
    recorder.check()
    counts = sorted(rng.choices(range(1, len(recorder.operations) + 1), k=IMAGES))
    disk, were_read = Disk(recorder.begin, recorder.directories()), set()
    for count, operation in enumerate(recorder.operations, 1):
        disk.apply(operation)
        for _ in range(counts.count(count)):
            mount(disk.random_image(rng).tree, disk_root)
            append(root, rng.randrange(3), b"after the cut")
            following = Following(root).start()
            kept = (root / "reput").rename(root / "kept")
            (root / "reput").mkdir()
            whole = Following(root).start()
            assert following.state == whole.state
            were_read.add(following.was_read < whole.was_read)
            shutil.rmtree(root / "reput")
            kept.rename(root / "reput")
    assert were_read == {True, False}


@pytest.mark.parametrize("given_up", ["own", "base", "own base", "base own"])
def test_what_was_given_up_is_in_no_snapshot(root: Path, given_up: str) -> None:
    """The next start tries it again; it looks for a record of the base anyway."""
    following = Following(root).start()
    (own, *_) = following.waiting.due(DAY_MS * 365 * 100)
    assert not own.is_base
    for whose in given_up.split():
        following.waiting.give_up(own if whose == "own" else Source(True, 1 << 40))
    following.write()
    assert Following(root).start().was_read == (5 if "own" in given_up else 0)


def test_a_state_stays_while_the_log_grows(root: Path) -> None:
    """It is written outside of the lock, while records are taken in."""
    following = Following(root).start()
    make_state, before = following.waiting.frozen(), following.state
    assert make_state is not None
    (waiting, *_) = following.waiting.due(DAY_MS * 365 * 100)
    delivery = Record(
        topic=b"%RETRY%g", body=b"body", prepared_transaction_offset=waiting.field,
    )  # fmt: skip
    with LogAppender(root, file_size=FILE_SIZE) as appender:
        following.note(appender.append(delivery))
    for record in append(root, 30):
        following.note(record)
    # the queues of the levels forget what was delivered
    following.waiting.next_offsets()
    assert following.state != before
    frozen = make_state()
    assert {**frozen, "dead": sorted(frozen["dead"])} == before


def test_a_full_disk_costs_a_snapshot_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is the truth, and the next start reads more of it."""
    following = Following(root).start()
    with monkeypatch.context() as patched:
        patched.setattr(fsops, "replace_file", lambda *_: _raise(NoSpaceError("no room")))
        following.write()
    assert ["no room" in line for line in warnings(caplog)] == [True]
    assert Following(root).start().was_read == 5


def _raise(error: Exception) -> None:
    raise error


def test_an_overlay_starts_from_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing after an end, and after a kill what came since the last one, which is also
    written while it is open."""
    small = SmallStore(tmp_path / "store")
    small.append(body=b"body")
    base = read_store_settings(small.write())
    snapshot = overlay_root(base.root) / "reput" / "snapshot.json"
    was_read: list[object] = []

    def counted(log: CommitLog, start: int, end: int) -> Iterator[object]:
        for record in records(log, start, end):
            was_read.append(record)
            yield record

    def now_ms() -> int:
        # no client waits for an answer any more a day later
        return time.time_ns() // 1_000_000 + DAY_MS

    monkeypatch.setattr(overlays, "records", counted)
    monkeypatch.setattr("reput.overlay.snapshot.EVERY_RECORDS", 8)
    monkeypatch.setattr("reput.overlay.snapshot.LOOK_SECONDS", 0.01)

    def use(*counts: int) -> bytes:
        """Send messages, wait for a snapshot after each EVERY_RECORDS of them, and end; what a kill
        before the end would have left."""
        kept = b""
        with Overlay(base, base.root, WRITER, now_ms=now_ms) as overlay:
            for count in counts:
                for sent in [dead_letter(overlay) for _ in range(count)]:
                    sent.result(SECONDS)
                if count == 8:
                    before = kept
                    assert became(
                        lambda old=before: snapshot.exists() and snapshot.read_bytes() != old,  # type: ignore[misc]
                        SECONDS,
                    )
                    kept = snapshot.read_bytes()
        return kept

    kept = use(8, 8, 3)
    use()
    assert was_read == []
    snapshot.write_bytes(kept)
    use()
    assert len(was_read) == 3
    use()
    assert len(was_read) == 3


def dead_letter(overlay: Overlay) -> Future[list[Record]]:
    """Send a message that is dead at once."""
    message = Send(
        topic=b"%RETRY%g", queue_id=0, body=b"body", properties=b"", born_timestamp=1,
        born_host=("10.0.0.1", 4711), reconsume_times=2, max_reconsume_times=1,
    )  # fmt: skip
    return overlay.send(message, Target(1, RetryGroup()), b"key")
