"""The next queue offsets are those that a walk over the whole log finds, and the log is read only
where the queues do not tell."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput.store.files import ENDS_FILE, STATE_DIRECTORY, WATERMARK_FILE
from reput.store.log import appender as appenders
from reput.store.log.appender import LogAppender
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag
from reput.store.queueoffsets import BuiltOffsets, scanned_offsets
from reput.store.state.ends import read_ends, write_ends
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from tests.support.sparkless import dispatch

FILE_SIZE = 4096
TOPICS = (b"A", b"%RETRY%g", "订单".encode())


def append(root: Path, rng: random.Random, count: int) -> dict[tuple[bytes, int], int]:
    """Append random records; the next offset of each queue among them."""
    found = {}
    with LogAppender(root, file_size=FILE_SIZE) as appender:
        for _ in range(count):
            record = Record(
                topic=rng.choice(TOPICS), queue_id=rng.randrange(3), body=rng.randbytes(50),
                sys_flag=rng.choice((0, 0, SysFlag.PREPARED, SysFlag.ROLLBACK)),
            )  # fmt: skip
            stored = appender.append(record)
            if stored.dispatched_to_queue:
                found[stored.topic, stored.queue_id] = stored.queue_offset + 1
        appender.sync()
    return found


def nothing(_root: Path) -> None:
    """Nothing of an output changes."""


def lose_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "A" / "1")


def cut_queue(root: Path) -> None:
    path = next((root / "consumequeue" / "A" / "1").iterdir())
    path.write_bytes(bytes(path.stat().st_size))


def lose_ends(root: Path) -> None:
    (root / STATE_DIRECTORY / ENDS_FILE).unlink()


def lose_watermark(root: Path) -> None:
    (root / STATE_DIRECTORY / WATERMARK_FILE).unlink()


def change_ends(root: Path, **fields: Any) -> None:
    state = root / STATE_DIRECTORY
    ends = read_ends(state)
    assert ends is not None
    write_ends(state, replace(ends, **fields))


def take_ends_of_another(root: Path) -> None:
    """As a copy of another output's file."""
    change_ends(root, store_id="f" * 32)


def put_ends_ahead(root: Path) -> None:
    """As where the watermark was set back since."""
    watermark = read_watermark(root / STATE_DIRECTORY)
    assert watermark is not None
    change_ends(root, end_offset=watermark.end_offset + 1)


def have_batch_queue(root: Path) -> None:
    """Its units do not tell the queue offsets of other queues."""
    (root / "batchconsumequeue" / "B" / "0").mkdir(parents=True)


@pytest.mark.parametrize(
    ("change", "is_whole_log_read"),
    [
        (nothing, False), (lose_queue, True), (cut_queue, True), (lose_ends, True),
        (lose_watermark, True), (take_ends_of_another, True), (put_ends_ahead, True),
        (have_batch_queue, True),
    ],
)  # fmt: skip
def test_queues_tell_what_the_log_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    change: Callable[[Path], None],
    is_whole_log_read: bool,
) -> None:
    """As of the record of ends; what follows is scanned. A queue that is gone, cut or unknown
    begins nothing anew."""
    rng = random.Random(seed)
    wanted = append(tmp_path, rng, 200)
    dispatch(DispatcherConfig(tmp_path, tmp_path))
    wanted |= append(tmp_path, rng, 30)
    ends = read_ends(tmp_path / STATE_DIRECTORY)
    assert ends is not None
    assert ends.end_offset > 3 * FILE_SIZE
    change(tmp_path)
    read: list[int] = []

    def scanned(*args: object) -> object:
        read.append(int(str(args[1])))
        return scanned_offsets(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(appenders, "scanned_offsets", scanned)
    with LogAppender(tmp_path) as appender:
        found = {key: appender.next_queue_offset(*key) for key in wanted}
    assert found == wanted
    assert read == [0 if is_whole_log_read else ends.end_offset]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_queue_goes_on_where_the_log_has_lost_its_messages(
    tmp_path: Path, is_removed: bool
) -> None:
    """Its position is in the queue's files, which a broker keeps as well; and in the record of ends
    where they were removed as unused, so that consumers find no offset for a second time."""
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        appender.append_all([Record(topic=b"old", body=b"x")] * 5)
        appender.append_all([Record(topic=b"new", body=b"x" * 100)] * 60)
    dispatch(DispatcherConfig(tmp_path, tmp_path))
    next(iter(sorted((tmp_path / "commitlog").iterdir()))).unlink()
    if is_removed:
        shutil.rmtree(tmp_path / "consumequeue" / "old")
    with LogAppender(tmp_path) as appender:
        assert appender.append(Record(topic=b"old")).queue_offset == 5
        assert appender.append(Record(topic=b"new")).queue_offset == 60


def test_queues_tell_what_a_log_told_that_ends_with_its_last_file(tmp_path: Path) -> None:
    """The last file is full, and the next one is not there yet, as in a copy without zeros."""
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        appender.append_all([Record(topic=b"A", body=b"x")] * 5)
        appender.roll()
        end = appender.end_offset
    assert end == FILE_SIZE
    dispatch(DispatcherConfig(tmp_path, tmp_path))
    for path in (tmp_path / "commitlog").iterdir():
        if int(path.name) >= end:
            path.unlink()
    with closing(CommitLog([tmp_path / "commitlog"])) as log:
        built = BuiltOffsets.read(tmp_path, log)
    assert (built.watermark, built.end_offset) == (end, end)
    assert built.next_offsets == {(b"A", 0): 5}


def test_records_after_a_lost_file_stay(tmp_path: Path, seed: int) -> None:
    """The log goes on at its end, not where its dispatched part or the lost file begins."""
    rng = random.Random(seed)
    append(tmp_path, rng, 10)
    dispatch(DispatcherConfig(tmp_path, tmp_path, once=True))
    append(tmp_path, rng, 120)
    lost, *later = sorted((tmp_path / "commitlog").iterdir())[1:]
    lost.unlink()
    before = {path: path.read_bytes() for path in later}
    assert sum(map(any, before.values())) >= 3
    append(tmp_path, rng, 0)
    assert {path: path.read_bytes() for path in later} == before


def test_a_light_queue_does_not_go_on_after_the_queue_of_its_messages(tmp_path: Path) -> None:
    """Its units lead to messages of another topic, with their queue offsets there. Nobody has sent
    a message to the light queue's own name."""
    properties = b"INNER_MULTI_DISPATCH\x01Light\x02INNER_MULTI_QUEUE_OFFSET\x01%d\x02"
    (tmp_path / "broker.conf").write_text("enableMultiDispatch=true\n")
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        appender.append_all([Record(topic=b"A", body=b"x")] * 5)
        for number in range(2):
            appender.append(Record(topic=b"A", properties=properties % number))
    dispatch(DispatcherConfig(tmp_path, tmp_path))
    assert (tmp_path / "consumequeue" / "Light" / "0").is_dir()
    with LogAppender(tmp_path) as appender:
        assert appender.next_queue_offset(b"A", 0) == 7
        assert appender.next_queue_offset(b"Light", 0) == 0
