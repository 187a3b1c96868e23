"""The writer's options, odd names and numbers, cuts: what is written, what goes to the ledger.

Held against the plain model of RocketMQ's rules, given the messages that must have a unit.
"""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.config import OnQueueGap
from reput.store.errors import QueueFileError, QueueGapError
from reput.store.queue.unsynced import MAX_OPEN_FILES
from reput.store.runs.dispatch import DispatchCounts
from reput.store.runs.placing import MAX_BLANK_UNITS
from reput.store.state.watermark import Watermark
from tests.support.outputs import STORE_ID, Output, QueueLog, Setup
from tests.support.processes import open_files
from tests.support.wire import PRE_BLANK, UNIT


def made(queue_offsets: tuple[int, ...], *, blank_gaps: bool = False) -> QueueLog:
    log = QueueLog(100, blank_gaps=blank_gaps)
    for queue_offset in queue_offsets:
        log.append(queue_offset)
    return log


def test_a_gap_is_blanked_where_asked(tmp_path: Path) -> None:
    """Positions stay queue offsets, over file ends; each gap is counted and listed once."""
    log = made((0, 1, 4, 5, 17, 18), blank_gaps=True)
    setup = log.setup(tmp_path, 100, OnQueueGap.BLANK)
    counts = Output(setup).run(log.plain.end)
    assert setup.queues() == log.model.tree()
    whole = b"".join(data for _, data in sorted(setup.queues().items()))
    units = [whole[at : at + 20] for at in range(0, len(whole), 20)]
    for queue_offset, (offset, _) in zip((0, 1, 4, 5, 17, 18), log.plain.spans, strict=True):
        assert UNIT.unpack(units[queue_offset])[0] == offset
    assert units[2:4] == [PRE_BLANK] * 2
    assert counts.gaps == 2
    assert setup.ledger("queue_offset_gap") == log.model.gaps()


def test_a_gap_that_is_too_large_to_blank_stops(tmp_path: Path) -> None:
    """No gigabytes of blanks for one damaged queue offset: an error that says what to do."""
    log = made((0, 1, MAX_BLANK_UNITS + 3), blank_gaps=False)
    setup = log.setup(tmp_path, 100, OnQueueGap.BLANK)
    with pytest.raises(QueueGapError, match=r"too large to blank.*`on_queue_gap=` to rocketmq"):
        Output(setup).run(log.plain.end)
    assert setup.queues() == made((0, 1)).model.tree()


def test_a_gap_stops_where_asked(tmp_path: Path) -> None:
    """Units before it are written, none after it; each try stops there; then another rule."""
    log = made((3, 4, 9, 10))
    setup = log.setup(tmp_path, 100, OnQueueGap.FAIL)
    output = Output(setup)
    for attempt in (output, output, Output(setup)):
        with pytest.raises(QueueGapError) as caught:
            attempt.dispatch(log.plain.end)
        message = str(caught.value)
        for part in ("topic T", "queue 0", "9 at position 5", str(log.plain.spans[2][0])):
            assert part in message
        assert setup.queues() == made((3, 4)).model.tree()
        assert setup.ledger_lines() == []
    setup.on_queue_gap = OnQueueGap.ROCKETMQ
    Output(setup).run(log.plain.end)
    assert setup.queues() == log.model.tree()


def test_queues_without_gaps_are_the_same_under_every_rule(tmp_path: Path) -> None:
    """The option decides nothing where queue offsets count up, wherever they begin."""
    log = made(tuple(range(7, 40)))
    for gap in OnQueueGap:
        setup = log.setup(tmp_path / gap, 100, gap)
        assert Output(setup).run(log.plain.end).gaps == 0
        assert setup.queues() == log.model.tree()


UNUSABLE_TOPICS = (
    b"../../x", b"/etc/passwd", b"a/b", b"a\\b", b"a\0b", b".", b"..", b"", b"t" * 256, b"\xff\xfe",
    b"\x1b[31mred",
)  # fmt: skip
ALPHABET = set(b"%|-_" + (string.ascii_letters + string.digits).encode())
"""``TopicValidator``'s."""


