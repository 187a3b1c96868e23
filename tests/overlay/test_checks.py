"""Producers' turns to be asked, and the ends of transactions, by brokers' own records."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from reput.overlay.base.halves import HalfPlace, OpenTransaction
from reput.overlay.checks import CheckTimes, End, OpenTransactions
from reput.overlay.overlay import Overlay, overlay_root
from reput.overlay.records.release import RELEASE_5_3_3, Refusal, Writer
from reput.overlay.records.sources import source_of
from reput.store.config import read_store_settings
from reput.store.errors import BusyError, RefusedMessageError, StoreError
from reput.store.log.appender import LogAppender
from reput.store.log.properties import parse
from reput.store.log.record import SCHEDULE_TOPIC, Record
from tests.overlay.conftest import HOST
from tests.support.delivering import HALF_TOPIC, STORES, cut, named_by
from tests.support.golden import log_records, tree, unpack_golden
from tests.support.processes import is_killed_at

GROUP, TOPIC = b"p", b"T"
TIMES = CheckTimes()
WAIT_SECONDS = 60.0
OP_TOPIC, DISCARDED_TOPIC = b"RMQ_SYS_TRANS_OP_HALF_TOPIC", b"TRANS_CHECK_MAX_TIME_TOPIC"


def half(position: int, more: bytes = b"") -> Record:
    text = b"TRAN_MSG\x01true\x02PGROUP\x01p\x02REAL_TOPIC\x01T\x02REAL_QID\x013\x02" + more
    return Record(
        topic=HALF_TOPIC, body=b"x", properties=text, flag=5, physical_offset=position,
        property_map={b"REAL_TOPIC": TOPIC, b"REAL_QID": b"3"},
    )  # fmt: skip


class Ends:
    """Open transactions of a base, and what is written of them."""

    def __init__(self, *immunities: bytes | None, times: CheckTimes = TIMES) -> None:
        self.written: list[Record] = []
        self.pending: list[Future[list[Record]]] = []
        self.is_busy = False
        self.halves = {100 * n: half(100 * n) for n in range(len(immunities))}
        self.pid: int | None = None
        self.found = [
            OpenTransaction(GROUP, TOPIC, (HalfPlace(100 * n, n),), immunity)
            for n, immunity in enumerate(immunities)
        ]
        self.open = self.opened(times)

    def opened(self, times: CheckTimes = TIMES) -> OpenTransactions:
        """The transactions as a new process finds them in the base."""
        writer = Writer(RELEASE_5_3_3, HOST)
        transactions = OpenTransactions(
            times, writer, self.halves.get, self.submit, lambda: self.pid, lambda: 1
        )
        transactions.take_over(self.found)
        return transactions

    def submit(self, record: Record) -> Future[list[Record]]:
        if self.is_busy:
            raise BusyError("later")
        self.written.append(record)
        self.pending.append(Future())
        return self.pending[-1]

    def land(self) -> None:
        """Let what is written become durable."""
        for record, future in zip(self.written[-len(self.pending) :], self.pending, strict=True):
            self.open.note(record)
            future.set_result([record])
        self.pending.clear()

    def asked(self, elapsed_ms: int) -> list[int]:
        """The numbers of those whose turn has come."""
        return list(self._asked(elapsed_ms))

    def _asked(self, elapsed_ms: int) -> Iterator[int]:
        while (record := self.open.next_check(GROUP, elapsed_ms)) is not None:
            yield record.physical_offset // 100


def end(number: int = 0, **more: object) -> End:
    return End(GROUP, HalfPlace(100 * number, number), is_commit=True)._replace(**more)  # type: ignore[arg-type]


def test_turns() -> None:
    """The first after six seconds, or after what the half states; then every thirty."""
    ends = Ends(None, b"9", b"-1", b"no number", b"0")
    assert ends.asked(5_999) == [4]
    assert sorted(ends.asked(6_000)) == [0, 2, 3]
    assert ends.asked(8_999) == []
    assert ends.asked(9_000) == [1]
    assert ends.asked(35_998) == []
    assert ends.asked(35_999) == [4]
    assert sorted(ends.asked(36_000)) == [0, 2, 3]
    assert ends.open.next_check(b"another", 1 << 40) is None


def test_a_turn_waits_for_a_producer() -> None:
    """A check counts when it is sent: without a producer nothing is given up."""
    ends = Ends(None)
    ends.open.give_up(1 << 40)
    assert ends.written == []
    assert ends.asked(1 << 40) == [0]


def test_one_that_was_asked_about_often_enough_is_given_up() -> None:
    """After one more interval, once."""
    ends = Ends(None)
    for number in range(TIMES.most):
        at = TIMES.first + number * TIMES.interval
        assert ends.asked(at - 1) == []
        assert ends.asked(at) == [0]
        ends.open.give_up(at + TIMES.interval - 1)
    assert ends.written == []
    last = TIMES.first + TIMES.most * TIMES.interval
    assert ends.asked(last) == []
    ends.is_busy = True
    ends.open.give_up(last)
    ends.is_busy = False
    ends.open.give_up(last + TIMES.interval)
    ends.open.give_up(1 << 40)
    (given_up,) = ends.written
    ends.land()
    assert (given_up.topic, given_up.queue_id, given_up.flag) == (DISCARDED_TOPIC, 0, 5)
    assert given_up.prepared_transaction_offset == -1
    assert given_up.property_map == parse(half(0).properties)
    assert len(ends.open) == 0
    assert ends.open.end(end()) is None


def test_a_commit_and_a_rollback() -> None:
    """The first answer counts, whether it is durable yet or not; no turn comes after it."""
    ends = Ends(None, None)
    committing = ends.open.end(end())
    assert committing is not None
    assert ends.open.end(end(is_commit=False)) is committing
    ends.open.end(end(1, is_commit=False))
    assert ends.asked(1 << 40) == []
    ends.land()
    assert committing.done()
    assert ends.open.end(end()) is None
    assert ends.open.end(end(1)) is None
    committed, op = ends.written
    assert (committed.topic, committed.queue_id, committed.sys_flag) == (TOPIC, 0, 8)
    assert (committed.prepared_transaction_offset, committed.flag) == (-1, 5)
    assert (op.topic, op.body, op.prepared_transaction_offset) == (OP_TOPIC, b"1,", -101)


def test_a_write_that_failed_is_no_end() -> None:
    ends = Ends(None)
    ends.open.end(end())
    ends.pending.pop().set_exception(OSError("the disk"))
    assert len(ends.open) == 1
    assert ends.open.end(end()) is not None
    assert len(ends.written) == 2


def test_after_a_write_that_failed_there_are_turns_again() -> None:
    """To be asked about, where its producer's answer was being written as its turn came; and to be
    given up, where that was not written. One that has ended has none."""
    ends = Ends(None, None, times=CheckTimes(most=1))
    ends.open.end(end())
    ends.open.end(end(1))
    assert ends.asked(TIMES.first) == []
    lost, kept = ends.pending
    lost.set_exception(StoreError("a full disk"))
    ends.pending, ends.written = [kept], ends.written[1:]
    ends.land()
    assert ends.asked(TIMES.first + TIMES.interval - 1) == []
    assert ends.asked(TIMES.first + TIMES.interval) == [0]
    last = TIMES.first + 2 * TIMES.interval
    for at in (last, last + TIMES.interval):
        ends.written.clear()
        ends.open.give_up(at - 1)
        assert ends.written == []
        ends.open.give_up(at)
        (given_up,) = ends.written
        assert given_up.topic == DISCARDED_TOPIC
        ends.pending.pop().set_exception(StoreError("a full disk"))
    ends.open.give_up(last + 2 * TIMES.interval)
    ends.written = ends.written[-1:]
    ends.land()
    assert len(ends.open) == 0
    ends.written.clear()
    ends.open.give_up(1 << 40)
    assert ends.written == []
    assert ends.asked(1 << 40) == []


def test_answers_that_fit_no_half() -> None:
    ends = Ends(None)
    for wrong, reason in (
        (end(place=HalfPlace(1, 0)), "no transaction was open at 1$"),
        (end(group=b"q"), "another group's$"),
        (end(place=HalfPlace(0, 7)), "another queue offset$"),
        (end(topic=b"U"), "of another topic$"),
    ):
        with pytest.raises(RefusedMessageError, match=reason) as refused:
            ends.open.end(wrong)
        assert refused.value.code == Refusal.SYSTEM_ERROR
    assert ends.written == []
    assert ends.open.end(end(topic=HALF_TOPIC)) is not None


def test_a_snapshot_knows_the_ends() -> None:
    """A start that does not read the whole log asks about none of them again."""
    ends = Ends(None, None, None)
    ends.open.end(end(1))
    state = ends.open.frozen()
    assert state() == {"ended": []}
    ends.land()
    state = ends.open.frozen()
    ends.open.end(end(2))
    ends.land()
    ends.open = ends.opened()
    ends.open.restore(json.loads(json.dumps(state())))
    assert ends.asked(1 << 40) == [0, 2]
    assert ends.open.end(end(1)) is None
    assert ends.open.frozen()() == state() == {"ended": [100]}


def test_a_start_beside_the_broker_keeps_the_ends() -> None:
    """It looks for nothing in the base, and its snapshot says what has ended all the same; copies
    that failed end nothing."""
    ends = Ends(None, None)
    ends.open.end(end(1))
    (record,) = ends.written
    ends.found, found = [], ends.found
    ends.open = ends.opened()
    ends.open.note(record)
    for topic in (b"%DLQ%g", b"SCHEDULE_TOPIC_XXXX"):
        values = {b"REAL_TOPIC": b"%RETRY%g"}
        copy = Record(topic, prepared_transaction_offset=-1, property_map=values)
        ends.open.note(copy)
    state = ends.open.frozen()()
    assert state == {"ended": [100]}
    ends.found = found
    ends.open = ends.opened()
    ends.open.restore(state)
    assert ends.asked(1 << 40) == [0]


def test_a_broker_that_runs_again_asks_itself(caplog: pytest.LogCaptureFixture) -> None:
    """One line says so; nothing is written any more."""
    ends = Ends(None, None)
    ends.open.end(end())
    ends.land()
    ends.open.leave_if_broker_runs()
    ends.pid = 77
    assert ends.open.end(end(1)) is None
    ends.open.leave_if_broker_runs()
    assert ends.asked(1 << 40) == []
    assert len(ends.written) == 1
    (line,) = (r.message for r in caplog.records)
    assert "process 77: 1 open transactions are left to it" in line


def test_a_group_s_transactions_may_be_of_several_topics() -> None:
    """A client that may not publish one of them is asked about none."""
    ends = Ends(None, None, None)
    ends.found = [replace(one, topic=b"U") if n == 1 else one for n, one in enumerate(ends.found)]
    assert ends.opened().topics == {GROUP: {TOPIC, b"U"}}


def test_a_half_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """It stays open, and a line says so; a rollback needs none."""
    ends = Ends(None, None)
    ends.halves.clear()
    assert ends.asked(1 << 40) == []
    assert [r.message for r in caplog.records] == [
        f"the half message at {place} cannot be read: its transaction stays open"
        for place in (0, 100)
    ]
    with pytest.raises(RefusedMessageError, match=r"at 0 cannot be read$"):
        ends.open.end(end())
    assert ends.open.end(end(is_commit=False)) is not None


def test_a_brokers_own_settings(tmp_path: Path) -> None:
    conf = "transactionTimeOut=1\ntransactionCheckInterval=2\ntransactionCheckMax=3\n"
    (tmp_path / "broker.conf").write_text(conf)
    (tmp_path / "commitlog").mkdir()
    assert CheckTimes.of(read_store_settings(tmp_path)) == CheckTimes(1, 2, 3)
    (tmp_path / "broker.conf").write_text("")
    assert CheckTimes.of(read_store_settings(tmp_path)) == CheckTimes(6_000, 30_000, 15)


@pytest.fixture(params=STORES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Every golden store with what brokers wrote."""
    root = unpack_golden(request.param, tmp_path)
    (root / "broker.conf").write_text("mappedFileSizeConsumeQueue=20000\n")
    return root


