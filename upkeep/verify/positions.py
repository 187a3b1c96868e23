"""Compares the positions and the ledger of an output with its log, and heals them.

Some values do not follow from the log (which of two times a killed dispatcher wrote last, what a
broker wrote before); these count as right as long as they are possible for the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from reput.store import fsops
from reput.store.files import LEDGER_FILE, STORE_CHECKPOINT_FILE, WATERMARK_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.log.record import Record
from reput.store.state import storecheckpoint
from reput.store.state.ledger import Ledger, LedgerEntry, read_entry
from reput.store.state.storecheckpoint import StoreCheckpoint, may_start_record
from reput.store.state.watermark import SLOT_SIZE, USED_SIZE, Watermark
from reput.upkeep.verify.difference import Damage, Difference, LogRange


def _difference(
    kind: str,
    damage: Damage,
    path: str,
    position: int = 0,
    entry: int = 0,
    expected: tuple[int | str, ...] | None = None,
    actual: tuple[int | str, ...] | None = None,
    physical_offset: int | None = None,
) -> Difference:
    count = int(damage in (Damage.SLOT, Damage.LINE))
    return Difference(
        kind, damage, path, position, None, None, entry, count, physical_offset, expected, actual
    )


def watermark_differences(state: Path) -> list[Difference]:
    """Return the damage of a state directory's watermark file; none where there is no file."""
    path = state / WATERMARK_FILE
    if not path.exists():
        return []
    data, name = path.read_bytes(), f"{state.name}/{WATERMARK_FILE}"
    differences = []
    if len(data) != 2 * SLOT_SIZE:
        size = (len(data),)
        differences = [
            _difference(WATERMARK_FILE, Damage.FILE_SIZE, name, 0, 0, (2 * SLOT_SIZE,), size)
        ]
    parts = [data[at : at + SLOT_SIZE].ljust(SLOT_SIZE, b"\0") for at in (0, SLOT_SIZE)]
    slots = [Watermark.unpack(part) for part in parts]
    newest = max((slot.sequence for slot in slots if slot), default=0)
    for number, (part, slot) in enumerate(zip(parts, slots, strict=True)):
        is_unused = newest == 1 and not any(part)
        if not is_unused and (slot is None or any(part[USED_SIZE:])):
            actual = None if slot is None else (slot.end_offset,)
            differences.append(
                _difference(
                    WATERMARK_FILE, Damage.SLOT, name, number * SLOT_SIZE, number, None, actual
                )
            )
    return differences


def rewrite_watermark(state: Path, watermark: Watermark) -> None:
    """Write the file anew, both its slots. Raises OutputError."""
    slots = sorted(
        (replace(watermark, sequence=watermark.sequence + step) for step in (1, 2)),
        key=lambda slot: slot.sequence % 2,
    )
    data = b"".join(slot.pack().ljust(SLOT_SIZE, b"\0") for slot in slots)
    fsops.replace_file(state / WATERMARK_FILE, data)


@dataclass(frozen=True, slots=True)
class StoreCheckpointBounds:
    """The bounds that the log and the watermark set for RocketMQ's checkpoint."""

    watermark: Watermark
    log: LogRange
    newest_store_timestamp: int
    """The newest store time of all messages below the watermark, in ms."""
    index_timestamps: Sequence[int] | None
    """endTimestamps of index files that are full and followed by another, in order, in ms; None
    where they are unknown, since the index is switched off."""
    keeps_logics_physical_offset: bool
    """Whether the output is for RocketMQ 5.5, whatever its checkpoint holds."""


def compare_store_checkpoint(
    output: Path, log: CommitLog, bounds: StoreCheckpointBounds
) -> tuple[list[Difference], StoreCheckpoint]:
    """Return the damage of an output's checkpoint, and the content that it should have."""
    path = output / STORE_CHECKPOINT_FILE
    data = path.read_bytes() if path.exists() else None
    checkpoint = StoreCheckpoint.read(output)
    right = _right_checkpoint(checkpoint or StoreCheckpoint(-1, -1, -1, -1, -1, -1), log, bounds)
    name = STORE_CHECKPOINT_FILE
    if data is None:
        size = (storecheckpoint.FILE_SIZE,)
        return [_difference(name, Damage.MISSING, name, expected=size)], right
    if len(data) != storecheckpoint.FILE_SIZE:
        sizes = (storecheckpoint.FILE_SIZE,), (len(data),)
        return [_difference(name, Damage.FILE_SIZE, name, 0, 0, *sizes)], right
    differences = []
    if checkpoint is not None and checkpoint != right:
        offset = max(bounds.watermark.last_record_offset, 0)
        sides = astuple(right), astuple(checkpoint)
        differences = [_difference(name, Damage.FIELDS, name, 0, 0, *sides, offset)]
    end = len(data.rstrip(b"\0"))
    if end > storecheckpoint.USED_SIZE:
        differences.append(_difference(name, Damage.STRAY, name, storecheckpoint.USED_SIZE))
    return differences, right


