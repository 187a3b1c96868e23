"""The changes that a repair makes, from the differences that it heals: the answer of a dry run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

from reput.store.files import (
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    STATE_DIRECTORY,
    STORE_CHECKPOINT_FILE,
    WATERMARK_FILE,
)
from reput.upkeep.verify.difference import Damage, Difference

_QUEUE_CHANGES = {
    Damage.FILE: "removed: a file that does not belong",
    Damage.FILE_SIZE: "given its size again",
    Damage.STRAY: "cleared after its last unit",
    Damage.EXPIRED: "given units of gone messages where it has none",
}
_FILE_CHANGES = {Damage.LINE: "corrected", Damage.SLOT: "written anew"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change that a repair makes."""

    place: str
    """A file, or the directory of a queue or of the index, below the output."""
    change: str


def planned_changes(differences: Sequence[Difference], replay_from: int | None) -> Iterator[Change]:
    """Return the changes of a repair: to queues, index and positions, in the order of the
    differences, and at last the watermark's, where it is lowered. An ext is cut with its queue."""
    for (kind, topic, queue_id), group in groupby(differences, _owner):
        if topic is not None:
            yield from _changes_of_queue(f"{kind}/{topic}/{queue_id}", list(group))
        elif kind == INDEX_DIRECTORY:
            first = min(difference.path for difference in group)
            yield Change(kind, f"its files from {PurePosixPath(first).name} on are removed")
        else:
            for path, file_group in groupby(group, lambda difference: difference.path):
                damages = {difference.damage for difference in file_group}
                yield Change(path, _FILE_CHANGES.get(min(damages), "written anew"))

    if replay_from is not None:
        yield Change(f"{STATE_DIRECTORY}/{WATERMARK_FILE}", f"lowered to {replay_from}")
        yield Change(
            STORE_CHECKPOINT_FILE, "its logicsPhysicalOffset, if it has one, is lowered as well"
        )


def _owner(difference: Difference) -> tuple[str, str | None, int | None]:
    """A queue and its ext are one: neither can be cut without the other."""
    is_ext = difference.kind == CONSUME_QUEUE_EXT_DIRECTORY
    kind = CONSUME_QUEUE_DIRECTORY if is_ext else difference.kind
    return kind, difference.topic, difference.queue_id


def _changes_of_queue(place: str, differences: Iterable[Difference]) -> Iterator[Change]:
    lost = [difference for difference in differences if difference.is_lost]
    if lost:
        first = min(lost, key=lambda difference: difference.entry)
        yield Change(
            place,
            f"cut at unit {first.entry}, of the message at physical offset {first.physical_offset}",
        )
    for difference in differences:
        if difference.damage is Damage.MISSING and not difference.is_lost:
            yield Change(
                str(PurePosixPath(difference.path).parent),
                "removed: all its files are gone, and all its messages",
            )
        elif difference.damage in _QUEUE_CHANGES:
            yield Change(difference.path, _QUEUE_CHANGES[difference.damage])
