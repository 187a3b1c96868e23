"""The journal of a drain, ``OVERLAY/reput/drain.journal``: it tells which messages a broker has.

Its lines are those of ``store.state.offsetjournal``, each with a CRC-32. Before messages are sent,
a durable line names them; the answer to each is a line of its own, which is durable before the
next messages are named. After a kill or a power cut a message is therefore in one of three states:
it has an answer; it was named and may be in the broker, who has to be asked; or it was not sent::

    {"drain":1}
    {"to":"HOST:PORT","sending":[[PHYSICAL_OFFSET,DELAY_LEVEL],...]}
    {"sent":PHYSICAL_OFFSET,"id":"MESSAGE_ID"}
    {"refused":PHYSICAL_OFFSET}
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from reput.store import fsops
from reput.store.errors import StoreError, UsageError
from reput.store.files import DRAIN_JOURNAL
from reput.store.state.offsetjournal import Journal, entry_of, is_whole, read_journal


class DrainNotes:
    """The state that the journal of an overlay describes, kept up by those who write it."""

    def __init__(self, root: Path) -> None:
        """``root`` is the overlay. Raises StoreError for a journal that cannot be used."""
        self.path = root / DRAIN_JOURNAL
        self.target: str | None = None
        """The broker that got the messages, ``HOST:PORT``; None if nothing was sent yet."""
        self.message_ids: dict[int, str] = {}
        """Physical offset of each message that the broker has -> the id that it gave it."""
        self.unanswered: dict[int, int] = {}
        """Physical offset of each message that it may have -> the delay level that was sent."""
        lines = read_journal(self.path)
        self.size = lines.size
        for line in lines.commits:
            try:
                self._take(line)
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(
                    f"cannot use {self.path}: {error!r}; restore it from a copy", path=self.path
                ) from error
        self._check_rest()

    def _check_rest(self) -> None:
        """Raise StoreError for damage before the journal's end. A power cut tears answers to
        messages that a durable line names, and such a line before any of its messages is sent."""
        named = {*self.unanswered, *self.message_ids}
        rest = self.path.read_bytes()[self.size :] if self.path.exists() else b""
        for line in filter(is_whole, rest.splitlines(keepends=True)):
            answer = entry_of(line)
            place = answer.get("sent", answer.get("refused"))
            if place is not None and place not in named:
                raise StoreError(
                    f"cannot use {self.path}: it is damaged at byte {self.size}, before messages "
                    "that were sent; restore it from a copy",
                    path=self.path,
                    position=self.size,
                )

    def _take(self, line: object) -> None:
        if not isinstance(line, Mapping):
            raise TypeError(f"expected an object, found {line!r:.40}")
        if "sending" in line:
            self.target = str(line["to"])
            self.unanswered |= {int(offset): int(level) for offset, level in line["sending"]}
        elif "refused" in line:
            self.unanswered.pop(int(line["refused"]), None)
        else:
            self.note_sent(int(line["sent"]), str(line["id"]))

    def note_sent(self, physical_offset: int, message_id: str) -> None:
        """Take in that the broker has a message."""
        self.unanswered.pop(physical_offset, None)
        self.message_ids[physical_offset] = message_id

    def check_target(self, target: str) -> None:
        """Raise UsageError if messages went to another broker already."""
        if self.target not in (None, target):
            raise UsageError(
                f"messages of {self.path.parent.parent} went to {self.target} already: send the "
                "rest there, with that as `broker=`"
            )


def check_not_drained(root: Path) -> None:
    """Raise UsageError for an overlay of which a broker has messages, since whoever consumes them
    here gets them twice."""
    target = DrainNotes(root).target
    if target is not None:
        raise UsageError(
            f"messages of {root} were sent to the broker {target}, and would come twice: move "
            "the directory away once `reput overlay drain` has sent the rest"
        )


class DrainJournal:
    """The journal for the one process that drains, while in a ``with`` block. Methods raise
    OutputError."""

    def __init__(self, notes: DrainNotes, root: Path, target: str) -> None:
        """``target`` is the broker, ``HOST:PORT``; the caller holds the overlay's lock."""
        self._notes = notes
        self._root = root
        self._target = target
        self._opened = ExitStack()
        self._journal: Journal

    def __enter__(self) -> DrainJournal:
        path = self._notes.path
        fsops.make_directories(path.parent, self._root)
        fd = fsops.open_for_writing(path)
        self._opened.callback(os.close, fd)
        fsops.sync_directory(path.parent)
        self._journal = Journal(fd, path)
        self._journal.size = self._notes.size
        if not self._notes.size:
            # a journal's first line is no entry
            self._journal.write({"drain": 1})
        return self

    def __exit__(self, *_error: object) -> None:
        with self._opened:
            self._journal.sync()

    def begin(self, messages: Sequence[tuple[int, int]]) -> None:
        """Name messages that are about to be sent, durably, together with all answers before."""
        self._journal.write({"to": self._target, "sending": messages})
        self._journal.sync()
        self._notes.unanswered |= dict(messages)

    def note(self, physical_offset: int, message_id: str) -> None:
        """Note that the broker has a message; durable with the next ``begin``, or at the end."""
        self._journal.write({"sent": physical_offset, "id": message_id})
        self._notes.note_sent(physical_offset, message_id)

    def note_refused(self, physical_offset: int) -> None:
        """Note that the broker does not have a message, and may be sent it again."""
        self._journal.write({"refused": physical_offset})
        self._notes.unanswered.pop(physical_offset, None)
