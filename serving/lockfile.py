"""Queue locks over a restart: ``OUTPUT/reput/serve/locks.json``.

A broker keeps no lock over a restart, so that the first member to come back may lock queues that
another still consumes, for up to 30 s. Here the file names each lock's owner, as
``{"GROUP":{"CLIENT":{"TOPIC":[QUEUE,...]}}}``; when a lock ends is not in it. It is replaced as
soon as an owner changes, and the next time a second later, so that a kill in between loses the
changes of that second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from reput.serving.locks import Locks, Owners
from reput.serving.requests import to_json
from reput.store import fsops, jsontext
from reput.store.errors import OutputError
from reput.store.files import QUEUE_LOCKS_FILE

logger = logging.getLogger("reput")

REPLACE_SECONDS = 1.0


class LockFile:
    """The file of one output, which only the owner of its committed offsets may use."""

    def __init__(self, output: Path, locks: Locks) -> None:
        """Read the file, and give the locks to their owners again."""
        self._path = output / QUEUE_LOCKS_FILE
        self._locks = locks
        self._is_failing = False
        self._thread = ThreadPoolExecutor(1, "reput-locks")
        try:
            locks.restore(_owners(jsontext.parse(self._path.read_bytes())))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            logger.warning(
                "%s cannot be used, and is written anew: %s; for up to 30 s an orderly consumer "
                "may get queues that another has", self._path, error,
            )  # fmt: skip

    async def keep(self) -> None:
        """Write the file whenever an owner has changed, and once more when cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._locks.changed.wait()
                self._locks.changed.clear()
                await loop.run_in_executor(self._thread, self._write, self._locks.owners())
                await asyncio.sleep(REPLACE_SECONDS)
                if self._is_failing:
                    self._locks.changed.set()
        finally:
            # the end of the server's connections is no end of their owners' locks
            self._thread.submit(self._write, self._locks.owners())

    def _write(self, owners: Owners) -> None:
        """Replace the file. A failure is logged, once until it succeeds: the locks hold anyway."""
        try:
            fsops.replace_file(self._path, to_json(owners))
            self._is_failing = False
        except OutputError as error:
            if not self._is_failing:
                logger.error("queue locks are not kept over a restart now: %s", error)
            self._is_failing = True

    def close(self) -> None:
        """Wait for the last write."""
        self._thread.shutdown()


def _owners(owners: object) -> Owners:
    """The content of the file. Raises ValueError for anything else."""
    for clients in _table(owners).values():
        for topics in _table(clients).values():
            for ids in _table(topics).values():
                if not isinstance(ids, list) or any(type(number) is not int for number in ids):
                    raise ValueError("it does not list queues")
    return cast(Owners, owners)


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError("it is no table of owners")
    return value
