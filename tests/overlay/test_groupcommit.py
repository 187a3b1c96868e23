"""Group commits: what is answered is durable, in one sync for all that wait, and after a failed
write nothing is answered with success."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from reput.overlay.groupcommit import GroupCommit
from reput.store import fsops
from reput.store.errors import BusyError, NoSpaceError, OutputError, StoreError, SyncError
from reput.store.log.appender import LogAppender
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from tests.support.operations import before_operations
from tests.support.wire import read_log

FILE_SIZE = 1 << 16
WAIT_SECONDS = 60.0


def record(body: bytes = b"x", topic: bytes = b"T") -> Record:
    return Record(topic=topic, body=body)


class Gate:
    """Holds the committing thread in a sync, so that others have to wait."""

    def __init__(self) -> None:
        self.is_reached, self.may_go = threading.Event(), threading.Event()
        self.syncs = 0

    def tell(self, operation: str, _path: str) -> None:
        """For ``before_operations``."""
        if operation == "sync" and threading.current_thread() is not threading.main_thread():
            self.syncs += 1
            self.is_reached.set()
            assert self.may_go.wait(WAIT_SECONDS)


def test_many_threads_are_answered_with_what_is_stored(tmp_path: Path, seed: int) -> None:
    """Each gets its own records, which follow each other; queue offsets have no gap, and the
    callback gets every record once, in the log's order."""
    answers: list[list[Record]] = []
    told: list[Record] = []
    ends: list[int] = []

    def on_commit(end: int, records: Sequence[Record]) -> None:
        ends.append(end)
        told.extend(records)

    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender, on_commit) as commits,
    ):

        def submit(number: int) -> None:
            rng = random.Random(f"{seed}:{number}")
            for index in range(25):
                bodies = [
                    b"%d:%d:%d" % (number, index, part) for part in range(rng.randrange(1, 4))
                ]
                topic = rng.choice((b"A", b"B"))
                future = commits.submit([record(body, topic) for body in bodies])
                stored = future.result(WAIT_SECONDS)
                assert [one.body for one in stored] == bodies
                assert commits.durable_end >= stored[-1].physical_offset + stored[-1].total_size
                answers.append(stored)

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert len(answers) == 16 * 25
    assert ends == sorted(ends)
    log = CommitLog([tmp_path / "commitlog"])
    found = [log.record_starting_at(at) for at, _ in read_log(tmp_path / "commitlog")]
    assert found == told
    for stored in answers:
        first = found.index(stored[0])
        assert found[first : first + len(stored)] == stored
    for topic in (b"A", b"B"):
        offsets = [one.queue_offset for one in told if one.topic == topic]
        assert offsets == list(range(len(offsets)))


def test_one_sync_is_for_all_that_wait(tmp_path: Path) -> None:
    """Nobody is answered before it."""
    gate = Gate()
    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender) as commits,
    ):
        commits.submit(record()).result(WAIT_SECONDS)
        with before_operations(gate.tell):
            futures = [commits.submit(record())]
            assert gate.is_reached.wait(WAIT_SECONDS)
            futures += [commits.submit(record()) for _ in range(100)]
            assert not any(future.done() for future in futures)
            gate.may_go.set()
            for future in futures:
                future.result(WAIT_SECONDS)
        assert gate.syncs == 2


def test_the_callback_has_ended_before_the_answer_comes(tmp_path: Path) -> None:
    """A caller that has its answer finds that its record was noted."""
    may_look, futures, were_done = threading.Event(), list[Future[list[Record]]](), list[bool]()

    def on_commit(_end: int, _records: Sequence[Record]) -> None:
        assert may_look.wait(WAIT_SECONDS)
        were_done.extend(future.done() for future in futures)

    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender, on_commit) as commits,
    ):
        futures.append(commits.submit(record()))
        may_look.set()
        futures[0].result(WAIT_SECONDS)
    assert were_done == [False]


def test_too_much_that_waits_is_refused(tmp_path: Path) -> None:
    """By number and by bytes, with an error of its own; what waits is written, and later calls are
    accepted again."""
    gate = Gate()
    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender, waiting_records=3, waiting_bytes=1000) as commits,
        before_operations(gate.tell),
    ):
        futures = [commits.submit(record())]
        assert gate.is_reached.wait(WAIT_SECONDS)
        futures += [commits.submit([record(), record()]), commits.submit(record())]
        with pytest.raises(BusyError, match="3 records of 3 bytes wait") as caught:
            commits.submit(record())
        assert caught.value.retriable
        gate.may_go.set()
        for future in futures:
            future.result(WAIT_SECONDS)
        gate.is_reached.clear()
        gate.may_go.clear()
        futures = [commits.submit(record())]
        assert gate.is_reached.wait(WAIT_SECONDS)
        futures.append(commits.submit(record(bytes(900))))
        # the bytes of properties count like those of the body
        for more in (record(bytes(200)), replace(record(), properties=b"k\x01%b\x02" % bytes(200))):
            with pytest.raises(BusyError):
                commits.submit(more)
        gate.may_go.set()
        for future in futures:
            future.result(WAIT_SECONDS)


