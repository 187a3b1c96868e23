"""The entries of overlays whose logs are written here record by record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from reput.overlay.drain.contents import Entry, Kind, opened_contents
from reput.store.errors import NotFoundError
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.store.state.consumeroffset import ConsumerOffsetFile, Offsets, TopicGroup
from tests.overlay.test_drain import text_of

HOUR = 3_600_000
SCHEDULE, TIMER = b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer"
RETRIES, DEAD = b"%RETRY%g", b"%DLQ%g"


class Writer:
    """Appends to the overlay of an output."""

    def __init__(self, output: Path) -> None:
        self.root = output / "overlay"
        self.root.mkdir(parents=True)
        conf = f"mappedFileSizeCommitLog=65536\nmessageDelayLevel=1s {HOUR // 1000}s\n"
        (self.root / "broker.conf").write_text(conf)

    def append(
        self, topic: bytes, source: Record | int = 0, queue_id: int = 0, **values: str
    ) -> Record:
        """Append a record that was made from ``source``: a record of the overlay, or a position in
        the base plus 1, negated."""
        place = source if isinstance(source, int) else source.physical_offset + 1
        made = Record(
            topic=topic, body=b"body", properties=text_of(values), queue_id=queue_id,
            prepared_transaction_offset=place,
        )  # fmt: skip
        with LogAppender(self.root) as appender:
            return appender.append(made)

    def waiting(self, source: Record | int = -1, level: int = 2, topic: str = "%RETRY%g") -> Record:
        """Append a record that waits for a level."""
        return self.append(SCHEDULE, source, level - 1, REAL_TOPIC=topic, REAL_QID="0")

    def commit(self, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
        """Commit an offset of a queue."""
        with ConsumerOffsetFile(self.root) as file:
            offsets: Offsets = file.load(self.root)
            offsets.setdefault(TopicGroup(topic, group), {})[queue_id] = offset
            file.replace(offsets, 1)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def entries(output: Path) -> dict[int, Entry]:
    with opened_contents(output) as contents:
        return {entry.physical_offset: entry for entry in contents.entries}


def test_a_record_waits_until_one_names_it(writer: Writer, tmp_path: Path) -> None:
    """It says when it is due, and to which group it belongs."""
    first, second, beyond = writer.waiting(), writer.waiting(-2), writer.waiting(-3, level=7)
    delivered = writer.append(RETRIES, first)
    found = entries(tmp_path)
    assert {place: entry.kind for place, entry in found.items()} == {
        second.physical_offset: Kind.WAITING, delivered.physical_offset: Kind.DELIVERED,
        beyond.physical_offset: Kind.WAITING,
    }  # fmt: skip
    # levels beyond the last are the last, as where a broker had more of them before
    for record in (second, beyond):
        entry = found[record.physical_offset]
        assert (entry.group, entry.level) == ("g", 2)
        assert entry.due_ms == record.store_timestamp + HOUR


def test_a_retry_is_consumed_or_sent_back(writer: Writer, tmp_path: Path) -> None:
    """By its own group: what another group commits or sends back leaves it there."""
    retries = [writer.append(RETRIES, -number) for number in range(1, 6)]
    writer.commit("other", "%RETRY%g", 5)
    writer.commit("g", "%RETRY%g", 1)
    again = writer.waiting(retries[1])
    dead = writer.append(DEAD, retries[2])
    others = writer.waiting(retries[3], topic="%RETRY%h")
    # one of the base that has the place of a retry in another log
    bases = writer.waiting(-(retries[4].physical_offset + 1))
    left = {retries[3], retries[4], again, dead, others, bases}
    assert set(entries(tmp_path)) == {record.physical_offset for record in left}


def test_a_dead_letter_is_sent_again_to_its_own_group(writer: Writer, tmp_path: Path) -> None:
    """A consumer of dead letters may fail with one, which is no resend."""
    first, second = writer.append(DEAD, -1), writer.append(DEAD, -2)
    writer.append(RETRIES, first)
    writer.append(b"%RETRY%h", second)
    writer.waiting(second, topic="%RETRY%g")
    found = entries(tmp_path)
    assert found[first.physical_offset].is_resent
    # a resend waits for nothing; a group that reads its own dead letters does
    assert found[second.physical_offset].is_resent is False


def test_a_message_of_a_topic_is_consumed_by_all_of_its_groups(
    writer: Writer, tmp_path: Path
) -> None:
    """A group is one of them if it has committed there; without any nobody has consumed it."""
    first, second = writer.append(b"Topic", -1), writer.append(b"Topic", -2)
    assert set(entries(tmp_path)) == {first.physical_offset, second.physical_offset}
    writer.commit("a", "Topic", 2)
    assert entries(tmp_path) == {}
    writer.commit("b", "Topic", 1)
    (entry,) = entries(tmp_path).values()
    assert (entry.physical_offset, entry.group) == (second.physical_offset, None)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_group_that_has_not_committed_in_a_queue_has_consumed_nothing_there(
    writer: Writer, tmp_path: Path, order: str
) -> None:
    """Although it has in another queue of the topic, and whichever group committed first."""
    writer.append(b"Topic", -1)
    second = writer.append(b"Topic", -2, queue_id=1)
    for group in order:
        writer.commit(group, "Topic", 1)
        if group == "a":
            writer.commit(group, "Topic", 1, queue_id=1)
    assert set(entries(tmp_path)) == {second.physical_offset}


def test_timers_and_recalls(writer: Writer, tmp_path: Path) -> None:
    """A recall takes its message away, and is no message."""
    names = {"REAL_TOPIC": "Topic", "REAL_QID": "0", "TIMER_OUT_MS": "5000"}
    kept = writer.append(TIMER, UNIQ_KEY="A", **names)
    writer.append(TIMER, UNIQ_KEY="B", **names)
    writer.append(TIMER, UNIQ_KEY="B", TIMER_DEL_UNIQKEY="Topic+B", **names)
    (entry,) = entries(tmp_path).values()
    assert (entry.physical_offset, entry.due_ms, entry.level) == (kept.physical_offset, 6000, 0)


def test_records_of_transactions_are_left_out(writer: Writer, tmp_path: Path) -> None:
    """Whoever drains is told how many there are."""
    writer.append(b"RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="Topic", REAL_QID="0")
    writer.append(b"RMQ_SYS_TRANS_OP_HALF_TOPIC")
    writer.append(b"TRANS_CHECK_MAX_TIME_TOPIC", -1)
    with opened_contents(tmp_path) as contents:
        assert contents.entries == []
        expected = {"half of a transaction": 1, "discarded transaction": 1}
        assert contents.left_out == Counter(expected)


def test_an_output_without_an_overlay(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no overlay: `reput serve --overlay` makes one"):
        entries(tmp_path)
