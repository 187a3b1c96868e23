"""Finds out whether what an output has built is still there.

A queue whose files were removed looks like one that never was: its next message would begin it
anew, and every reader would miss the others in silence. Two things tell the difference. The
recorded ends (``store.state.ends``) say what was there when they were written, and the log from
that watermark to the present one, at most about a file of it, says what came since: each of its
messages has a unit, unless the ledger lists it. Messages that the log has lost do not count, since
retention removes what belongs to them (decision 0019). The search reads one unit of each queue.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from reput.checkpoints.agreement import BuiltOutput
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import StoreError
from reput.store.files import INDEX_DIRECTORY, STATE_DIRECTORY, offset_to_file_name
from reput.store.index.indexfile import read_entry
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.names import escaped
from reput.store.queue.consumequeue import UNIT_BEGIN, QueueKey, list_queues, topic_directory
from reput.store.queue.consumequeueext import is_ext_addr
from reput.store.queue.kinds import QueueKind, open_all_queues, open_ext
from reput.store.queue.queuetype import read_topic_table
from reput.store.runs.dispatch import IndexWriter
from reput.store.runs.scan import PackedChunk, runs_of, scan
from reput.store.state.ends import Ends, EntryEnd, EntryName, drop_ends, read_ends, write_ends
from reput.store.state.ledger import QUEUE_OFFSET_GAP, read_entries
from reput.store.state.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Loss:
    """Entries that an output had and has no more."""

    output: Path
    names: tuple[EntryName, ...]
    """Queues and index files that lack their last entries."""
    total: int
    """Number of queues and index files that were looked for."""
    is_everything: bool
    """No queue has a file any more."""
    remaining_end: int
    """Physical offset after the oldest message up to which one of the queues is whole; the log's
    beginning where nothing is left of it, and -1 where an ext lacks units."""

    def command(self, settings: StoreSettings, verb: str = "rebuild") -> str:
        """The command that builds them again."""
        words: tuple[str, ...] = ()
        if verb == "run":
            words = ("--once",)
        elif all(name.kind == INDEX_DIRECTORY for name in self.names):
            words = ("--only", INDEX_DIRECTORY)
        return command_line(verb, settings.root, self.output, *words)

    def error(self, settings: StoreSettings) -> StoreError:
        """The refusal to go on, with the command that builds them again."""
        kind, name, queue_id = self.names[0]
        shown = escaped(name.encode())
        place = f"file {shown}" if kind == INDEX_DIRECTORY else f"topic {shown} queue {queue_id}"
        return StoreError(
            f"{len(self.names)} of {self.total} queues and index files in {self.output} lack "
            f"entries that were built, {place} in {self.output / kind} among them: somebody has "
            "removed or overwritten files, and messages would be missing in silence; "
            f"{self.command(settings)} builds them again from the log (reput verify names all that "
            "differs)",
            path=self.output / kind,
        )


def find_loss(log: CommitLog, watermark: Watermark, built: BuiltOutput) -> Loss | None:
    """Return what is missing of the entries before the watermark; None where nothing is.

    The log must be the one that was dispatched (``what_differs``). Raises QueueFileError.
    """
    ends = usable_ends(built.output, watermark)
    recorded: Mapping[EntryName, EntryEnd] = {} if ends is None else ends.entries
    look = _Look(log, watermark.end_offset, built)
    names = [name for name, end in recorded.items() if look.is_lost(name, end)]
    begin = log.segments.at(watermark.end_offset - 1)
    start = ends.end_offset if ends else begin.start if begin else watermark.end_offset
    names += look.without_units(max(start, log.min_offset), {*names})
    if not names:
        return None
    is_everything = not _has_queues(built.output)
    if not is_everything and built.output.resolve() == built.settings.root.resolve():
        # a broker removes the queues of a topic that is deleted, whose messages the log still has
        topics = read_topic_table(built.settings.root)
        names = [
            entry
            for entry in names
            if entry.kind == INDEX_DIRECTORY or entry.name in topics or not topics
        ]
    if not names:
        return None
    total, remaining_end = len({*recorded, *names}), min(map(look.remaining_end, names))
    return Loss(built.output, tuple(names), total, is_everything, remaining_end)


def usable_ends(output: Path, watermark: Watermark) -> Ends | None:
    """The recorded ends, unless they are another output's or the watermark was lowered since."""
    ends = read_ends(output / STATE_DIRECTORY)
    if ends is None or ends.store_id != watermark.store_id:
        return None
    return ends if ends.end_offset <= watermark.end_offset else None