def test_what_cannot_be_stored_is_refused_alone(tmp_path: Path) -> None:
    """The others of the same group are stored."""
    gate = Gate()
    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender) as commits,
        before_operations(gate.tell),
    ):
        first = commits.submit(record())
        assert gate.is_reached.wait(WAIT_SECONDS)
        bad = commits.submit([record(), record(bytes(FILE_SIZE))])
        good = commits.submit(record())
        dropped = commits.submit(record())
        assert dropped.cancel()
        gate.may_go.set()
        with pytest.raises(StoreError, match="does not fit"):
            bad.result(WAIT_SECONDS)
        assert good.result(WAIT_SECONDS)[0].queue_offset == 1
        assert first.result(WAIT_SECONDS)[0].queue_offset == 0


@pytest.mark.parametrize(
    ("operation", "number", "kind"),
    [
        ("pwrite", "ENOSPC", NoSpaceError),
        ("pwrite", "EIO", OutputError),
        ("sync", "EIO", SyncError),
    ],
)
def test_after_a_failed_write_nothing_is_acknowledged(
    tmp_path: Path, operation: str, number: str, kind: type[Exception]
) -> None:
    """A later sync, which would succeed, changes nothing: the appending group and all that wait get
    the error, and later calls are refused with its text."""
    gate = Gate()
    told: list[int] = []
    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender, lambda end, _: told.append(end)) as commits,
    ):
        kept = commits.submit(record(b"kept")).result(WAIT_SECONDS)[0]
        with before_operations(gate.tell):
            held = commits.submit(record(b"held"))
            assert gate.is_reached.wait(WAIT_SECONDS)
            failing = fsops._Failpoints(f"{operation}:1={number}")
            fsops._failpoints, before = failing, fsops._failpoints
            futures = [commits.submit(record()) for _ in range(5)]
            gate.may_go.set()
            for future in futures:
                with pytest.raises(kind, match=r"cannot (write|sync) .*commitlog"):
                    future.result(WAIT_SECONDS)
            fsops._failpoints = before
        assert held.done()
        with pytest.raises(StoreError, match="an earlier write failed: cannot") as caught:
            commits.submit(record())
        assert not caught.value.retriable
        assert isinstance(commits.failure, kind)
        end = commits.durable_end
    assert max(told) == end
    with LogAppender(tmp_path) as appender:
        assert appender.end_offset >= end
    assert CommitLog([tmp_path / "commitlog"]).record_starting_at(0) == kept


def test_who_waits_for_the_next_commit_is_told_of_a_failed_one(tmp_path: Path) -> None:
    """Although nothing of theirs was written: nobody else would ever answer them."""
    gate = Gate()

    def fail(operation: str, path: str) -> None:
        gate.tell(operation, path)
        if operation == "sync":
            raise OSError(5, "Input/output error", path)

    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender) as commits,
        before_operations(fail),
    ):
        futures = [commits.submit(record())]
        assert gate.is_reached.wait(WAIT_SECONDS)
        futures += [commits.submit(record()) for _ in range(3)]
        gate.may_go.set()
        for future in futures:
            with pytest.raises(SyncError):
                future.result(WAIT_SECONDS)


def test_the_end_of_the_block_commits_what_waits(tmp_path: Path) -> None:
    """Later calls are refused."""
    futures: list[Future[list[Record]]] = []
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        with GroupCommit(appender) as commits:
            futures += [commits.submit(record()) for _ in range(50)]
        assert [future.result(0)[0].queue_offset for future in futures] == list(range(50))
        assert commits.durable_end == appender.end_offset
        with pytest.raises(StoreError, match="is closed"):
            commits.submit(record())


def test_a_callback_that_fails_keeps_nobody_from_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are durable; the log has the fault."""

    def fail(*_: object) -> None:
        raise ValueError("a fault of the callback")

    with (
        LogAppender(tmp_path, file_size=FILE_SIZE) as appender,
        GroupCommit(appender, fail) as commits,
    ):
        for _ in range(2):
            commits.submit(record()).result(WAIT_SECONDS)
    assert caplog.text.count("ValueError: a fault of the callback") == 2


CHILD = """
import sys, threading
from pathlib import Path
from reput.overlay.groupcommit import GroupCommit
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record

def submit(number):
    index = 0
    while True:
        body = b"%d:%d" % (number, index)
        stored = commits.submit(Record(topic=b"T", body=body)).result()[0]
        sys.stdout.write(f"{stored.physical_offset} {body.decode()}\\n")
        sys.stdout.flush()
        index += 1

appending = LogAppender(Path(sys.argv[1]), file_size=1 << 16)
with appending as appender, GroupCommit(appender) as commits:
    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_a_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """kill -9 while eight threads are being answered, again and again."""
    for kill_after in (3, 100, 300):
        command = [sys.executable, "-c", CHILD, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(kill_after)]
            os.kill(child.pid, signal.SIGKILL)
            lines += child.stdout.readlines()
        with LogAppender(tmp_path):
            pass
        log = CommitLog([tmp_path / "commitlog"])
        acknowledged = [line.split() for line in lines if line.endswith("\n")]
        assert len(acknowledged) >= kill_after
        for position, body in acknowledged:
            found = log.record_starting_at(int(position))
            assert isinstance(found, Record)
            assert found.body == body.encode()
    found = [log.record_starting_at(at) for at, _ in read_log(tmp_path / "commitlog")]
    offsets = [one.queue_offset for one in found if isinstance(one, Record)]
    assert offsets == list(range(len(found)))