def test_what_has_no_place_goes_to_the_ledger_and_everything_else_is_written(
    tmp_path: Path,
) -> None:
    """Unusable topics, queue ids and queue offsets between sound messages of other queues."""
    log = QueueLog(100)
    expected: dict[str, list[tuple[int, int, object]]] = {}

    def odd(reason: str, queue_offset: int, **fields: object) -> None:
        offset = log.plain.append(queue_offset=queue_offset, body=b"b", **fields)
        end = log.plain.spans[-1][1]
        expected.setdefault(reason, []).append((offset, end, queue_offset))

    for index in range(12):
        log.append(index)
        odd("topic_name", index, topic=UNUSABLE_TOPICS[index % len(UNUSABLE_TOPICS)])
        odd("queue_id", index, topic=b"T", queue_id=(-1, -(1 << 31))[index % 2])
        odd(
            "queue_offset_out_of_range",
            (-1, -(1 << 63), (1 << 63) - 1, 1 << 60)[index % 4],
            topic=b"T",
            queue_id=index % 3,
        )
        log.append(index, 1)
        log.append(index, 1, "订单 主题")
    setup = log.setup(tmp_path, 100)
    counts = Output(setup).run(log.plain.end)
    assert setup.queues() == log.model.tree()
    for reason, entries in expected.items():
        found = [
            (entry["physical_offset"], entry["end_physical_offset"], entry["queue_offset"])
            for entry in setup.ledger_lines()
            if entry["reason"] == reason
        ]
        assert found == entries, reason
    odd_ranges = [entry for entries in expected.values() for entry in entries]
    assert len(setup.ledger_lines()) == len(odd_ranges) == 36
    assert counts == DispatchCounts(
        messages=72,
        quarantined_messages=36,
        quarantined_bytes=sum(end - start for start, end, _ in odd_ranges),
        unusual_topics=len([topic for topic in UNUSABLE_TOPICS if set(topic) - ALPHABET]) + 1,
    )
    assert {path.name for path in tmp_path.iterdir()} == {"commitlog", "output"}
    assert {path.name for path in setup.root.iterdir()} == {"consumequeue", "reput"}


def test_a_queue_may_begin_at_any_offset_that_a_position_can_say(tmp_path: Path) -> None:
    """Up to the largest queue offset whose byte position fits a long."""
    for first in (1, 4, 5, 1 << 40, 1 << 58):
        log = made((first, first + 1, first + 2))
        setup = log.setup(tmp_path / str(first), 100)
        assert Output(setup).run(log.plain.end).quarantined_messages == 0
        assert setup.queues() == log.model.tree()
        assert all(len(name) == len("T/0/") + 20 for name in setup.queues())


def test_topics_that_a_broker_would_refuse_are_counted_once(tmp_path: Path) -> None:
    """They are dispatched all the same."""
    log = QueueLog(100)
    for index in range(4):
        for topic in ("Usual-1", "%RETRY%g", "订单", "a b"):
            log.append(index, 0, topic)
    setup = log.setup(tmp_path, 100)
    output, middle = Output(setup), log.plain.spans[7][1]
    assert output.run(middle).unusual_topics == 2
    assert output.run(log.plain.end).unusual_topics == 0
    assert setup.queues() == log.model.tree()


def test_many_queues_leave_no_descriptor_open(tmp_path: Path) -> None:
    """More queues in a batch than descriptors may be open; after the sync none is."""
    log = QueueLog(20)
    for queue_id in range(MAX_OPEN_FILES + 50):
        log.append(0, queue_id)
    setup = log.setup(tmp_path, 20)
    output = Output(setup)
    batch = setup.batch(0, log.plain.end)
    output.writer.write(batch)
    assert 0 < open_files(setup.root / "consumequeue") < MAX_OPEN_FILES
    output.writer.sync()
    assert open_files(setup.root / "consumequeue") == 0
    assert setup.queues() == log.model.tree()


def test_queue_files_of_another_size_are_refused(tmp_path: Path) -> None:
    """Nothing is written into a queue that was built with other settings."""
    log = made(tuple(range(10)))
    setup = log.setup(tmp_path, 100)
    Output(setup).run(log.plain.spans[4][1])
    before = setup.queues()
    setup.file_size = 200
    with pytest.raises(QueueFileError, match="mappedFileSizeConsumeQueue is 200"):
        Output(setup).run(log.plain.end)
    assert setup.queues() == before


CUT_CASES = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13),
    (7, 8, 9, 10, 11, 12, 13),
    (0, 1, 5, 6, 9, 10, 11, 30, 31),
)


def check_cut(directory: Path, queue_offsets: tuple[int, ...], keep: int, gap: OnQueueGap) -> None:
    """A queue cut after message ``keep`` is the queue of the messages up to it, and goes on so."""
    blank_gaps = gap is OnQueueGap.BLANK
    log = made(queue_offsets, blank_gaps=blank_gaps)
    setup = log.setup(directory, 100, gap)
    Output(setup).run(log.plain.end)
    end = log.plain.spans[keep - 1][1] if keep else 0
    output = Output(setup)
    output.writer.truncate(end)
    assert setup.queues() == made(queue_offsets[:keep], blank_gaps=blank_gaps).model.tree()
    output.dispatch(log.plain.end, start=end)
    assert setup.queues() == log.model.tree()
    setup.log.close()


@pytest.mark.parametrize("queue_offsets", CUT_CASES)
def test_a_cut_log_cuts_its_queues(tmp_path: Path, queue_offsets: tuple[int, ...]) -> None:
    """After every message but the first: the bytes of a log that ends there, and on again."""
    for keep in range(1, len(queue_offsets)):
        check_cut(tmp_path / str(keep), queue_offsets, keep, OnQueueGap.ROCKETMQ)


def test_a_cut_log_cuts_blanked_queues(tmp_path: Path) -> None:
    """onQueueGap=blank: blanks in front of what is cut go with it."""
    for keep in range(1, len(CUT_CASES[2])):
        check_cut(tmp_path / str(keep), CUT_CASES[2], keep, OnQueueGap.BLANK)


