"""The debts of a base at rest: by the golden stores' own records, cut after each that counts, with
the notes of their brokers as they were, late, early, torn or gone."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path

import pytest

from reput.overlay.base.debts import find_debts, records_of_elsewhere, waiting_records
from reput.overlay.overlay import Overlay, overlay_root
from reput.overlay.records.copies import level_delivered
from reput.overlay.records.release import Writer
from reput.overlay.records.sends import Send, Target, sent
from reput.store.config import read_store_settings
from reput.store.log.appender import LogAppender
from reput.store.log.record import SCHEDULE_TOPIC, Record
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from tests.support.delivering import IN_TURN, STORES, TIMER_TOPIC, cut, lose_queue_ends
from tests.support.golden import log_records, tree, unpack_golden
from tests.support.processes import became, holder, is_killed_at
from tests.support.sparkless import dispatch

CONF = "mappedFileSizeConsumeQueue=20000\n"
OWED = {
    "g497": [b"lv25 body 0"],
    "g533": [b"lv25 body 0", b"tpending body 0"],
    "g551": [b"lv25 body 0", b"tpending body 0"],
}
WAIT_SECONDS = 60.0
NOTES = ("delayOffset.json", "delayOffset.json.bak", "timercheck")


@pytest.fixture(params=STORES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Every golden store with what brokers wrote."""
    root = unpack_golden(request.param, tmp_path)
    (root / "broker.conf").write_text(CONF)
    shutil.rmtree(root / "timerlog", ignore_errors=True)
    (root / "timerwheel").unlink(missing_ok=True)
    return root


def owed(root: Path) -> list[bytes]:
    settings = read_store_settings(root)
    return [
        record.body
        for record in waiting_records(settings.open_log(), find_debts(settings, root).places)
    ]


def write_notes(root: Path, levels: Mapping[int, int], next_time: int, enqueued: int) -> None:
    table = ",".join(f"{level}:{offset}" for level, offset in levels.items())
    (root / "config/delayOffset.json").write_text(f'{{"offsetTable":{{{table}}}}}')
    note = struct.pack(">qqqqq", next_time, 0, enqueued, enqueued, 0)
    (root / "config/timercheck").write_bytes(note.ljust(4096, b"\0"))


def remove_notes(root: Path) -> None:
    for name in NOTES:
        (root / "config" / name).unlink(missing_ok=True)


@pytest.mark.parametrize("stated", ["", "timerMaxDelaySec=7200\n"])
def test_what_a_stopped_broker_owes(base: Path, stated: str) -> None:
    """The longest delay is that of one of the messages, which was sent two minutes before."""
    (base / "broker.conf").write_text(CONF + stated)
    assert owed(base) == OWED[base.name]
    debts = find_debts(read_store_settings(base), base)
    assert sorted(debts.topics) == [b"Dl", b"Timer"][: len(OWED[base.name])]
    assert debts.scanned_bytes == 0


def test_missing_notes(base: Path) -> None:
    remove_notes(base)
    assert owed(base) == OWED[base.name]


@pytest.mark.parametrize("length", [0, 1, 20, 23])
def test_torn_notes(base: Path, length: int) -> None:
    for name in NOTES:
        path = base / "config" / name
        if path.exists():
            path.write_bytes(path.read_bytes()[:length])
    assert owed(base) == OWED[base.name]


def test_notes_that_are_zeros_or_no_notes(base: Path) -> None:
    remove_notes(base)
    (base / "config/delayOffset.json").write_text(json.dumps({"offsetTable": ["x"]}))
    (base / "config/timercheck").write_bytes(bytes(4096))
    assert owed(base) == OWED[base.name]


def test_offsets_beyond_the_queues(base: Path) -> None:
    """A broker would begin at the queue's end, and lose what lies before it: the log of such a
    queue was cut, or the file is another store's."""
    last = max(record.store_timestamp for record in log_records(base))
    write_notes(base, dict.fromkeys(range(1, 19), 1 << 40), last + (1 << 40), 1 << 40)
    assert owed(base) == OWED[base.name]


def is_delivered(record: Record) -> bool:
    values = record.property_map
    is_level = int(values.get(b"DELAY", b"0")) > 0 and values.get(b"REAL_TOPIC") == record.topic
    return is_level or (b"TIMER_DEQUEUE_MS" in values and record.topic == b"Timer")


