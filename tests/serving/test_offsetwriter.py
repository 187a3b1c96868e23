"""Offsets that are removed while the journal cannot be written."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from reput.serving import offsetwriter
from reput.serving.offsetwriter import OffsetWriter
from reput.store.errors import NoSpaceError
from reput.store.state.consumeroffset import ConsumerOffsetFile, Offsets, TopicGroup, read_committed

KEY, OTHER = TopicGroup("Topic", "group"), TopicGroup("Topic", "other")


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
    monkeypatch.setattr(offsetwriter, "RETRY_SECONDS", 0.0)

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