@pytest.mark.parametrize("queue_offsets", CUT_CASES)
def test_a_writer_goes_on_after_a_cut(tmp_path: Path, queue_offsets: tuple[int, ...]) -> None:
    """It knows the ends that it has cut no more: everything after them is written again."""
    log = made(queue_offsets)
    setup, borders = log.setup(tmp_path, 100), log.borders()
    output = Output(setup)
    whole = output.run(log.plain.end)
    before = setup.queues()
    for keep in range(len(queue_offsets)):
        output.writer.truncate(borders[keep])
        again = output.dispatch(log.plain.end, 0)
        assert again.duplicates + again.quarantined_messages <= keep + whole.quarantined_messages
        assert setup.queues() == before
    output.close()


@pytest.mark.parametrize("queue_offsets", CUT_CASES)
def test_a_queue_that_is_cut_wholly_is_gone(tmp_path: Path, queue_offsets: tuple[int, ...]) -> None:
    """Its pre-blank too: the log written anew may begin it elsewhere."""
    check_cut(tmp_path, queue_offsets, 0, OnQueueGap.ROCKETMQ)


@pytest.mark.parametrize("rest", ["lost", "there"])
@pytest.mark.parametrize("gap", [OnQueueGap.ROCKETMQ, OnQueueGap.BLANK])
def test_a_unit_that_lost_its_first_bytes_is_cut(
    tmp_path: Path, gap: OnQueueGap, rest: str
) -> None:
    """A power cut while a queue is cut, or appended to: its next unit lies over two pages, and the
    first of them has no byte of it. Its offset then looks like one before the watermark, also where
    it is not smaller than that of the unit before: the log has no such record there."""
    log = QueueLog(100, blank_gaps=gap is OnQueueGap.BLANK)
    for queue_offset, queue_id in ((0, 0), (0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (3, 1)):
        log.append(queue_offset, queue_id)
    cases = 0
    for keep, border in enumerate(log.borders()[1:-1], 1):
        for lost in range(1, 9):
            setup = log.setup(tmp_path / f"{keep}-{lost}", 100, gap)
            Output(setup).run(log.plain.end)
            cases += tear(setup, log.plain.spans[keep][0], lost, rest == "there")
            output = Output(setup)
            output.writer.truncate(border)
            output.dispatch(log.plain.end, start=border)
            assert setup.queues() == log.model.tree(), (keep, lost)
            setup.log.close()
    assert cases


def tear(setup: Setup, physical_offset: int, lost: int, is_rest_there: bool) -> bool:
    """Zero the first bytes of a unit, and all units after it unless they are there; whether its
    offset has changed."""
    for path in sorted((setup.root / "consumequeue").rglob("0*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        for at in range(0, len(data), UNIT.size):
            offset, size, _ = UNIT.unpack_from(data, at)
            if (offset, size < 1 << 20) == (physical_offset, True) and size:
                rest = data[at + lost :] if is_rest_there else data[at + lost : at + UNIT.size]
                path.write_bytes((data[:at] + bytes(lost) + rest).ljust(len(data), b"\0"))
                return any(data[at : at + lost])
    raise AssertionError(f"no unit of {physical_offset}")


def test_a_queue_cut_wholly_may_begin_earlier(tmp_path: Path) -> None:
    """The new log's messages have lower queue offsets: none is dropped, also after a restart."""
    log = made((17, 18))
    setup = log.setup(tmp_path / "old", 100)
    output = Output(setup)
    output.run(log.plain.end)
    output.writer.truncate(0)
    output.watermark.advance(Watermark(STORE_ID, 0))
    output.close()
    new = made(tuple(range(12)))
    again = replace(new.setup(tmp_path / "new", 100), root=setup.root)
    for end in new.borders()[1:]:
        output = Output(again)
        output.run(end)
        output.close()
    assert again.ledger_lines() == []
    assert again.queues() == new.model.tree()


def test_a_queue_with_a_missing_file_is_not_gone_on_with(tmp_path: Path) -> None:
    """Nor one with a file at an odd place; removed from its front it is whole."""
    log = made(tuple(range(17)))
    setup = log.setup(tmp_path, 100)
    Output(setup).run(log.borders()[16])
    directory = setup.root / "consumequeue" / "T" / "0"
    (directory / f"{0:020}").unlink()
    Output(setup).run(log.borders()[17])
    before = setup.queues()
    for damage in (
        (directory / f"{200:020}").unlink,
        lambda: (directory / f"{420:020}").write_bytes(bytes(100)),
    ):
        damage()
        with pytest.raises(QueueFileError, match="reput verify names"):
            Output(setup).dispatch(log.plain.end, start=log.borders()[16])
        for path in directory.iterdir():
            path.unlink()
        for name, data in before.items():
            (setup.root / "consumequeue" / name).write_bytes(data)


def test_what_is_dropped_begins_at_the_second_message_of_offset_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one of a queue is where its old messages begin, though one batch has both."""
    log = made((0, 1, 2, 0, 1))
    output = Output(log.setup(tmp_path, 100))
    assert output.run(log.plain.end).quarantined_messages == 1
    output.close()
    (line,) = caplog.messages
    assert f"messages=1 from physical offset {log.plain.spans[3][0]} on" in line
