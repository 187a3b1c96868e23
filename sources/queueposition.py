"""A position in many queues, and evidence that their messages are still those that were read.

    {"topic": {"0": 23, "1": 5}, "/evidence": {"log": "..", "units": {"topic": "7341 6120"}}}

The offsets have the form of Spark's Kafka source. For each of them ``units`` has the physical
offset of the message before it, or ``-`` where there is none, in the order of queue ids: a queue
that was built anew has another message there. ``log`` has the newest of those messages, and older
ones (``store.state.evidence``): a queue's unit may be the same while its log is another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reput.sources.queueoffsets import LossCheck, Queues, named, offsets_json
from reput.sources.queueoptions import EVIDENCE, Offsets, parse_offsets
from reput.store import jsontext
from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.view import QueueView
from reput.store.state.evidence import (
    Evidence,
    evidence_of,
    evidence_text,
    holds,
    parse_evidence,
    same_part,
)

_NONE = "-"
_UNIT = re.compile(r"-|[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Queue offsets, and what was before them."""

    offsets: Offsets
    units: Mapping[QueueKey, int] = field(default_factory=dict)
    """Physical offset of the message before each offset; without those that have none."""
    evidence: Evidence = ()
    """Without any, the position is one of an earlier version, or nothing is before it."""

    def at(self, key: QueueKey) -> tuple[int | None, int | None]:
        """Return a queue's offset, and the physical offset of the message before it."""
        return self.offsets.get(key), self.units.get(key)

    def without(self, keys: Collection[QueueKey]) -> QueuePosition:
        """Return the position of the other queues."""
        kept = {key: offset for key, offset in self.offsets.items() if key not in keys}
        return QueuePosition(kept, self.units, self.evidence)

    def beside(self, offsets: Offsets) -> QueuePosition:
        """Return the position together with other queues."""
        return replace(self, offsets={**self.offsets, **offsets})

    def to_json(self) -> dict[str, Any]:
        """Return the position as Spark's Python source API expects it, always in one order."""
        document: dict[str, Any] = offsets_json(self.offsets)
        if self.evidence:
            units = {
                topic: " ".join(
                    str(self.units.get(QueueKey(topic, int(queue_id)), _NONE)) for queue_id in ids
                )
                for topic, ids in document.items()
            }
            document[EVIDENCE] = {"log": evidence_text(self.evidence), "units": units}
        return document


def parse_position(text: str) -> QueuePosition | None:
    """Parse the JSON text of a position; return None where it is damaged."""
    try:
        offsets, document = parse_offsets(text), jsontext.parse(text)
    except ValueError:
        return None
    if EVIDENCE not in document:
        return QueuePosition(offsets)
    given = document[EVIDENCE]
    evidence, units = parse_evidence(given.get("log")), given.get("units")
    if not evidence or not isinstance(units, dict):
        return None
    by_topic = offsets_json(offsets)
    unit_offsets: dict[QueueKey, int] = {}
    for topic, listed in units.items():
        ids, parts = by_topic.get(topic, {}), str(listed).split(" ")
        if len(parts) != len(ids) or not all(map(_UNIT.fullmatch, parts)):
            return None
        places = zip(ids, parts, strict=True)
        unit_offsets |= {
            QueueKey(topic, int(key)): int(unit) for key, unit in places if unit != _NONE
        }
    is_whole = units.keys() == by_topic.keys()
    if not is_whole or max(unit_offsets.values(), default=0) > evidence[0].offset:
        return None
    return QueuePosition(offsets, unit_offsets, evidence)


def position_at(
    offsets: Offsets, queues: Queues, log: CommitLog, before: QueuePosition
) -> QueuePosition:
    """Return the position of ``offsets``, a later one than ``before``: only queues that have moved
    are looked at."""
    units: dict[QueueKey, int] = {}
    newest: tuple[int, int, QueueKey] = (-1, 0, QueueKey("", 0))
    for key, offset in offsets.items():
        if before.offsets.get(key) == offset:
            if key in before.units:
                units[key] = before.units[key]
        elif key in queues and offset <= queues[key].max_offset:
            last_unit = queues[key].unit_before(offset)
            if last_unit is not None:
                units[key] = last_unit[0]
                if last_unit[0] >= log.min_offset and log.segments.at(last_unit[0]):
                    newest = max(newest, (*last_unit, key), key=lambda each: each[0])
    evidence, (last, size, key) = before.evidence, newest
    if last > (evidence[0].offset if evidence else -1):
        places = _units_back(queues[key], offsets[key], log)
        evidence = evidence_of(log, places, last + size, evidence)
    last = evidence[0].offset if evidence else -1
    return QueuePosition(
        offsets, {key: unit for key, unit in units.items() if unit <= last}, evidence
    )


