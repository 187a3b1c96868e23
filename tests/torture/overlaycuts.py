"""Power cuts of an overlay: what waits, is delivered or dead is appended and dispatched in turn.

The log is recovered from what its queues tell, which may be torn as well. The overlay that goes on
loses nothing that was acknowledged, and delivers each record that waits once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput.overlay.overlay import Overlay, overlay_root
from reput.overlay.records.copies import SendBack, level_delivered, sent_back
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.overlay.records.sends import RetryGroup, Send, Target
from reput.overlay.records.sources import Source
from reput.store.config import read_store_settings
from reput.store.log.appender import LogAppender
from reput.store.log.properties import parse
from reput.store.log.record import SCHEDULE_TOPIC, Record
from reput.store.state.built import settings_of
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from reput.upkeep.verify.run import verify
from tests.readers.stores import SmallStore
from tests.support import power_cuts
from tests.support.golden import log_records
from tests.support.power_cuts import Disk, mount
from tests.support.processes import became
from tests.support.recorder import Recorder
from tests.torture.cases import BENCHES, Case, Kind

FILE_SIZE = 4096
CONF = (
    "maxHashSlotNum=20\nmaxIndexNum=80\nmappedFileSizeConsumeQueue=400\n"
    f"mappedFileSizeCommitLog={FILE_SIZE}\n"
)
ACKNOWLEDGED = "acknowledged"
"""Kind of a note: the number of records that are durable."""
IMAGES = 60
"""Images of a case."""
WAIT_SECONDS = 60.0
DAY_MS = 24 * 3600 * 1000
WRITER = Writer(RELEASE_5_3_3, ("10.0.0.9", 10912))
RETRIES = b"%RETRY%g"


class Consuming:
    """A group whose listener fails, as records of the overlay's log."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.stored: list[Record] = []
        """The records that were appended, durable or not."""
        self._waiting: list[Record] = []

    def append(self, appender: LogAppender, count: int) -> None:
        """Append records that wait, are delivered, or are dead."""
        for _ in range(count):
            record = (
                self._delivery() if self._waiting and self._rng.random() < 0.5 else self._back()
            )
            (stored,) = appender.append_all([record])
            self.stored.append(stored)
            if stored.topic == SCHEDULE_TOPIC:
                self._waiting.append(stored)

    def _delivery(self) -> Record:
        waiting = self._waiting.pop(self._rng.randrange(len(self._waiting)))
        source = Source(is_base=False, physical_offset=waiting.physical_offset)
        return level_delivered(waiting, WRITER, source=source.field)

    def _back(self) -> Record:
        number = len(self.stored)
        text = b"KEYS\x01k%d\x02UNIQ_KEY\x01K%d\x02" % (self._rng.randrange(9), number)
        copy = Record(
            topic=b"Topic", body=self._rng.randbytes(self._rng.randrange(1, 90)), properties=text,
            property_map=parse(text), physical_offset=100 * number,
        )  # fmt: skip
        asked = SendBack(b"g", self._rng.choice((-1, 0, 3, 18)))
        return sent_back(copy, asked, WRITER, source=-(100 * number + 1), now_ms=0)


def _run_once(root: Path, recorder: Recorder, rng: random.Random, consuming: Consuming) -> None:
    """Append, sync and dispatch in turn; the last records are neither synced nor dispatched."""
    with (
        LogAppender(root) as appender,
        running(DispatcherConfig(root, root)) as dispatching,
    ):
        appender.sync()
        for _ in range(4):
            consuming.append(appender, rng.randrange(1, 7))
            appender.sync()
            recorder.note(ACKNOWLEDGED, len(consuming.stored))
            end = appender.end_offset
            consuming.append(appender, rng.randrange(3))
            dispatching.commit(dispatching.scan(end))


def _undelivered(records: Sequence[Record]) -> set[int]:
    made = {one.prepared_transaction_offset - 1 for one in records if one.topic == RETRIES}
    return {one.physical_offset for one in records if one.topic == SCHEDULE_TOPIC} - made


def _check(base: Path, output: Path, stored: Sequence[Record], acknowledged: int) -> None:
    """Open it when everything is due, send one message more, and look at everything."""
    root, now = overlay_root(output), time.time_ns() // 1_000_000 + DAY_MS
    settings = read_store_settings(base)
    with Overlay(settings, output, WRITER, now_ms=lambda: now) as overlay:
        target = Target(1, RetryGroup(16, holds_lock=False))
        send = Send(
            topic=RETRIES, queue_id=0, body=b"last", properties=b"UNIQ_KEY\x01LAST\x02",
            born_timestamp=0, born_host=("127.0.0.1", 1),
        )  # fmt: skip
        (last,) = overlay.send(send, target, b"LAST").result(WAIT_SECONDS)
        assert became(lambda: not _undelivered(log_records(root)), WAIT_SECONDS)
    records = log_records(root)
    by_place = {one.physical_offset: one for one in records}
    assert by_place[last.physical_offset] == last
    kept = [one for one in stored if by_place.get(one.physical_offset) == one]
    assert kept == list(stored[: len(kept)])
    assert len(kept) >= acknowledged
    sources = Counter(one.prepared_transaction_offset for one in records)
    del sources[0]
    assert set(sources.values()) <= {1}
    offsets = [one.queue_offset for one in records if one.topic == RETRIES]
    assert offsets == list(range(len(offsets)))
    verified = verify(settings_of(root, read_store_settings(root)), root)
    assert verified.differences == ()
    assert verified.damage == ()
    assert verified.units == len(records)


def _make_base(stack: ExitStack, case: Case) -> Path:
    del stack
    return SmallStore(case.emptied() / "base").write()


def _run(case: Case) -> str:
    """Check images of two runs, of which the second goes on: at random operations, with a random
    part of what was not durable, and sectors whole."""
    base, rng = BENCHES.find(case, _make_base), case.rng()
    disk_root = case.directory / f"disk{case.number}"
    root = overlay_root(disk_root)
    root.mkdir(parents=True)
    (disk_root / "consumequeue").mkdir()
    (root / "broker.conf").write_text(CONF)
    consuming = Consuming(rng)
    with Recorder(disk_root) as recorder:
        for _ in range(2):
            _run_once(root, recorder, rng, consuming)
    recorder.check()
    counts = sorted(rng.choices(range(1, len(recorder.operations) + 1), k=IMAGES))
    disk = Disk(recorder.begin, recorder.directories())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(power_cuts, "PARTED_BYTES", power_cuts.PAGE)
        for count, operation in enumerate(recorder.operations, 1):
            disk.apply(operation)
            notes = [int(str(value)) for at, _, value in recorder.notes if at <= count]
            for _ in range(counts.count(count)):
                mount(disk.random_image(rng).tree, disk_root)
                _check(base, disk_root, consuming.stored, max(notes, default=0))
    return f"{IMAGES} images"


KIND = Kind("overlay cuts", _run, 170, sample=1)
