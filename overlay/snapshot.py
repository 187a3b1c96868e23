"""A snapshot of what an overlay's log says up to a position: a start reads only the rest.

The log is the truth. A snapshot is believed if its checksum is right, and the log still has the
records before its position that it names with their checksums (``store.state.evidence``). Otherwise
the whole log is read. It is in ``OUTPUT/overlay/reput/snapshot.json``::

    CRC32 OF THE REST, 8 DIGITS
    {"version":1,"begin":OFFSET,"position":OFFSET,"evidence":"OFFSET:SIZE:CRC ...",
     "levels":[MS,...],"parts":{NAME:...}}

A part is whatever a class derives from the records of the log in their order. Bytes are texts in
Latin-1.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

from reput.overlay.periodic import Periodic
from reput.store import fsops, jsontext
from reput.store.errors import StoreError
from reput.store.files import (
    COMMIT_LOG_DIRECTORY,
    OVERLAY_SNAPSHOT_FILE,
    STATE_DIRECTORY,
)
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.state.evidence import (
    Evidence,
    evidence_of,
    evidence_text,
    holds,
    is_beyond_check,
    parse_evidence,
)

VERSION = 1
"""A part that derives anything else from the same records makes another version."""
EVERY_RECORDS = 20_000
"""Records after which the next snapshot is written; a start reads as many in less than a second."""
BYTES_OF_RECORD = 256
"""Bytes of a snapshot that are worth a record: a large one is written less often."""
LOOK_SECONDS = 1.0

logger = logging.getLogger("reput")


class Part(Protocol):
    """Something that is derived from the records of a log."""

    def frozen(self) -> Callable[[], dict[str, Any]] | None:
        """Return a function that makes the state as of now, as JSON has it, whatever is taken in
        meanwhile; None while that would not tell all."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what the state was made of, before the first record is taken in."""


class Snapshots:
    """Reads the snapshot of one overlay, and writes new ones while in a ``with`` block."""

    def __init__(
        self,
        root: Path,
        lock: threading.Condition,
        levels_ms: tuple[int, ...],
        parts: Mapping[str, Part],
    ) -> None:
        """``lock`` guards the parts, and every call of ``note``; ``levels_ms`` are the delays of
        the levels, by which records are due."""
        self._root = root
        self._path = root / STATE_DIRECTORY / OVERLAY_SNAPSHOT_FILE
        self._lock = lock
        self._levels = list(levels_ms)
        self._parts = parts
        self._last = (0, 0)
        """Physical offset and size of the last record that the parts have taken in."""
        self._new_records = 0
        """Records that they have taken in since the last snapshot."""
        self._least_records = EVERY_RECORDS
        """How many of them are worth the next one."""
        self._opened = ExitStack()

    def restore(self, log: CommitLog, end: int) -> int:
        """Restore the parts, and return the physical offset from which on they lack records of the
        log, which ends at ``end``; that of its first record where no snapshot fits."""
        begin = log.min_offset
        if begin == end:
            return begin
        try:
            document = self._fitting(log, end)
        except StoreError as error:
            level = logging.WARNING if self._path.exists() else logging.INFO
            line = "the whole log of %s is read, bytes=%d: %s"
            logger.log(level, line, self._root, end - begin, error)
            return begin
        for name, part in self._parts.items():
            part.restore(document["parts"][name])
        return int(document["position"])

    def _fitting(self, log: CommitLog, end: int) -> dict[str, Any]:
        """Return the snapshot. Raises StoreError where there is none of this log."""
        document = _read(self._path)
        if document["version"] != VERSION or document["parts"].keys() != self._parts.keys():
            raise StoreError(f"{self._path} was written by another version", path=self._path)
        evidence = parse_evidence(document["evidence"])
        if document["position"] > end:
            raise StoreError(
                f"it ends before the snapshot, which is of position {document['position']}, as "
                "after a power cut"
            )
        if document["begin"] != log.min_offset or not _is_of(log, evidence):
            raise StoreError("the snapshot is of another log")
        if document["levels"] != self._levels:
            raise StoreError("delay levels have changed since the snapshot")
        return document

    def note(self, record: Record) -> None:
        """Take in that the parts have taken the next record of the log in."""
        self._last = record.physical_offset, record.total_size
        self._new_records += 1

    def __enter__(self) -> Snapshots:
        """Begin to write them: one after many records, and one at the end."""
        self._opened.enter_context(
            Periodic("reput-snapshots", LOOK_SECONDS, lambda: self._write(self._least_records))
        )
        return self

    def __exit__(self, *_error: object) -> None:
        self._opened.close()
        self._write(1)

    def _write(self, new_records: int) -> None:
        """Write a snapshot if there are that many new records."""
        with self._lock:
            if self._new_records < new_records:
                return
            frozen = {name: part.frozen() for name, part in self._parts.items()}
            if None in frozen.values():
                return
            last, self._new_records = self._last, 0
        parts = {name: make_state() for name, make_state in frozen.items() if make_state}
        try:
            data = self._encoded(last, parts)
            fsops.replace_file(self._path, b"%08x\n%b" % (zlib.crc32(data), data))
        except (OSError, StoreError) as error:
            logger.warning("a later start reads more of the overlay's log: %s", error)
        else:
            self._least_records = max(EVERY_RECORDS, len(data) // BYTES_OF_RECORD)

    def _encoded(self, last: tuple[int, int], parts: Mapping[str, Any]) -> bytes:
        position = sum(last)
        with closing(CommitLog([self._root / COMMIT_LOG_DIRECTORY])) as log:
            document = {
                "version": VERSION, "begin": log.min_offset, "position": position,
                "evidence": evidence_text(evidence_of(log, [last], position)),
                "levels": self._levels, "parts": parts,
            }  # fmt: skip
        return json.dumps(document, separators=(",", ":")).encode()


def _read(path: Path) -> dict[str, Any]:
    """Read a whole snapshot. Raises StoreError."""
    try:
        checksum, _, data = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise StoreError("there is no snapshot of it") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", path=path) from error
    if checksum != b"%08x" % zlib.crc32(data):
        raise StoreError(f"{path} is damaged", path=path)
    document: dict[str, Any] = jsontext.parse(data)
    return document


def _is_of(log: CommitLog, evidence: Evidence | None) -> bool:
    """Whether the log has all records of the evidence."""
    return bool(evidence) and all(
        not is_beyond_check(log, each) and holds(log, (each,)) for each in evidence or ()
    )
