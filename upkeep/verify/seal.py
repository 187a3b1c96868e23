"""The seal of an output: checksums of what a verification has found right, so that a later one, or
a rebuild, reads only what is new of the log.

Everything that follows from the log's full files is sealed: their identity, without a byte of
theirs, and a CRC-32 of all units, index entries and ledger lines of their messages. A seal holds
while none of these has changed; units and index files may be gone that the log has lost too. It
cannot show that a log file rots in place, with neither its length nor its times changed, since that
file is not read.

``OUTPUT/reput/seal.json`` is one JSON object:
    version    1
    end        the log offset before which everything is sealed: the border of two log files
    settings   those of built.json
    log        of each sealed log file: start, inode, size, mtime in ns, ctime in ns
    ledger     CRC-32 of the ledger's lines about sealed messages
    parts      path below the output, first byte, end, CRC-32, physical offset of the newest message
    crc32      of all that

Writer: ``verify --sealed`` alone, which replaces the whole file by a rename.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reput.store import fsops, jsontext
from reput.store.config import StoreSettings
from reput.store.files import (
    INDEX_DIRECTORY,
    LEDGER_FILE,
    SEAL_FILE,
    STATE_DIRECTORY,
)
from reput.store.filetimes import identity
from reput.store.index.indexfile import END_TIMESTAMP_POSITION, IndexFiles, IndexHeader, IndexLayout
from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import (
    PRE_BLANK_SIZE,
)
from reput.store.queue.kinds import QueueKind
from reput.store.queue.mappedfilequeue import crc32_of
from reput.store.state.built import named_settings
from reput.store.state.ledger import read_entry
from reput.upkeep.verify.difference import Extent
from reput.upkeep.verify.indexbytes import read_gone, taken_extents

VERSION = 1

logger = logging.getLogger("reput")


class SealedLogFile(NamedTuple):
    """A full log file, by what changes with its content."""

    start: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class SealedPart(NamedTuple):
    """Bytes of a derived file that follow from sealed log files."""

    path: str
    """Path below the output."""
    begin: int
    end: int
    crc32: int
    newest: int
    """Physical offset of a message with which the file may go: the newest with a unit or entry in
    it."""

    @property
    def extent(self) -> Extent:
        """The bytes, without what is in them."""
        return self.path, self.begin, self.end


@dataclass(frozen=True, slots=True)
class Seal:
    """Content of the file."""

    end: int
    settings: Mapping[str, Any]
    log: tuple[SealedLogFile, ...]
    ledger: int
    parts: tuple[SealedPart, ...]

    def to_json(self) -> bytes:
        """Encode the file."""
        members = {name: getattr(self, name) for name in self.__slots__}
        document = {"version": VERSION, **members, "crc32": jsontext.checksum(members)}
        return json.dumps(document).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Seal:
        """Decode the result of ``to_json``. Raises ValueError."""
        try:
            document = jsontext.parse(data)
            members = {name: document[name] for name in cls.__slots__}
            if document["version"] != VERSION or document["crc32"] != jsontext.checksum(members):
                raise ValueError("it has another version, or its CRC is wrong")
            return cls(
                members["end"],
                members["settings"],
                tuple(SealedLogFile(*row) for row in members["log"]),
                members["ledger"],
                tuple(SealedPart(*row) for row in members["parts"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{error!r} in it") from error

    def stale(
        self, output: Path, settings: StoreSettings, log: CommitLog, watermark_end: int
    ) -> str | None:
        """Return why the seal does not hold, whatever the parts are; None where it does."""
        if self.settings != named_settings(settings):
            return "the settings have changed"
        if not log.min_offset <= self.end < watermark_end:
            return f"it ends at {self.end}, outside [{log.min_offset}, {watermark_end})"
        left = tuple(file for file in self.log if file.start >= log.min_offset)
        if _log_files(log, self.end) != left:
            return "a sealed log file has changed"
        if zlib.crc32(ledger_lines(output, self.end)) != self.ledger:
            return f"{STATE_DIRECTORY}/{LEDGER_FILE} has changed"
        return None

    def changed(self, root: Path, log_start: int) -> str | None:
        """Return why a part below ``root`` is not as it was sealed; None where all are. One without
        a message from ``log_start`` on may be gone."""
        for part in self.parts:
            try:
                with (root / part.path).open("rb", buffering=0) as file:
                    is_right = crc32_of(file.fileno(), part.begin, part.end) == part.crc32
            except FileNotFoundError:
                is_right = part.newest < log_start
            except OSError:
                is_right = False
            if not is_right:
                return f"{part.path} has changed, or is gone"
        return None

    def extents(self, output: Path) -> set[Extent]:
        """Return the sealed bytes of those files that are there."""
        return {part.extent for part in self.parts if (output / part.path).exists()}

    def has_times(self, headers: Mapping[str, IndexHeader]) -> bool:
        """Whether the sealed beginTimestamps of index files are those that follow from the log;
        that of a file that a dispatcher is filling is not compared otherwise."""
        return all(
            zlib.crc32(headers[part.path].encode()[: part.end]) == part.crc32
            for part in self.parts
            if part.path in headers and part.end == END_TIMESTAMP_POSITION
        )

    def without(self, kind: str) -> Seal:
        """The seal without the parts of one directory."""
        parts = tuple(part for part in self.parts if not part.path.startswith(f"{kind}/"))
        return replace(self, parts=parts)


def read_seal(
    output: Path, settings: StoreSettings, log: CommitLog, watermark_end: int
) -> Seal | None:
    """The seal of an output, if it holds as far as is seen without its parts."""
    try:
        seal = Seal.from_json((output / STATE_DIRECTORY / SEAL_FILE).read_bytes())
        fault = seal.stale(output, settings, log, watermark_end)
    except FileNotFoundError:
        fault = "there is none"
    except (OSError, ValueError) as error:
        fault = str(error)
    if fault is None:
        return seal
    note_unused(fault)
    return None


def note_unused(fault: str) -> None:
    """Log why a seal is not used."""
    logger.info("the whole log is read, since the seal is not used: %s", fault)


def write_seal(output: Path, seal: Seal) -> None:
    """Put a seal in place. Raises OutputError."""
    fsops.replace_file(output / STATE_DIRECTORY / SEAL_FILE, seal.to_json())


def make_seal(
    output: Path,
    settings: StoreSettings,
    log: CommitLog,
    watermark_end: int,
    former_seal: Seal | None,
) -> Seal | None:
    """Return the seal of an output up to its watermark; None where no log file is full.

    Call it before the comparison that has to confirm it: whatever changes meanwhile then shows in
    one of the two. The parts of ``former_seal``, a seal that holds, are not read again. Raises
    StoreError, OSError where a file cannot be read as what it is; then the comparison finds why.
    """
    starts = [segment.start for segment in log.segments.listed if segment.start < watermark_end]
    end = max(starts, default=0)
    files = _log_files(log, end)
    if not files:
        return None
    ledger = zlib.crc32(ledger_lines(output, end))
    read = {part.extent: part for part in former_seal.parts} if former_seal else {}
    parts = [part for kind in QueueKind for part in _queue_parts(output, kind, settings, end, read)]
    if settings.builds_index:
        parts += _index_parts(output, settings.index_layout, end, read)
    return Seal(end, named_settings(settings), files, ledger, tuple(parts))


def ledger_lines(output: Path, end: int) -> bytes:
    """The lines of an output's ledger about messages before ``end``."""
    path = output / STATE_DIRECTORY / LEDGER_FILE
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else ()
    entries = [(entry, line) for line in lines if (entry := read_entry(line))]
    # a repair has given lines that could not be read a negative offset
    return b"".join(line for entry, line in entries if 0 <= entry.physical_offset < end)