def observe_ends(built: BuiltOutput, end_offset: int) -> dict[EntryName, EntryEnd]:
    """Read from the files where each queue ends, as of a watermark."""
    ends = {}
    for kind, key, files in open_all_queues(built.output, built.settings):
        end = files.find_end(end_offset)
        physical_end = files.max_physic_offset(end)
        if physical_end >= 0:
            ends[EntryName(kind, key.topic, key.queue_id)] = EntryEnd(end, physical_end)
    return ends


def _has_queues(output: Path) -> bool:
    """Whether a queue of either kind has a file."""
    return any(
        any((output / kind / key.relative_path).iterdir())
        for kind in QueueKind
        for key in list_queues(output / kind)
    )


class _Look:
    """The files of an output, looked at for entries before a watermark."""

    def __init__(self, log: CommitLog, end_offset: int, built: BuiltOutput) -> None:
        self._log = log
        self._end_offset = end_offset
        self._output = built.output
        self._settings = built.settings
        self._layout = built.settings.index_layout
        self._sizes: dict[str, tuple[int, int]] = {
            kind: (built.settings.file_size(kind), kind.files.UNIT_DTYPE.itemsize)
            for kind in QueueKind
        }
        """Bytes of a file and of a unit of each kind, once for all queues."""
        self._lacks_ext = False

    def is_lost(self, name: EntryName, end: EntryEnd) -> bool:
        """Whether the last recorded entry of a queue or an index file is not there."""
        if end.physical_offset <= self._log.min_offset:
            return False  # retention removes what the log no longer has
        if name.kind == INDEX_DIRECTORY:
            return self._settings.builds_index and self._is_index_lost(name, end)
        if name.kind not in self._sizes:
            return False
        unit = self._unit_before(name, end.end)
        if unit is None or unit[0] + unit[1] != end.physical_offset:
            return True
        has_ext = self._settings.enable_consume_queue_ext and is_ext_addr(unit[2])
        if has_ext and name.kind == QueueKind.CONSUME:
            lacks_ext = open_ext(self._output, _key_of(name), self._settings).read(unit[2]) is None
            self._lacks_ext |= lacks_ext
            return lacks_ext
        return False

    def _is_index_lost(self, name: EntryName, end: EntryEnd) -> bool:
        path = self._output / INDEX_DIRECTORY / name.name
        try:
            if path.stat().st_size == self._layout.file_size:
                entry = read_entry(path, self._layout, end.end - 1)
                if entry.phy_offset == end.physical_offset:
                    return False
        except OSError:
            pass
        # a start removes entries whose message is damaged now
        return isinstance(self._log.record_starting_at(end.physical_offset), Record)

    def _unit_before(self, name: EntryName, end: int) -> tuple[int, int, int] | None:
        """The unit that ends at byte ``end`` of a queue; None where it has none. No Path and no
        list of files, because there may be 100,000 queues."""
        size, unit_size = self._sizes[name.kind]
        position = end - unit_size
        start = position - position % size
        path = (
            f"{self._output}/{name.kind}/{name.name}/{name.queue_id}/{offset_to_file_name(start)}"
        )
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = os.pread(fd, UNIT_BEGIN.size, position - start)
        finally:
            os.close(fd)
        unit: tuple[int, int, int] = UNIT_BEGIN.unpack(data.ljust(UNIT_BEGIN.size, b"\0"))
        return unit

    def _last_unit(self, name: EntryName, kind: QueueKind) -> tuple[int, int]:
        """(physical offset, size) of the last unit before the watermark; (-1, 0) without one."""
        files = kind.open(self._output, _key_of(name), self._settings)
        return files.last_unit(files.find_end(self._end_offset)) or (-1, 0)

    def remaining_end(self, name: EntryName) -> int:
        """The physical offset after the last message that has its entry, in or before the log."""
        if self._lacks_ext:
            return -1
        if name.kind == INDEX_DIRECTORY:
            return self._log.min_offset
        return max(sum(self._last_unit(name, QueueKind(name.kind))), self._log.min_offset)

    def without_units(self, start: int, listed: set[EntryName]) -> Sequence[EntryName]:
        """The queues that lack the unit of a message between ``start``, where a record starts, and
        the watermark."""
        newest: dict[EntryName, int] = {}
        for name, offsets in self._scan(start):
            newest[name] = max(newest.get(name, -1), offsets[-1])
        lasts = {
            name: max(self._last_unit(name, kind)[0] for kind in QueueKind)
            for name in newest
            if name not in listed
        }
        lacking = {name: last for name, last in lasts.items() if last < newest[name]}
        return self._unlisted(start, lacking) if lacking else ()

    def _unlisted(self, start: int, lacking: Mapping[EntryName, int]) -> Sequence[EntryName]:
        """The queues of which the ledger does not list all messages after the last unit: as damage,
        or as messages of these queues."""
        ledger = [entry for entry in read_entries(self._output / STATE_DIRECTORY) if entry]
        dropped = {
            (entry.topic, entry.queue_id, entry.physical_offset)
            for entry in ledger
            if entry.reason != QUEUE_OFFSET_GAP
        }
        listed = sorted(
            (entry.physical_offset, entry.end_physical_offset)
            for entry in ledger
            if entry.is_damage
        )
        begins = [begin for begin, _ in listed]
        ends = [0, *accumulate((end for _, end in listed), max)]
        unlisted: dict[EntryName, None] = {}
        for name, offsets in self._scan(start):
            topic = escaped(name.name.encode())
            for offset in offsets if name in lacking else ():
                is_damage = ends[bisect_right(begins, offset)] > offset
                is_listed = is_damage or (topic, name.queue_id, offset) in dropped
                if offset > lacking[name] and not is_listed:
                    unlisted[name] = None
        return list(unlisted)

    def _scan(self, start: int) -> Iterable[tuple[EntryName, list[int]]]:
        """The physical offsets of messages by their own queues, chunk by chunk; those of names that
        no directory can have, and those before their topic's begin, are left out."""
        if start >= self._end_offset:
            return
        for item in scan(self._log, start, self._end_offset, fail_on_data_loss=False):
            for whole in runs_of(item) if isinstance(item, PackedChunk) else ():
                topic = topic_directory(whole.topic)
                run = whole.since(self._settings.topic_begins.get(topic or "", 0))
                if topic is not None and run is not None and run.queue_id >= 0:
                    name = EntryName(QueueKind.CONSUME, topic, run.queue_id)
                    yield name, run.units["offset"].tolist()


