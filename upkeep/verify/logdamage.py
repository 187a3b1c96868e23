"""Damage of the log that an output does not list: what follows from it cannot be compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.files import LEDGER_FILE, STATE_DIRECTORY, WATERMARK_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.status import Status

TORN_TAIL = "torn_tail"


@dataclass(frozen=True, slots=True)
class LogDamage:
    """One damaged range of the log."""

    path: str | None
    """The log file in which it begins; None where that is missing."""
    physical_offset: int
    end_physical_offset: int
    """The end, exclusive."""
    reason: str
    """As in the ledger; ``torn_tail`` where the log ends within a record."""

    @classmethod
    def of(cls, log: CommitLog, bad: BadRange) -> LogDamage:
        """Return a range as it is reported."""
        segment = log.segments.at(bad.start)
        reason = TORN_TAIL if bad.status is Status.NEED_MORE else bad.status.name.lower()
        return cls(None if segment is None else str(segment.path), bad.start, bad.end, reason)

    @property
    def line(self) -> str:
        """The damage and its place, for people."""
        place = f"physical offset {self.physical_offset}"
        if self.reason == TORN_TAIL:
            return f"log torn: it ends within a record at {place} in {self.path}"
        size = self.end_physical_offset - self.physical_offset
        if self.path is None:
            return f"log file missing: {size:,} bytes from {place} on"
        return f"log damaged: {size:,} bytes at {place} in {self.path} ({self.reason})"


def damage_advice(settings: StoreSettings, output: Path) -> str:
    """Return what to do about the damage."""
    state, lost = output / STATE_DIRECTORY, ""
    if (state / WATERMARK_FILE).exists():
        again = command_line("run", settings.root, output, "--replay-from", "earliest", "--once")
        lost = f" (if instead {state / LEDGER_FILE} was lost, list it again: {again})"
    return f"restore it from a copy, then verify again{lost}"