def owed_at(records: list[Record], end: int) -> Iterator[Record]:
    """Return what is owed by the records before ``end``: in these stores a body and the attempts
    name a message."""
    before = [record for record in records if record.physical_offset < end]
    paid = Counter(
        (record.body, record.reconsume_times) for record in before if is_delivered(record)
    )
    recalled = any(b"TIMER_DEL_UNIQKEY" in record.property_map for record in before)
    for topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        waiting = [record for record in before if record.topic == topic]
        for record in sorted(waiting, key=lambda record: (record.queue_id, record.queue_offset)):
            name = record.body, record.reconsume_times
            if paid[name]:
                paid[name] -= 1
            elif not (recalled and record.body in (b"0", b"to be recalled")):
                yield record


def noted_at(records: list[Record], time: int) -> tuple[dict[int, int], int, int]:
    """The notes of a broker at a time: by its deliveries until then."""
    before = [record for record in records if record.store_timestamp <= time]
    levels = Counter(
        int(record.property_map[b"DELAY"])
        for record in before
        if is_delivered(record) and b"TIMER_DEQUEUE_MS" not in record.property_map
    )
    enqueued = sum(record.topic == TIMER_TOPIC for record in before)
    return dict(levels), time // 1000 * 1000, enqueued


@IN_TURN
def test_a_crash_after_each_that_waits_or_is_delivered(base: Path, first: int) -> None:
    """The broker's notes are missing, right, so much older, or, after a power cut, newer than the
    log's end: each of these in turn, and in the slow cases each after each record."""
    records = log_records(base)
    counts = set()
    turns = islice(cycle((0, 10_000, -3000, None)), first, None)
    for last in reversed(records):
        if last.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC) and not is_delivered(last):
            continue
        end = last.physical_offset + last.total_size
        cut(base, end)
        remove_notes(base)
        late_ms = next(turns)
        if late_ms is not None:
            write_notes(base, *noted_at(records, last.store_timestamp - late_ms))
        expected = [record.body for record in owed_at(records, end)]
        assert owed(base) == expected, last
        counts.add(len(expected))
    assert max(counts) >= 4


LATER = 1 << 42
"""A time in ms at which everything is due."""


class Owing:
    """An overlay of a base that is at rest, as a process would have it."""

    def __init__(self, root: Path, output: Path, writer: Writer | None = None) -> None:
        """``writer`` is a base's own broker, unless it is another one."""
        self.root, self.output = root, output
        self.writer = writer or STORES["g533"]

    def run(self, now: int = LATER) -> None:
        """Open the overlay, wait until everything is delivered that is due, and close it."""
        settings = read_store_settings(self.root)
        overlay = Overlay(settings, self.output, self.writer, now_ms=lambda: now)
        with overlay, overlay._lock:
            assert overlay._lock.wait_for(lambda: not overlay._waiting.due(now), WAIT_SECONDS)

    def delivered(self) -> list[Record]:
        """The records of the overlay's log."""
        return log_records(overlay_root(self.output))


def changed_fields(waiting: Record, delivered: Record) -> dict[str, object]:
    """Return what a delivery changes of a record that waited, whatever the values; properties
    with whether their values stay."""
    fields = asdict(waiting), asdict(delivered)
    places = ("queue_id", "queue_offset", "physical_offset", "store_timestamp", "total_size")
    kept = {name: fields[0][name] == fields[1][name] for name in fields[0] if name not in places}
    del kept["properties"], kept["property_map"]
    values = waiting.property_map
    texts = [(name, values.get(name) == value) for name, value in delivered.property_map.items()]
    return kept | {"texts": sorted(texts), "ends": delivered.properties[-1:]}


def timer_times(waiting: Record, delivered: Record) -> bool:
    """Whether a timer message was taken up in the second in which it was stored, or in the next
    one, and was let go when it was due; true of others."""
    if waiting.topic != TIMER_TOPIC:
        return True
    names = (b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"TIMER_OUT_MS")
    enqueued, dequeued, out = (int(delivered.property_map[name]) for name in names)
    later = enqueued - waiting.store_timestamp // 1000 * 1000
    return later in (0, 1000) and out <= dequeued


