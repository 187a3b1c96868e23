"""The committed offsets of one broker on disk, without a wait for the requests that commit.

A commit is in a journal up to 100 ms after it was received, so a kill repeats the messages of that
time, and it is durable as soon as the disk has synced the journal. Commits do not wait while the
file is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from reput.store.errors import OutputError
from reput.store.state.consumeroffset import (
    REPLACE_SECONDS,
    ConsumerOffsetFile,
    Offsets,
    TopicGroup,
)

logger = logging.getLogger("reput")

JOURNAL_SECONDS = 0.05
"""Time between the beginnings of two writes to the journal."""
RETRY_SECONDS = 5.0
"""Time between attempts to write while the disk refuses."""


class OffsetWriter:
    """Holds the committed offsets, and writes what changes."""

    def __init__(self, output: Path, seed: Path) -> None:
        """Read the committed offsets below ``output``, or else below ``seed``, a store's root.

        Raises StoreError, OwnershipError where another process writes these offsets, OutputError.
        """
        with ExitStack() as opened:
            self._file = opened.enter_context(ConsumerOffsetFile(output))
            self.offsets = self._file.load(seed)
            """All committed offsets, to be changed by ``store`` and ``remove`` only."""
            self._file.replace(self.offsets, 0)
            self._opened = opened.pop_all()
        self._unsynced: Offsets = {}
        self._unwritten = 0
        """Commits since the file was replaced."""
        self._shrunk = asyncio.Event()
        """Set when an offset was removed, which a journal cannot express."""
        self._thread = ThreadPoolExecutor(1, "reput-offsets")
        self._sync_thread = ThreadPoolExecutor(1, "reput-sync")
        self._replace_thread = ThreadPoolExecutor(1, "reput-replace")
        self._wakened = asyncio.Event()
        self._appended = asyncio.Event()

    def store(self, key: TopicGroup, queue_id: int, offset: int) -> None:
        """Change an offset; it is written soon."""
        queues = self.offsets.setdefault(key, {})
        before = queues.get(queue_id)
        self._unwritten += 1
        if offset != before:
            queues[queue_id] = offset
            self._unsynced.setdefault(key, {})[queue_id] = offset
            self._wakened.set()

    def remove(self, key: TopicGroup, queue_id: int) -> None:
        """Remove an offset; the file is replaced soon."""
        for table in (self.offsets, self._unsynced):
            queues = table.get(key, {})
            queues.pop(queue_id, None)
            if not queues:
                table.pop(key, None)
        self._shrunk.set()

    async def append(self) -> None:
        """Write commits to the journal until cancelled. Raises SyncError."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wakened.wait()
            began = loop.time()
            try:
                await self._append()
            except OutputError as error:
                await _failed(error)
            await asyncio.sleep(max(began + JOURNAL_SECONDS - loop.time(), 0))

    async def _append(self) -> None:
        commits, self._unsynced = self._unsynced, {}
        self._wakened.clear()
        if not commits:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._file.write, commits)
            self._appended.set()
        except OutputError:
            for key, queues in commits.items():
                # an offset that was removed meanwhile must not come back
                kept = queues.keys() & self.offsets.get(key, {}).keys()
                newer = self._unsynced.get(key, {})
                if kept:
                    self._unsynced[key] = {**{n: queues[n] for n in kept}, **newer}
            self._wakened.set()
            raise

    async def sync(self) -> None:
        """Sync what was written until cancelled; writes do not wait for a slow disk. Raises
        SyncError: what is durable is then unknown."""
        loop = asyncio.get_running_loop()
        while True:
            await self._appended.wait()
            self._appended.clear()
            await loop.run_in_executor(self._sync_thread, self._file.sync)

    async def replace(self) -> None:
        """Replace the file when it is due, until cancelled. Raises SyncError."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPLACE_SECONDS):
                    await self._shrunk.wait()
            if not self._unwritten and not self._shrunk.is_set():
                continue
            self._shrunk.clear()
            copy = self._copy()
            try:
                # no await between the copy and this call: the copy has all that is in the journal
                begin = self._file.begin_replacing
                data = await loop.run_in_executor(self._thread, begin, *copy)
            except OutputError as error:
                self._shrunk.set()
                await _failed(error)
                continue
            self._unwritten -= copy[1]
            await self._finish_replacing(data)

    async def _finish_replacing(self, data: bytes) -> None:
        """Try until the file is replaced: only then can the other journal be begun anew."""
        loop = asyncio.get_running_loop()
        finish = self._file.finish_replacing
        while True:
            try:
                await loop.run_in_executor(self._replace_thread, finish, data)
                return
            except OutputError as error:
                await _failed(error)

    def _copy(self) -> tuple[Offsets, int]:
        """Return a copy of all offsets, and the number of commits since the file was replaced."""
        return {key: dict(queues) for key, queues in self.offsets.items()}, self._unwritten

    async def close(self) -> None:
        """Write everything and close the files."""
        try:
            loop = asyncio.get_running_loop()
            # an empty task ends after all that were begun
            await loop.run_in_executor(self._thread, lambda: None)
            await loop.run_in_executor(self._replace_thread, self._file.replace, *self._copy())
        finally:
            for thread in (self._thread, self._sync_thread, self._replace_thread):
                thread.shutdown()
            self._opened.close()


async def _failed(error: OutputError) -> None:
    """Wait before the next attempt; raise the error where there must be none."""
    if not error.retriable:
        raise error
    logger.error("commits are not durable now: %s", error)
    await asyncio.sleep(RETRY_SECONDS)