def opened(base: Path, output: Path, now_ms: int = 1) -> Overlay:
    return Overlay(read_store_settings(base), output, STORES[base.name], now_ms=lambda: now_ms)


def as_ours(theirs: Record, half: Record, ours: Record) -> Record:
    """A broker's record with the fields that differ in an overlay: its place, and the source."""
    return replace(
        theirs, queue_id=0, queue_offset=ours.queue_offset, physical_offset=ours.physical_offset,
        store_timestamp=ours.store_timestamp, store_host=ours.store_host,
        prepared_transaction_offset=-(half.physical_offset + 1),
    )  # fmt: skip


@pytest.mark.extended
def test_ends_are_a_brokers(base: Path, tmp_path: Path) -> None:
    """Where a broker has ended a transaction, its log is cut before that, and the overlay ends it:
    in the same bytes, apart from the place."""
    records = log_records(base)
    halves = {r.queue_offset: r for r in records if r.topic == HALF_TOPIC}
    rolled_back = [
        (op, halves[named])
        for op in records
        if op.topic == OP_TOPIC
        for named in named_by(op)
        if not any(r.prepared_transaction_offset == halves[named].physical_offset for r in records)
    ]
    positions = {r.physical_offset: r for r in halves.values()}
    committed = [(r, positions[r.prepared_transaction_offset]) for r in records if r.sys_flag & 8]
    discarded = [
        (r, [h for h in halves.values() if h.body == r.body][-1])
        for r in records
        if r.topic == DISCARDED_TOPIC
    ]
    assert (len(committed), len(rolled_back), len(discarded)) == (
        4, 3, {"g497": 1, "g533": 1, "g551": 3}[base.name],
    )  # fmt: skip
    ends = [*committed, *rolled_back, *discarded]
    for theirs, half in sorted(ends, key=lambda one: -one[0].physical_offset):
        cut(base, theirs.physical_offset)
        for path in (base / "config").glob("consumerOffset.json*"):
            path.unlink()
        output = tmp_path / f"output-{half.physical_offset}"
        (output / "consumequeue").parent.mkdir()
        (output / "consumequeue").symlink_to(base / "consumequeue")
        with opened(base, output, theirs.born_timestamp) as overlay:
            place = HalfPlace(half.physical_offset, half.queue_offset)
            _end(overlay.transactions, End(b"tpg", place, bool(theirs.sys_flag & 8)), theirs)
        (ours,) = (
            record
            for record in log_records(overlay_root(output))
            if (source := source_of(record)) and source.physical_offset == half.physical_offset
        )
        if theirs.topic == OP_TOPIC:
            # a broker's names all that ended in three seconds
            assert half.queue_offset in named_by(theirs)
            assert ours.body == b"%d" % half.queue_offset + b"," * (base.name != "g497")
            ours = replace(ours, body=theirs.body, body_crc=theirs.body_crc)
        assert replace(ours, total_size=0) == replace(as_ours(theirs, half, ours), total_size=0)


