"""Topics that were deleted and made again: where their new messages begin in the log, and outputs
in which they begin there, so that what lies before is nobody's loss."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest

from reput.upkeep.doctor import examine
from reput.upkeep.rebuild import rebuild
from reput.upkeep.watch.status import read_status
from tests.streaming.test_begin_again import sparkless
from tests.support.configs import configured
from tests.support.derived_output import DerivedOutput
from tests.support.sparkless import dispatch
from tests.support.wire import UNIT, PlainLog, file_name


def made_again(directory: Path) -> tuple[DerivedOutput, PlainLog]:
    """A topic with two queues was deleted and made again; so far only one of them has a message
    since. The topic was rebuilt from there."""
    plain, store = PlainLog(1 << 12), directory / "store"
    for number in range(10):
        plain.append(topic=b"T", queue_id=number % 2, queue_offset=number // 2, body=b"")
    for number in range(3):
        plain.append(topic=b"T", queue_id=0, queue_offset=number, body=b"")
    plain.write(store / "commitlog")
    (store / "broker.conf").write_text(
        "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=200\nmessageIndexEnable=false\n"
    )
    output = DerivedOutput(store, directory / "output")
    output.start()
    config = configured(store, output.root, topic_begins={"T": plain.spans[10][0]})
    rebuild(config, threading.Event(), build=sparkless, topics=["T"])
    return output, plain


def test_messages_before_a_topics_begin_are_not_missed(tmp_path: Path) -> None:
    """A start goes on, and neither it nor those who look at the output find anything wrong; the
    queue without a message since is not there until it gets one."""
    output, plain = made_again(tmp_path)
    plain.append(topic=b"T", queue_id=0, queue_offset=3, body=b"")
    plain.write(output.store / "commitlog")
    output.start()
    status = read_status(output.settings(), output.root)
    assert (status.unqueued_bytes, status.coverage.is_loss) == (0, False)
    assert examine(output.settings(), output.root) == []
    assert output.verify().differences == ()
    assert not (output.root / "consumequeue" / "T" / "1").exists()
    start, end = plain.spans[10][0], plain.end
    plain.append(topic=b"T", queue_id=1, queue_offset=0, body=b"")
    plain.write(output.store / "commitlog")
    output.start()
    found = (output.root / "consumequeue" / "T" / "1" / file_name(0)).read_bytes()
    assert UNIT.unpack_from(found)[0] == end > start


def units(output: DerivedOutput, queue_id: int) -> list[int]:
    """The physical offsets of a queue's units."""
    data = (output.root / "consumequeue" / "T" / str(queue_id) / file_name(0)).read_bytes()
    return [offset for offset, size, _ in UNIT.iter_unpack(data) if size]


@pytest.mark.parametrize("batches", [1, 8])
def test_no_new_message_is_left_out_by_the_command_that_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batches: int
) -> None:
    """The first new message of each queue has offset 0 and a unit, and the second one is dropped,
    perhaps in another batch. The queue with the lower id gets its first one last."""
    caplog.set_level(logging.WARNING, "reput")
    plain, store = PlainLog(1 << 12), tmp_path / "store"
    new = ((1, 0), (0, 0), (0, 1), (1, 1))
    for queue_id, queue_offset in (*((n % 2, n // 2) for n in range(8)), *new):
        plain.append(topic=b"T", queue_id=queue_id, queue_offset=queue_offset, body=b"")
    plain.write(store / "commitlog")
    (store / "broker.conf").write_text(
        "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=200\nmessageIndexEnable=false\n"
    )
    output = DerivedOutput(store, tmp_path / "output")
    starts = [start for start, _ in plain.spans]
    dispatch(configured(store, output.root, once=True), starts[8:] if batches > 1 else ())
    begin, own = starts[8], {0: starts[9], 1: starts[8]}
    said = [re.findall("queue=([0-9]) .* --from ([0-9]+)", line) for line in caplog.messages]
    named = {int(queue_id): int(at) for ((queue_id, at),) in filter(None, said)}
    assert named == (own if batches > 1 else dict.fromkeys(own, begin))
    status = read_status(output.settings(), output.root)
    assert [(repeat.queue_id, repeat.begin) for repeat in status.repeated] == [
        (0, begin),
        (1, begin),
    ]
    commands = {find.command for find in examine(output.settings(), output.root)}
    assert commands == {f"reput rebuild {store} --output {output.root} --topic T --from {begin}"}
    config = configured(store, output.root, topic_begins={"T": begin})
    rebuild(config, threading.Event(), build=sparkless, topics=["T"])
    assert (units(output, 0), units(output, 1)) == (starts[9:11], [starts[8], starts[11]])