class EndsFile:
    """Records the ends of an output's entries; only the owner of the output may use it."""

    def __init__(self, built: BuiltOutput, log: CommitLog) -> None:
        self._built = built
        self._log = log
        self._state = built.output / STATE_DIRECTORY
        self._entries: dict[EntryName, EntryEnd] = {}
        self._written_at = -1
        """The watermark of the last record; -1 without one."""
        self._log_file: int | None = None
        """The log file of that watermark, if this process has written the record."""
        self._held_until = -1

    def forget(self) -> None:
        """Remove the record, before anything is cut. Raises OutputError."""
        drop_ends(self._state)

    def open(self, watermark: Watermark, *, is_new: bool, replays: bool) -> None:
        """Read the record, or look at the files once where there is none.

        In an output that ``is_new`` to us no queue was dispatched by us. What a start that
        ``replays`` finds may lack entries: nothing is recorded up to its watermark.
        """
        ends = None if is_new else usable_ends(self._built.output, watermark)
        if ends is not None:
            self._entries, self._written_at = dict(ends.entries), ends.end_offset
        elif not is_new:
            self._entries = observe_ends(self._built, watermark.end_offset)
        self._held_until = watermark.end_offset if replays else -1

    def write(
        self, watermark: Watermark, writers: Sequence[IndexWriter], *, only_if_due: bool = False
    ) -> None:
        """Record the ends as of a durable watermark, unless that is done; with ``only_if_due`` not
        twice by this process for one log file. Raises OutputError."""
        end, log_file = watermark.end_offset, watermark.end_offset // (self._log.file_size or 1)
        is_done = log_file == self._log_file if only_if_due else end == self._written_at
        if is_done or end <= self._held_until:
            return
        for writer in writers:
            for name, entry in writer.ends():
                # queues of another writer may go beyond what was compared with the log
                if entry.physical_offset <= end:
                    self._entries[name] = entry
        first = self._log.min_offset
        kept = {
            name: entry for name, entry in self._entries.items() if entry.physical_offset > first
        }
        # files of the index are named by their time, and all but the newest may expire
        for name in sorted(name for name in kept if name.kind == INDEX_DIRECTORY)[:-1]:
            del kept[name]
        self._entries = kept
        write_ends(self._state, Ends(watermark.store_id, end, kept))
        self._written_at, self._log_file = end, log_file


def _key_of(name: EntryName) -> QueueKey:
    return QueueKey(name.name, name.queue_id)