def _end(transactions: OpenTransactions, asked: End, theirs: Record) -> None:
    if theirs.topic != DISCARDED_TOPIC:
        future = transactions.end(asked)
        assert future is not None
        future.result(WAIT_SECONDS)
        return
    elapsed_ms = 0
    while asked.place.physical_offset in {
        place.physical_offset for place in transactions.open_places
    }:
        elapsed_ms += TIMES.interval
        while transactions.next_check(b"tpg", elapsed_ms) is not None:
            pass
        transactions.give_up(elapsed_ms)


def test_kills_at_random(tmp_path: Path) -> None:
    """Killed before any operation that changes a file, while a producer answers again and again:
    each transaction ends once, as it was answered first."""
    base = unpack_golden("g533", tmp_path)
    (base / "broker.conf").write_text("mappedFileSizeConsumeQueue=20000\n")
    before = tree(base)
    output = tmp_path / "output"
    output.mkdir()
    (output / "consumequeue").symlink_to(base / "consumequeue")

    def run() -> None:
        with opened(base, output) as overlay:
            for place in sorted(overlay.transactions.open_places):
                for is_commit in (place.queue_offset == 19, True):
                    overlay.transactions.end(End(b"tpg", place, is_commit))

    rng = random.Random(7)
    kills = sum(is_killed_at(rng.randrange(1, 80), run) for _ in range(10))
    assert kills >= 4
    run()
    run()
    ours = log_records(overlay_root(output))
    of_halves = [r for r in ours if r.topic in (b"Tx", OP_TOPIC)]
    assert [(r.topic, r.prepared_transaction_offset) for r in of_halves] == [
        (b"Tx", -36_894), (OP_TOPIC, -37_336),
    ]  # fmt: skip
    assert tree(base) == before


