"""The history of an output, as the dispatcher machine has seen it: how retention, batches that came
again, and cuts have made the output differ from that of one run over the log as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.queue_units import queue_units
from tests.support.small_store import Expected, Queue, Repeat, expected_of, lost_of
from tests.support.wire import PlainLog


@dataclass
class Repeating:
    """A repeat, and numbers of the operations that made it."""

    repeat: Repeat
    begun: int
    """The number before the first one."""
    written: int | None = None
    """The number after the last one; None if it has not ended."""
    durable: int | None = None
    """The number after the sync that followed; None if there was none yet."""


@dataclass
class OutputHistory:
    """All of it since the output began."""

    root: Path
    """The output."""
    fronts: list[tuple[int, int]] = field(default_factory=list)
    """(position, the log's first byte) of the batches that made the output."""
    gone: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that retention took before they were durably dispatched."""
    shown: list[tuple[int, int]] = field(default_factory=list)
    """The ends of these that readers had been shown."""
    shown_end: int = -1
    """The end that they had been shown with the last of these."""
    emptied: dict[Queue, int] = field(default_factory=dict)
    """Queues that may have begun anew with a message that has no unit, since the log was cut or a
    crash came, and where the log was cut or dispatched to."""
    repeats: list[Repeat] = field(default_factory=list)
    """Batches that came again, but for those of which a power cut may still take a part."""
    repeating: list[Repeating] = field(default_factory=list)
    """Batches that came again since."""

    def lose(self, mark: int, first: int, shown_end: int) -> None:
        """Note a start that finds messages gone from the watermark to where the log begins; readers
        had been shown those that the killed run has found."""
        found = max((high for _, high in lost_of(self.gone, self.shown)), default=mark)
        self.forget_from(mark)
        self.gone.append((mark, first))
        if shown_end > mark and (found := max(found, mark)) < first:
            self.shown.append((found, first))
            self.shown_end = shown_end

    def forget_from(self, end: int) -> None:
        """Note that no range that ends beyond ``end`` has been passed: a start passes it again."""
        self.gone = [one for one in self.gone if one[1] <= end]
        self.shown = [one for one in self.shown if one[1] <= end]

    def moving(self, expected: Expected, mark: int) -> set[Path]:
        """Return the queues that begin anew with messages that readers had been shown elsewhere in
        them: retention has taken all before these, which come again from there on. The watermark is
        at ``mark``."""
        if not self.shown or mark >= self.shown_end:
            return set()
        begin, queues = self.shown[-1][1], expected.queues.queues
        return {Path(*map(str, key)) for key, queue in queues.items() if queue.begun_at >= begin}

    def begin_batch(self, position: int, mark: int, end: int, first: int) -> None:
        """Note a batch from ``position`` to ``end``, of a log that begins at ``first``. The
        watermark is at ``mark``."""
        begin = max(position, mark)
        if begin < min(first, end):
            self.gone.append((begin, min(first, end)))
        self.fronts = [one for one in self.fronts if one[0] < begin]
        self.fronts.append((begin, first))

    def begin_part(
        self, begin: int, end: int, mark: int, first: int, count: int
    ) -> Repeating | None:
        """Note that messages from ``begin`` to ``end`` are about to be dispatched, and return those
        that come again, if any; ``count`` operations came before."""
        begin, end = max(begin, first), min(end, mark)
        if begin >= end:
            return None
        self.repeating.append(Repeating(Repeat(begin, end, mark, first), count))
        return self.repeating[-1]

    def note_durable(self, count: int) -> None:
        """Note that all that was written is durable after ``count`` operations."""
        for one in self.repeating:
            if one.written is not None and one.durable is None:
                one.durable = count

    def settle(self) -> None:
        """Note that all that is there is durable."""
        self.repeats += [one.repeat for one in self.repeating]
        self.repeating.clear()

    def cut(self, plain: PlainLog, seen: int, end: int) -> None:
        """Note that the log is about to be cut at ``end``; a run has seen it up to ``seen``. No
        message brings back the units of a queue that has begun anew."""
        queues = self.expected(plain, min(seen, plain.end)).queues.queues
        begun = [key for key, queue in queues.items() if queue.begun_at >= end]
        self.emptied = {key: min(at, end) for key, at in self.emptied.items()}
        self.emptied.update(dict.fromkeys(begun, end))
        self.repeats = [_before(end, one) for one in self.repeats]
        for one in self.repeating:
            one.repeat = _before(end, one.repeat)

    def crash(self, plain: PlainLog, count: int, *, is_kill: bool) -> None:
        """Note a crash after ``count`` operations, whose disk is laid. Where it came before a batch
        that came again was written, or durable, the disk says what is left of that batch."""
        found, self.repeating = self.repeating, []
        for one in found:
            written = one.written if is_kill else one.durable
            if written is not None and written <= count:
                is_durable = one.durable is not None and one.durable <= count
                durable = one.durable if is_durable else None
                self.repeating.append(replace(one, durable=durable))
            elif one.begun < count:
                self.repeating.append(Repeating(self._left(plain, one.repeat), one.begun, count))
        if not is_kill:
            self.settle()

    def _left(self, plain: PlainLog, repeat: Repeat) -> Repeat:
        """Return a repeat but for messages that have no unit on the disk; a queue without one may
        have been emptied for it."""
        without, units = self.expected(plain, repeat.watermark), queue_units(self.root)
        self.repeating.append(Repeating(repeat, 0))
        queues = self.expected(plain, repeat.watermark).queues.queues
        self.repeating.pop()
        ends = dict(repeat.ends)
        for key, queue in queues.items():
            if queue.begun_at == without.queues.queues[key].begun_at:
                continue
            ends[key] = max(
                (
                    unit.offset + unit.size
                    for unit in units
                    if (unit.topic, unit.queue_id) == key and unit.offset >= queue.begun_at
                ),
                default=0,
            )
            if not ends[key]:
                self.emptied[key] = max(self.emptied.get(key, 0), repeat.watermark)
        return replace(repeat, ends=ends)

    @property
    def all_repeats(self) -> Sequence[Repeat]:
        """Every batch that came again."""
        return *self.repeats, *(one.repeat for one in self.repeating)

    def expected(self, plain: PlainLog, end: int) -> Expected:
        """Return the output that the log stands for up to ``end``."""
        return expected_of(
            plain, end, self.gone, self.shown, self.fronts, self.emptied_here(), self.all_repeats
        )

    def emptied_here(self) -> dict[Queue, int]:
        """Return the queues that have begun anew: a crash may have undone it before the cut."""
        kept = {
            key
            for unit in queue_units(self.root)
            if unit.offset < self.emptied.get(key := (unit.topic, unit.queue_id), 0)
        }
        return {key: end for key, end in self.emptied.items() if key not in kept}


def _before(end: int, repeat: Repeat) -> Repeat:
    """Return a repeat without what the log has lost from ``end`` on."""
    return replace(repeat, end=min(repeat.end, end), watermark=min(repeat.watermark, end))
