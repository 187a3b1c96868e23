"""The manifest of a queue that one task has written as a whole, in place of its packed runs.

Where executors write, only manifests reach the driver (decision 0014): by them it knows which task
attempt has a queue's files, checks that they are as they were written, and moves them in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reput.store.files import QUEUE_DIRECTORIES
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.mappedfilequeue import crc32_of, used_end
from reput.store.runs.dispatch import DispatchCounts
from reput.store.state.ledger import LedgerEntry


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file of a queue, as its writer left it."""

    path: str
    """Path below the root of an output."""
    size: int
    used: int
    """Bytes before the zeros at its end."""
    crc32: int
    """CRC-32 of these."""

    @classmethod
    def read(cls, root: Path, path: str) -> WrittenFile:
        """Read a file below ``root``. Raises OSError."""
        with (root / path).open("rb", buffering=0) as file:
            fd = file.fileno()
            used = used_end(fd)
            return cls(path, os.fstat(fd).st_size, used, crc32_of(fd, 0, used))


def written_files(root: Path, key: QueueKey) -> Iterator[WrittenFile]:
    """Yield the files of a queue below ``root``, its ext files too. Raises OSError."""
    for kind in QUEUE_DIRECTORIES:
        directory = root / kind / key.relative_path
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            yield WrittenFile.read(root, str(path.relative_to(root)))


@dataclass(frozen=True, slots=True)
class QueueManifest:
    """One queue that a task attempt has written durably, below a directory of its own."""

    topic: bytes
    queue_id: int
    attempt: str
    """The directory, to which the files' paths are relative."""
    unit_count: int
    """Units of the queue's runs, also of those messages that are in the ledger instead."""
    first_physical_offset: int
    end_physical_offset: int
    """End of the last message."""
    last_store_timestamp: int
    """storeTimestamp of the last message, in ms."""
    counts: DispatchCounts
    ledger: tuple[LedgerEntry, ...]
    """Entries for the ledger of the output, in order."""
    files: tuple[WrittenFile, ...]
    """None where no message has a unit."""

    def to_text(self) -> str:
        """Encode for a row of the packed form."""
        return json.dumps({**asdict(self), "topic": self.topic.decode("latin-1")})

    @classmethod
    def from_text(cls, text: str) -> QueueManifest:
        """Decode the result of ``to_text``."""
        values: dict[str, Any] = json.loads(text)
        values["topic"] = values["topic"].encode("latin-1")
        values["counts"] = DispatchCounts(**values["counts"])
        values["ledger"] = tuple(LedgerEntry(**entry) for entry in values["ledger"])
        values["files"] = tuple(WrittenFile(**file) for file in values["files"])
        return cls(**values)