def _right_checkpoint(
    checkpoint: StoreCheckpoint, log: CommitLog, bounds: StoreCheckpointBounds
) -> StoreCheckpoint:
    """Return ``checkpoint`` where it is possible for the log: a killed dispatcher leaves one older
    than the watermark, and a broker may have come further."""
    watermark = bounds.watermark
    is_known = watermark.last_record_offset >= 0
    last, timestamp = max(watermark.last_record_offset, 0), watermark.last_store_timestamp
    newest = max(bounds.newest_store_timestamp, timestamp)
    # a watermark that was lowered does not show how far the dispatcher had come
    end = bounds.log.end if is_known else bounds.log.sealed_end

    confirm, logics = checkpoint.confirm_phy_offset, checkpoint.logics_msg_timestamp
    is_older = 0 <= confirm < end and 0 < logics <= newest
    is_older = is_older and not (is_known and confirm >= last)
    if not (is_older and _may_be_last(log, confirm, logics)):
        is_older = False
        confirm, logics = last, timestamp
    # this is the last file's, though an earlier one ends later where the clock stepped back;
    # RocketMQ's IndexService.flush does not compare, and keeps the old value where it has none
    index_timestamps = bounds.index_timestamps or ()
    index = next((time for time in reversed(index_timestamps) if time > 0), 0)
    is_off = bounds.index_timestamps is None
    if is_older or bounds.log.start or not is_known or is_off:
        may_be_any = bounds.log.start > 0 or not is_known or is_off
        is_possible = checkpoint.index_msg_timestamp in (0, *index_timestamps)
        if is_possible or (may_be_any and 0 <= checkpoint.index_msg_timestamp <= newest):
            index = checkpoint.index_msg_timestamp
    physic = checkpoint.physic_msg_timestamp
    if not (logics <= physic and (physic <= newest or _is_stored_later(log, bounds.log, physic))):
        physic = logics
    flushed, log_end = checkpoint.master_flushed_offset, bounds.log.sealed_end
    is_start = 0 <= flushed < log_end and may_start_record(log, flushed)
    if not is_start and flushed != log_end:
        flushed = 0
    covered = _right_logics_physical_offset(checkpoint.logics_physical_offset, log, bounds)
    return StoreCheckpoint(physic, logics, index, flushed, confirm, covered)


def _is_stored_later(log: CommitLog, place: LogRange, time_ms: int) -> bool:
    """Return whether the log has a record of this store time or later that is not dispatched yet,
    as where a broker has come further."""
    # every record is looked at: files are not in time order where a broker's clock stepped back
    walked = walk(log, Window(log), place.end, place.sealed_end, max_timestamp=time_ms - 1)
    return walked.offset < place.sealed_end


def _right_logics_physical_offset(start: int, log: CommitLog, bounds: StoreCheckpointBounds) -> int:
    """Return ``start`` if a record starts there and every message before it has its unit, otherwise
    the right value; 0 means none yet. RocketMQ resumes at this very byte of the log, and cuts the
    log if no record starts there."""
    watermark = bounds.watermark
    last = watermark.last_record_offset
    if last < 0:
        last = watermark.end_offset

    def is_right(offset: int) -> bool:
        return 0 < offset <= last and may_start_record(log, offset)

    if start == 0 or is_right(start):
        return start
    return last if bounds.keeps_logics_physical_offset and is_right(last) else 0


def _may_be_last(log: CommitLog, offset: int, logics: int) -> bool:
    """Return whether the last record at some time may have been at ``offset``, the last dispatched
    message of this store timestamp."""
    if offset < log.min_offset:
        return True
    result = log.record_starting_at(offset)
    if not isinstance(result, Record):
        return False
    return not result.dispatched_to_queue or result.store_timestamp == logics


def heal_store_checkpoint(output: Path, right: StoreCheckpoint) -> None:
    """Write the checkpoint anew. Raises OutputError."""
    fsops.replace_file(output / STORE_CHECKPOINT_FILE, right.encode())


class ComparedLedger(Ledger):
    """A ledger that remembers the entries that follow from the log, and writes only to heal."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._expected: dict[tuple[object, ...], str] = {}
        data = self.path.read_bytes() if self.path.exists() else b""
        self._lines = data.split(b"\n")[:-1]
        self.is_damaged = any(_key(line) is None for line in self._lines)
        """Some lines cannot be read: their entries may seem to be missing."""

    def may_list(self, entry: LedgerEntry) -> bool:
        """Return whether an entry is listed, or may have been in a line that cannot be read."""
        return self.is_damaged or entry.key in self._seen

    def add(self, entry: LedgerEntry) -> bool:
        """Add an entry as a ledger does."""
        self._expected[entry.key] = entry.to_json()
        return super().add(entry)

    def differences(self, log: LogRange) -> list[Difference]:
        """Return the lines that cannot be read, contradict the log or are missing. Where the log
        has lost its front, missing lines are not known."""
        name = f"{self.path.parent.name}/{LEDGER_FILE}"
        differences, position = [], 0
        for number, line in enumerate(self._lines):
            key = _key(line)
            right = self._expected.get(key) if key else None
            if key is None or (right is not None and right.encode() != line):
                text = line.decode("utf-8", "backslashreplace")
                expected = None if right is None else (right,)
                differences.append(
                    _difference(LEDGER_FILE, Damage.LINE, name, position, number, expected, (text,))
                )
            position += len(line) + 1
        if log.start == 0:
            for number, text in enumerate(self._missing(), len(self._lines)):
                differences.append(
                    _difference(LEDGER_FILE, Damage.LINE, name, position, number, (text,))
                )
        return differences

    def _missing(self) -> list[str]:
        listed = {_key(line) for line in self._lines}
        return [text for key, text in self._expected.items() if key not in listed]

    def heal(self) -> None:
        """Write the ledger anew: wrong lines are corrected, missing ones are added, and an
        unreadable one is kept as the text of an entry. Raises OutputError."""
        lines = []
        for line in self._lines:
            key = _key(line)
            if key is None:
                text = line.decode("utf-8", "backslashreplace")
                lines.append(LedgerEntry(-1, -1, "damaged_ledger_line", detail=text).to_json())
            else:
                lines.append(self._expected.get(key, line.decode()))
        text = "".join(line + "\n" for line in [*lines, *self._missing()])
        fsops.replace_file(self.path, text.encode())


def _key(line: bytes) -> tuple[object, ...] | None:
    """Return the key by which an entry is listed; None for a line that cannot be read."""
    entry = read_entry(line)
    return entry.key if entry else None