def test_a_start_says_what_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = unpack_golden("g533", tmp_path)
    (base / "broker.conf").write_text("mappedFileSizeConsumeQueue=20000\n")
    with caplog.at_level("INFO", "reput"), opened(base, base) as overlay:
        assert overlay.owed_topics == {"Dl", "Timer", "Tx"}
    (line,) = (r.message for r in caplog.records if "transactions" in r.message)
    assert line.startswith(f"2 transactions of {base} were open when its broker stopped: ")


def test_a_commit_that_waits_comes_to_queue_0(tmp_path: Path) -> None:
    """Other languages' clients send halves with a delay level; it waits in the overlay, whose
    topic has one queue."""
    base = tmp_path / "base"
    base.mkdir()
    with LogAppender(base) as appender:
        appender.append(half(0, b"UNIQ_KEY\x01k\x02DELAY\x011\x02"))
        appender.sync()
    settings = read_store_settings(base)
    now = [10]
    with Overlay(settings, base, STORES["g533"], now_ms=lambda: now[0]) as overlay:
        overlay.transactions.end(end()).result(WAIT_SECONDS)  # type: ignore[union-attr]
        now[0] = 1 << 42
        with overlay._lock:
            overlay._lock.notify_all()
            assert overlay._lock.wait_for(lambda: not len(overlay._waiting), WAIT_SECONDS)
    waiting, delivered = log_records(overlay_root(base))
    assert (waiting.topic, waiting.sys_flag) == (SCHEDULE_TOPIC, 8)
    assert (delivered.topic, delivered.queue_id, delivered.sys_flag) == (TOPIC, 0, 8)
    assert delivered.property_map[b"REAL_QID"] == b"3"