def kind_of(waiting: Record) -> tuple[bytes, ...]:
    return waiting.topic, *waiting.property_map


def broker_deliveries(records: list[Record]) -> Iterator[tuple[Record, Record]]:
    """Waiting records of producers' messages, and the broker's deliveries of them."""
    for delivered in filter(is_delivered, records):
        waits = [
            record
            for record in records
            if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
            and record.body == delivered.body
            and record.reconsume_times == delivered.reconsume_times == 0
        ]
        if waits:
            yield waits[0], delivered


def test_each_is_delivered_once_as_a_broker_would(base: Path) -> None:
    """Field by field as the broker's own deliveries of other messages of the kind, apart from the
    place: ours are in queue 0, of our own host, and name their source."""
    remove_notes(base)
    before, records = tree(base), log_records(base)
    owing = Owing(base, base, STORES[base.name])
    # the output is the base itself: only the overlay below it is written
    for _ in range(3):
        owing.run()
    made = owing.delivered()
    after = {name: data for name, data in tree(base).items() if not name.startswith("overlay/")}
    assert sha256(repr(after).encode()).digest() == sha256(repr(before).encode()).digest()
    assert [record.body for record in made] == OWED[base.name]
    theirs = {
        kind_of(waiting): changed_fields(waiting, delivered)
        for waiting, delivered in broker_deliveries(records)
    }
    assert all(timer_times(*pair) for pair in broker_deliveries(records))
    for ours in made:
        (waiting,) = (
            r for r in records if -(r.physical_offset + 1) == ours.prepared_transaction_offset
        )
        expected = theirs[kind_of(waiting)] | {"prepared_transaction_offset": False}
        assert timer_times(waiting, ours)
        # the golden brokers' hosts are the writers'
        assert changed_fields(waiting, ours) == expected
        assert ours.queue_id == 0
        assert ours.topic == waiting.property_map[b"REAL_TOPIC"]


def test_nothing_is_delivered_before_it_is_due(base: Path) -> None:
    (level, *_) = (r for r in log_records(base) if r.body == b"lv25 body 0")
    owing = Owing(base, base)
    owing.run(level.store_timestamp + 7_199_999)
    assert owing.delivered() == []
    owing.run(level.store_timestamp + 7_200_000)
    assert [record.body for record in owing.delivered()] == [b"lv25 body 0"]


