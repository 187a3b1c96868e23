"""Where the entries of an output end: the evidence that what was built is still there.

A queue that was removed looks like one that never was, and its next message would begin it anew.

``OUTPUT/reput/ends`` is text in UTF-8. Its first line is a JSON object:
    version    1
    store_id   the identity of the output
    end        a watermark of the output
    crc32      CRC-32 of the lines after it
Each other line has five columns with tabs between: the kind of entries (``consumequeue``,
``batchconsumequeue`` or ``index``), the topic, or the name of an index file, the queue id, the end
of the last entry of a message before ``end``, and that message's place in the log. Of a queue these
are the byte after its last unit and the physical offset after its message; of the index the number
after its last entry and the physical offset of its message. No name has a tab or another control
character.

Writer: the output's owner, at its first commit, when the watermark has come to another log file,
and at its end. The file is removed before anything is cut that it lists.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reput.store import fsops, jsontext
from reput.store.files import ENDS_FILE

VERSION = 1


class EntryName(NamedTuple):
    """A queue, or a file of the index."""

    kind: str
    name: str
    """Topic of a queue, name of an index file."""
    queue_id: int = 0


class EntryEnd(NamedTuple):
    """The end of its entries."""

    end: int
    """Byte after the last unit; of an index file, the number after its last entry."""
    physical_offset: int
    """Physical offset after the message of that unit; of an entry, that of its message."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Content of the file."""

    store_id: str
    end_offset: int
    """The watermark at which it was written."""
    entries: Mapping[EntryName, EntryEnd]

    def encode(self) -> bytes:
        """Encode the file."""
        lines = "".join(
            f"{kind}\t{name}\t{queue_id}\t{end}\t{offset}\n"
            for (kind, name, queue_id), (end, offset) in self.entries.items()
        ).encode()
        head = {
            "version": VERSION, "store_id": self.store_id, "end": self.end_offset,
            "crc32": zlib.crc32(lines),
        }  # fmt: skip
        return json.dumps(head).encode() + b"\n" + lines

    @classmethod
    def decode(cls, data: bytes) -> Ends | None:
        """Decode the result of ``encode``; None for anything else."""
        head, _, lines = data.partition(b"\n")
        try:
            fields = jsontext.parse(head)
            if fields["version"] != VERSION or fields["crc32"] != zlib.crc32(lines):
                return None
            entries = {}
            for line in lines.decode().split("\n")[:-1]:
                kind, name, queue_id, end, offset = line.split("\t")
                entries[EntryName(kind, name, int(queue_id))] = EntryEnd(int(end), int(offset))
            return cls(str(fields["store_id"]), int(fields["end"]), entries)
        except (ValueError, KeyError, TypeError):
            return None


def read_ends(state_directory: Path) -> Ends | None:
    """The ends that were recorded last; None if there are none, or they are damaged."""
    try:
        return Ends.decode((state_directory / ENDS_FILE).read_bytes())
    except OSError:
        return None


def write_ends(state_directory: Path, ends: Ends) -> None:
    """Record them durably. Raises OutputError."""
    fsops.replace_file(state_directory / ENDS_FILE, ends.encode())


def drop_ends(state_directory: Path) -> None:
    """Durably forget them, before entries are cut or replaced. Raises OutputError."""
    path = state_directory / ENDS_FILE
    if path.exists():
        fsops.unlink(path)
        fsops.sync_directory(state_directory)
