"""Outputs in which a topic begins late in the log: what lies before it is nobody's loss."""

from __future__ import annotations

import threading
from pathlib import Path

from reput.upkeep.doctor import examine
from reput.upkeep.rebuild import rebuild
from reput.upkeep.watch.status import read_status
from tests.streaming.test_begin_again import sparkless
from tests.support.configs import configured
from tests.support.derived_output import DerivedOutput
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