def _log_files(log: CommitLog, end: int) -> tuple[SealedLogFile, ...]:
    """The files that end at or before ``end``."""
    return tuple(
        SealedLogFile(segment.start, *identity(segment.path.stat()))
        for segment in log.segments.listed
        if segment.start < end
    )


def _queue_parts(
    output: Path,
    kind: QueueKind,
    settings: StoreSettings,
    end: int,
    read: Mapping[Extent, SealedPart],
) -> Iterator[SealedPart]:
    for _, queue in kind.each(output, settings):
        # blanks stay as long as the message after them
        position, newest = queue.find_end(end), end - 1
        for start in queue.starts:
            size = min(position - start, queue.file_size)
            if size <= 0:
                break
            extent = str(queue.path(start).relative_to(output)), 0, size
            part = read.get(extent)
            if part is None:
                units = queue.units(start, 0, size // queue.unit_size)
                real = units["offset"][units["size"] != PRE_BLANK_SIZE]
                newest = int(real.max()) if len(real) else newest
                part = SealedPart(*extent, zlib.crc32(units.tobytes()), newest)
            newest = part.newest
            yield part


def _index_parts(
    output: Path, layout: IndexLayout, end: int, read: Mapping[Extent, SealedPart]
) -> Iterator[SealedPart]:
    paths = IndexFiles(output / INDEX_DIRECTORY, layout).named_paths()
    for path in paths:
        name = str(path.relative_to(output))
        (full,) = taken_extents(name, layout, layout.max_index_num, is_full=True)
        if full in read:
            yield read[full]
            continue
        slots = np.zeros(layout.max_hash_slot_num, np.int32)
        count, _, newest = read_gone(path, layout, end, slots)
        if count == 1:
            return
        is_full = count == layout.max_index_num and path != paths[-1]
        with path.open("rb", buffering=0) as file:
            for extent in taken_extents(name, layout, count, is_full=is_full):
                _, begin, stop = extent
                crc = crc32_of(file.fileno(), begin, stop)
                yield SealedPart(*extent, crc, newest)
