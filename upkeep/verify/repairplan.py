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
    for (kind, topic, queue_id), found in groupby(differences, _owner):
        if topic is not None:
            yield from _changes_of_queue(f"{kind}/{topic}/{queue_id}", list(found))
        elif kind == INDEX_DIRECTORY:
            first = min(one.path for one in found)
            yield Change(kind, f"its files from {PurePosixPath(first).name} on are removed")
        else:
            for path, some in groupby(found, lambda one: one.path):
                damages = {one.damage for one in some}
                yield Change(path, _FILE_CHANGES.get(min(damages), "written anew"))

    if replay_from is not None:
        yield Change(f"{STATE_DIRECTORY}/{WATERMARK_FILE}", f"lowered to {replay_from}")
        yield Change(
            STORE_CHECKPOINT_FILE, "its logicsPhysicalOffset, if it has one, is lowered as well"
        )


def _owner(one: Difference) -> tuple[str, str | None, int | None]:
    """A queue and its ext are one: neither can be cut without the other."""
    is_ext = one.kind == CONSUME_QUEUE_EXT_DIRECTORY
    return CONSUME_QUEUE_DIRECTORY if is_ext else one.kind, one.topic, one.queue_id


def _changes_of_queue(place: str, found: Iterable[Difference]) -> Iterator[Change]:
    lost = [one for one in found if one.is_lost]
    if lost:
        first = min(lost, key=lambda one: one.entry)
        yield Change(
            place,
            f"cut at unit {first.entry}, of the message at physical offset {first.physical_offset}",
        )
    for one in found:
        if one.damage is Damage.MISSING and not one.is_lost:
            yield Change(
                str(PurePosixPath(one.path).parent),
                "removed: all its files are gone, and all its messages",
            )
        elif one.damage in _QUEUE_CHANGES:
            yield Change(one.path, _QUEUE_CHANGES[one.damage])
