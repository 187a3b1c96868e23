"""The threads that write committed offsets: what comes while one of them is busy is written too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import pytest

from reput.serving import offsetwriter
from reput.serving.offsetwriter import OffsetWriter
from reput.store.errors import NoSpaceError
from reput.store.state.consumeroffset import ConsumerOffsetFile, Offsets, TopicGroup, read_committed
from tests.support.processes import became

KEY, OTHER = TopicGroup("Topic", "group"), TopicGroup("Topic", "other")
LONGEST_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced for no other reason, and a failed attempt is followed at once."""
    monkeypatch.setattr(offsetwriter, "REPLACE_SECONDS", 3600.0)
    monkeypatch.setattr(offsetwriter, "RETRY_SECONDS", 0.0)


def committed(output: Path) -> dict[int, int]:
    """The group's offsets as a reader of file and journals finds them."""
    return (read_committed(output) or {}).get(KEY, {})


async def await_committed(output: Path, expected: dict[int, int]) -> None:
    """Wait until a reader finds these."""
    assert await asyncio.to_thread(became, lambda: committed(output) == expected, LONGEST_SECONDS)


def while_writing(output: Path, steps: Callable[[OffsetWriter], Awaitable[object]]) -> None:
    """Take the steps while a writer works."""

    async def work() -> None:
        writer = OffsetWriter(output, output)
        tasks = [asyncio.create_task(f()) for f in (writer.append, writer.sync, writer.replace)]
        try:
            await steps(writer)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
            await writer.close()

    asyncio.run(work())


def test_what_is_written_during_a_sync_is_synced_by_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may have begun with less; no later commit asks for it."""
    begun, may_end = SimpleQueue[dict[int, int]](), threading.Semaphore(0)
    sync = ConsumerOffsetFile.sync

    def slow(file: ConsumerOffsetFile) -> None:
        begun.put(committed(tmp_path))
        assert may_end.acquire(timeout=LONGEST_SECONDS)
        sync(file)

    async def commit_during_a_sync(writer: OffsetWriter) -> None:
        try:
            writer.store(KEY, 0, 1)
            assert await asyncio.to_thread(begun.get, timeout=LONGEST_SECONDS) == {0: 1}
            writer.store(KEY, 0, 2)
            await await_committed(tmp_path, {0: 2})
            may_end.release()
            assert await asyncio.to_thread(begun.get, timeout=LONGEST_SECONDS) == {0: 2}
        finally:
            may_end.release(100)

    monkeypatch.setattr(ConsumerOffsetFile, "sync", slow)
    while_writing(tmp_path, commit_during_a_sync)


@pytest.mark.parametrize("fails", [True, False])
def test_a_removal_is_written_whatever_a_replacement_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The first one finds no space, or has its copy when another offset is removed. A journal
    cannot say that an offset is gone, and a kill would bring it back."""
    begun, may_end = threading.Event(), threading.Event()
    begin, removed = ConsumerOffsetFile.begin_replacing, [0] if fails else [0, 1]

    def slow(file: ConsumerOffsetFile, given: Offsets, commits: int) -> bytes:
        if not begun.is_set():
            begun.set()
            assert may_end.wait(LONGEST_SECONDS)
            if fails:
                raise NoSpaceError("no space")
        return begin(file, given, commits)

    async def remove(writer: OffsetWriter) -> None:
        writer.remove(KEY, 0)
        assert await asyncio.to_thread(begun.wait, LONGEST_SECONDS)
        for queue_id in removed[1:]:
            writer.remove(KEY, queue_id)
        may_end.set()
        await await_committed(tmp_path, {n: 7 for n in range(3) if n not in removed})

    with ConsumerOffsetFile(tmp_path) as file:
        file.replace({KEY: dict.fromkeys(range(3), 7)}, 1)
    monkeypatch.setattr(ConsumerOffsetFile, "begin_replacing", slow)
    while_writing(tmp_path, remove)


def test_an_offset_that_is_removed_during_a_failed_write_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is not written again with the others: a group would begin at an offset that an
    administrator took from it. What a reader finds is the journal's, the file is not replaced."""
    begun, may_fail, written = threading.Event(), threading.Event(), threading.Event()
    write, failures = ConsumerOffsetFile.write, iter([True])

    def failing(file: ConsumerOffsetFile, commits: Offsets) -> None:
        if next(failures, False):
            begun.set()
            assert may_fail.wait(60)
            raise NoSpaceError("no space for the journal")
        write(file, commits)
        written.set()

    monkeypatch.setattr(ConsumerOffsetFile, "write", failing)

    async def run() -> None:
        writer = OffsetWriter(tmp_path, tmp_path)
        appending = asyncio.create_task(writer.append())
        for key in (KEY, OTHER):
            for queue_id in (0, 1):
                writer.store(key, queue_id, 5)
        assert await asyncio.to_thread(begun.wait, 60)
        writer.remove(KEY, 0)
        for queue_id in (0, 1):
            writer.remove(OTHER, queue_id)
        may_fail.set()
        assert await asyncio.to_thread(written.wait, 60)
        assert read_committed(tmp_path) == {KEY: {1: 5}}
        appending.cancel()
        await writer.close()

    asyncio.run(run())
    assert read_committed(tmp_path) == {KEY: {1: 5}}


def test_an_offset_that_is_removed_before_it_is_written_stays_away(tmp_path: Path) -> None:
    """Other offsets of the moment are written, and a group without offsets is none any more."""

    async def run() -> None:
        writer = OffsetWriter(tmp_path, tmp_path)
        for key in (KEY, OTHER):
            writer.store(key, 0, 5)
        writer.remove(KEY, 0)
        assert writer.offsets == {OTHER: {0: 5}}
        appending = asyncio.create_task(writer.append())
        assert await asyncio.to_thread(
            became, lambda: OTHER in (read_committed(tmp_path) or {}), LONGEST_SECONDS
        )
        assert read_committed(tmp_path) == {OTHER: {0: 5}}
        appending.cancel()
        await writer.close()

    asyncio.run(run())
    assert read_committed(tmp_path) == {OTHER: {0: 5}}