def _units_back(queue: QueueView, offset: int, log: CommitLog) -> Iterator[tuple[int, int]]:
    """Yield places of messages before a queue offset, at distances that double."""
    index, distance = queue.unit_from(offset), 1
    while index - distance >= queue.first_unit:
        unit = queue.unit_before(queue.offset_of(index - distance + 1))
        if unit is None or unit[0] < log.min_offset:
            break
        yield unit
        distance *= 2


class QueueCheck:
    """Holds the positions of a stream against queues and log: are the messages before them those
    that were read?

    Where they are not, that is an error with ``failOnDataLoss``. Otherwise a queue is read on from
    its first message that may not have been read, with a warning.
    """

    def __init__(self, log: CommitLog, loss: LossCheck, check_output: Callable[[], object]) -> None:
        """``check_output`` raises UsageError if the queues are not those of the log as it is."""
        self._log, self._loss, self._check_output = log, loss, check_output

    def agreed(
        self,
        position: QueuePosition,
        queues: Queues,
        keys: Collection[QueueKey],
        *,
        is_end: bool = False,
    ) -> tuple[Offsets, QueuePosition]:
        """Return where ``keys``, which are in ``queues``, agree with a position; with another log,
        all of its queues are looked at. And the part of the position that holds."""
        bound: int | None = None
        trusted = position
        if not holds(self._log, position.evidence):
            self._check_output()
            bound = self._report_log(position)
            trusted = QueuePosition(
                position.offsets,
                {key: unit for key, unit in position.units.items() if unit < bound},
                tuple(each for each in position.evidence if each.end <= bound),
            )
            keys = position.offsets.keys() & queues.keys()
        offsets: Offsets = {}
        moved: list[tuple[str, str]] = []
        for key in keys:
            offset, queue = position.offsets[key], queues[key]
            offsets[key] = offset
            what = self._what_differs(key, position, queue, bound, is_end=is_end)
            if what is not None:
                offsets[key] = _first_unread(
                    offset, position.units.get(key), queue, bound, position
                )
                moved.append(what)
        if bound is None:
            self._report_queues(moved)
        return offsets, trusted

    def _what_differs(
        self,
        key: QueueKey,
        position: QueuePosition,
        queue: QueueView,
        bound: int | None,
        *,
        is_end: bool,
    ) -> tuple[str, str] | None:
        """Return the case and the text of a difference; None where the queue agrees."""
        offset, unit = position.offsets[key], position.units.get(key)
        if offset > (end := queue.max_offset):
            way = "up to" if is_end else "from"
            text = f"{named([key])} was requested {way} {offset}, but ends at {end}"
            return ("END_ABOVE_MAX" if is_end else "START_ABOVE_MAX"), text
        if queue.unit_from(offset) <= queue.first_unit:
            return None  # the unit is gone, or there was none
        before = queue.unit_before(offset)
        now = None if before is None else before[0]
        if bound is None and unit in (None, now):
            return None
        if bound is not None and (now is None or now < bound) and unit == now:
            return None
        return "QUEUE_REWRITTEN", (
            f"{named([key])} was requested from {offset}, but the message before that lies at "
            f"physical offset {now}, and the one that was read lay at {unit}"
        )

    def _report_log(self, position: QueuePosition) -> int:
        """Report that the log is another one; return up to where it is what was read."""
        self._log.segments.check_mounted("nothing is read")
        part = same_part(self._log, position.evidence)
        detail = (
            f"the log has changed: it is what was read up to {part.end}, and has other messages "
            f"from {part.changed_from} on"
        )
        if part.end < part.changed_from:
            detail += f"; messages of [{part.end}, {part.changed_from}) of the log may come again"
        self._loss.report("LOG_REWRITTEN", detail)
        return part.end

    def _report_queues(self, moved: list[tuple[str, str]]) -> None:
        # the keys may come from a set: what is said first is the same in every process
        for case in sorted({case for case, _ in moved}):
            texts = sorted(text for each, text in moved if each == case)
            more = f", and {len(texts) - 1} more queues like it" if len(texts) > 1 else ""
            self._loss.report(case, texts[0] + more)


def _first_unread(
    offset: int, unit: int | None, queue: QueueView, bound: int | None, position: QueuePosition
) -> int:
    """Return the queue offset of the first message that may not have been read."""
    limits = [limit for limit in (None if unit is None else unit + 1, bound) if limit is not None]
    if limits:
        first = queue.first_at(min(limits))
        # where more messages are before it than there were, any of them may be a new one
        return first if first <= offset else queue.min_offset
    return offset if position.evidence else queue.min_offset