def test_a_broker_that_runs_delivers_itself(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is taken over from it, and one line says so; the next start finds it at rest."""
    owing = Owing(base, base)
    with holder(lambda: plain_lock(base / "lock")) as pid, caplog.at_level("INFO", "reput"):
        owing.run()
        (line,) = (r.message for r in caplog.records if "delivers what waits" in r.message)
        assert f"process {pid}" in line
    assert owing.delivered() == []
    owing.run()
    assert len(owing.delivered()) == len(OWED[base.name])


def test_a_broker_that_comes_back_delivers_the_rest(
    base: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are due from then on are left to it, while nobody else sees what waits, and one
    line says so."""
    owing, clock = Owing(base, base), [max(one.store_timestamp for one in log_records(base))]
    overlay = Overlay(read_store_settings(base), base, owing.writer, now_ms=lambda: clock[0])
    disown, is_free = overlay._waiting.disown, list[bool]()

    def look() -> None:
        is_free.append(overlay._lock.acquire(blocking=False))
        if is_free[-1]:
            overlay._lock.release()

    def disown_alone() -> None:
        with ThreadPoolExecutor() as another:
            another.submit(look).result()
        disown()

    monkeypatch.setattr(overlay._waiting, "disown", disown_alone)
    with overlay:
        with overlay._lock:
            assert overlay._lock.wait_for(lambda: not overlay._waiting.due(clock[0]), WAIT_SECONDS)
            before = overlay._waiting.owed_count
        assert before > 0
        with holder(lambda: plain_lock(base / "lock")) as pid, caplog.at_level("INFO", "reput"):
            clock[0] = LATER
            assert became(lambda: overlay._waiting.owed_count == 0, WAIT_SECONDS)
    assert is_free == [False]
    (line,) = (r.message for r in caplog.records if "runs again" in r.message)
    assert f"process {pid}: {before} messages" in line
    assert len(owing.delivered()) == len(OWED[base.name]) - before
    owing.run()
    assert len(owing.delivered()) == len(OWED[base.name])


def plain_lock(path: Path) -> int:
    """The lock on byte 0, as a broker takes it."""
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    return fd


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A base of several files whose broker was killed: it owes 5000 messages of two levels and
    timers, and has delivered some."""
    root = tmp_path / "base"
    root.mkdir()
    (root / "broker.conf").write_text("mappedFileSizeCommitLog=1048576\n")
    writer, born = STORES["g533"], 1_700_000_000_000
    with LogAppender(root) as appender:
        waiting = []
        for number in range(5000):
            asked = (b"DELAY\x012", b"DELAY\x013", b"TIMER_DELIVER_MS\x01%d" % (born + 60_000))
            text = b"UNIQ_KEY\x01%032d\x02%s\x02" % (number, asked[number % 3])
            message = Send(
                topic=b"Late", queue_id=number % 4, body=b"%d" % number, properties=text,
                born_timestamp=born, born_host=("10.0.0.1", 4711),
            )  # fmt: skip
            record = sent(message, Target(4), writer, unique_key=b"", now_ms=born)
            waiting.append(appender.append(replace(record, store_timestamp=born)))
        appender.append_all([
            replace(level_delivered(record, writer, source=0), store_timestamp=born + 5050)
            for record in waiting[:600:3]
        ])  # fmt: skip
        appender.sync()
    with running(DispatcherConfig(root, root)) as dispatching:
        for end in (*range(1 << 20, appender.end_offset, 1 << 20), appender.end_offset):
            dispatching.commit(dispatching.scan(end))
    return root


def test_kills_at_random(large: Path) -> None:
    """Killed before any operation that changes a file, and started again: all are delivered, and
    none of them twice, each level in the order of its queue."""
    rng = random.Random(20)
    owing = Owing(large, large)
    before = {name: data for name, data in tree(large).items() if name.startswith("commitlog/")}
    kills = 0
    for _ in range(12):
        kills += is_killed_at(rng.randrange(1, 90), owing.run)
    assert kills >= 6
    owing.run()
    owing.run()
    numbers = [int(record.body) for record in owing.delivered()]
    paid = set(range(0, 600, 3))
    assert Counter(numbers) == Counter(set(range(5000)) - paid)
    for kind in range(3):
        of_kind = [number for number in numbers if number % 3 == kind]
        assert of_kind == sorted(of_kind)
    after = {name: data for name, data in tree(large).items() if name.startswith("commitlog/")}
    assert after == before


def test_what_is_in_no_queue_yet_is_owed_too(base: Path) -> None:
    """The queues end early, or were never built: the log has the rest."""
    lose_queue_ends(base)
    assert owed(base) == OWED[base.name]
    shutil.rmtree(base / "consumequeue")
    assert owed(base) == OWED[base.name]


def test_every_record_with_a_real_topic_is_found(base: Path) -> None:
    """In the range that is asked for, which such a record may follow at once."""
    records = log_records(base)
    marked = [r for r in records if b"REAL_TOPIC" in r.property_map]
    assert len(marked) < len(records) / 1.2
    for first, last in ((records[0], records[-1]), (records[0], marked[-1]), marked[5:7]):
        start, end = first.physical_offset, last.physical_offset
        with closing(read_store_settings(base).open_log()) as log:
            found = list(records_of_elsewhere(log, start, end))
        expected = [r for r in marked if start <= r.physical_offset < end]
        assert [r for r in found if b"REAL_TOPIC" in r.property_map] == expected


def made(root: Path, *records: Record) -> list[Record]:
    """Write a base's log; its queues are missing."""
    root.mkdir()
    with LogAppender(root) as appender:
        stored = appender.append_all(records)
        appender.sync()
    return stored


def delayed(body: bytes, stored: int, level: int = 1) -> Record:
    """A message that waits, one of several with the same UNIQ_KEY."""
    text = b"UNIQ_KEY\x01same\x02DELAY\x01%d\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02" % level
    return Record(
        topic=SCHEDULE_TOPIC, queue_id=level - 1, body=body, properties=text, born_timestamp=1,
        store_timestamp=stored,
    )  # fmt: skip


def timed(out: int, stored: int, more: bytes = b"", key: bytes = b"k") -> Record:
    """A message that waits for the wheel."""
    text = b"UNIQ_KEY\x01%s\x02TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02" % (
        key, out,
    )  # fmt: skip
    return Record(topic=TIMER_TOPIC, body=b"t", properties=text + more, store_timestamp=stored)


def test_a_message_that_was_sent_twice_is_owed_twice(tmp_path: Path) -> None:
    """A producer's second try has the same key, time and body: one delivery pays one of them."""
    delivery = replace(delayed(b"x", 12_000), topic=b"T")
    base = tmp_path / "base"
    first, second, _ = made(base, delayed(b"x", 10_000), delayed(b"x", 10_001), delivery)
    settings = read_store_settings(base)
    assert find_debts(settings, base).places == (second.physical_offset,)
    assert first.physical_offset == 0


def test_what_a_level_passed_over_is_not_owed(tmp_path: Path) -> None:
    """Deliveries keep the order of the queue: what lies before one was passed over."""
    delivery = replace(delayed(b"y", 12_000), topic=b"T")
    base = tmp_path / "base"
    waiting = (delayed(b"x", 10_000), delayed(b"y", 10_001), delayed(b"z", 10_002))
    *_, last, _ = made(base, *waiting, delivery)
    assert find_debts(read_store_settings(base), base).places == (last.physical_offset,)


@pytest.mark.parametrize("field", ["born_timestamp", "reconsume_times"])
def test_a_message_of_other_values_is_another_one(tmp_path: Path, field: str) -> None:
    """The second of two with one key and body is delivered: the first was passed over."""
    base, second = tmp_path / "base", replace(delayed(b"x", 10_001), **{field: 7})  # type: ignore[arg-type]
    made(base, delayed(b"x", 10_000), second, replace(second, topic=b"T", store_timestamp=12_000))
    assert find_debts(read_store_settings(base), base).places == ()


@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize(("set_back", "is_owed"), [(1_000_000, False), (500_000, True)])
def test_a_clock_that_was_set_back(
    tmp_path: Path, set_back: int, is_owed: bool, has_queues: bool
) -> None:
    """A broker delivers at once what is due later than its level of ten minutes allows; a record of
    the same values before that is none of its deliveries."""
    stored, base = 10_000_000, tmp_path / "base"
    delivery = replace(delayed(b"x", stored - set_back, level=14), topic=b"T", queue_id=0)
    if is_owed:
        delivery = replace(delivery, store_timestamp=stored + 600_000 - set_back)
    waiting, _ = made(base, delayed(b"x", stored, level=14), delivery)
    if has_queues:
        dispatch(DispatcherConfig(base, base))
    expected = (waiting.physical_offset,) if is_owed else ()
    assert find_debts(read_store_settings(base), base).places == expected


def test_a_message_of_another_queue_or_level_pays_nothing(tmp_path: Path) -> None:
    base = tmp_path / "base"
    others = (
        replace(delayed(b"x", 12_000), topic=b"T", queue_id=1),
        replace(delayed(b"x", 12_000, level=2), topic=b"T"),
        replace(delayed(b"x", 12_000), topic=b"%RETRY%g"),
    )
    waiting, *_ = made(base, delayed(b"x", 10_000), *others)
    assert find_debts(read_store_settings(base), base).places == (waiting.physical_offset,)


def test_a_timer_message_that_the_wheel_took_up_again_is_owed_once(tmp_path: Path) -> None:
    """The later copy counts, and a delivery pays for it; a message that was sent twice is two."""
    again = b"TIMER_DEQUEUE_MS\x019\x02TIMER_ROLL_TIMES\x011\x02"
    base = tmp_path / "base"
    stored = made(
        base, timed(90_000, 10_000), timed(90_000, 11_000, again),
        timed(90_000, 12_000, key=b"two"), timed(90_000, 12_001, key=b"two"),
        timed(80_000, 13_000, key=b"paid"),
        replace(timed(80_000, 81_000, b"TIMER_DEQUEUE_MS\x019\x02", b"paid"), topic=b"T"),
    )  # fmt: skip
    expected = tuple(record.physical_offset for record in stored[1:4])
    assert find_debts(read_store_settings(base), base).places == expected
