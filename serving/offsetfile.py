"""Committed offsets on disk: RocketMQ's ``config/consumerOffset.json`` and a journal of ours.

The file has RocketMQ's format, so that a broker started on the output goes on from it. It is
replaced as a whole every few seconds, by rename. Between, commits are appended to the journal
``reput/serve/offsets.journal``, which is synced before the next append. A line is CRC-32 in eight
hex digits, a space, and JSON: the first one the CRC of the file to which the journal belongs, the
others offsets by ``topic@group`` and queue. A start applies the lines up to the first torn one, and
none if the file is another one: a broker has written it meanwhile, and its offsets count.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from store import configjson, fsops
from store.errors import UsageError
from store.state.watermark import STATE_DIRECTORY

OFFSET_FILE = Path("config") / "consumerOffset.json"
SERVE_DIRECTORY = Path(STATE_DIRECTORY) / "serve"
JOURNAL_NAME = "offsets.journal"

Offsets = dict[str, dict[int, int]]
"""Queue id -> offset, by ``topic@group``."""


class OffsetFile:
    """The file and the journal of one output; one writer. Methods raise OutputError."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self.path = output / OFFSET_FILE
        self._journal_path = output / SERVE_DIRECTORY / JOURNAL_NAME
        self._journal = -1
        self._journal_size = 0
        self._counter = 0
        """The counter of the file's dataVersion only grows."""

    def open(self, seed: Path) -> Offsets:
        """Read what is committed, and write it as one file; ``seed`` is read if there is none.

        Raises UsageError for a file that cannot be read.
        """
        fsops.make_directories(self._journal_path.parent, self._output)
        fsops.make_directories(self.path.parent, self._output)
        is_ours = self.path.exists()
        offsets = self._read(self.path if is_ours else seed)
        if is_ours:
            self._replay(offsets)
        self._journal = fsops.open_for_writing(self._journal_path)
        self.replace(offsets, 0)
        return offsets

    def _read(self, path: Path) -> Offsets:
        document = configjson.read(path)
        if document is None:
            return {}
        table = document.get("offsetTable") if isinstance(document, dict) else None
        try:
            if not isinstance(table, dict):
                raise TypeError("it has no offsetTable")
            version = document.get("dataVersion") if isinstance(document, dict) else None
            counter = version.get("counter", 0) if isinstance(version, dict) else 0
            self._counter = counter if type(counter) is int else 0
            return {key: _queues(value) for key, value in table.items()}
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"cannot use {path}: {error}; restore it, or remove it to start without offsets"
            ) from error

    def _replay(self, offsets: Offsets) -> None:
        """Apply the journal if it belongs to the file."""
        try:
            lines = self._journal_path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        found = [_parse_line(line) for line in lines]
        if not found or found[0] != {"file": zlib.crc32(self.path.read_bytes())}:
            return
        for entry in found[1:]:
            if entry is None:
                return
            for key, queues in entry.items():
                offsets.setdefault(key, {}).update(_queues(queues))

    def append(self, commits: Mapping[str, Mapping[int, int]]) -> None:
        """Add commits durably."""
        data = _line(commits)
        fsops.pwrite(self._journal, data, self._journal_size, self._journal_path)
        fsops.sync(self._journal, self._journal_path)
        self._journal_size += len(data)

    def replace(self, offsets: Mapping[str, Mapping[int, int]], commits: int) -> None:
        """Replace the file, ``commits`` after the last time, and begin the journal anew."""
        self._counter += commits
        data = _document(offsets, self._counter)
        fsops.replace_file(self.path, data)
        # a kill here leaves a journal of another file, whose commits are all in this one
        first = _line({"file": zlib.crc32(data)})
        fsops.truncate(self._journal, 0, self._journal_path)
        fsops.pwrite(self._journal, first, 0, self._journal_path)
        fsops.sync(self._journal, self._journal_path)
        self._journal_size = len(first)

    @property
    def journal_bytes(self) -> int:
        """Length of the journal."""
        return self._journal_size

    def close(self) -> None:
        """Close the journal."""
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1


def _queues(value: object) -> dict[int, int]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no map of queues")
    found = {int(queue): offset for queue, offset in value.items()}
    if not all(type(offset) is int for offset in found.values()):
        raise TypeError(f"{value!r} has an offset that is no number")
    return found


def _line(entry: Mapping[str, object]) -> bytes:
    data = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _parse_line(line: bytes) -> dict[str, object] | None:
    """The entry of a whole line; None for a torn one."""
    mark, _, data = line.partition(b" ")
    if mark != b"%08x" % zlib.crc32(data):
        return None
    found = json.loads(data)
    return found if isinstance(found, dict) else None


def _document(offsets: Mapping[str, Mapping[int, int]], counter: int) -> bytes:
    """The file as RocketMQ writes it: tabs, and numbers as keys without quotes."""
    entries = []
    for key in sorted(offsets):
        queues = ",".join(f"{queue}:{offset}" for queue, offset in sorted(offsets[key].items()))
        entries.append(f"\t\t{json.dumps(key, ensure_ascii=False)}:{{{queues}\n\t\t}}")
    table = ",\n".join(entries)
    version = f'"counter":{counter},\n\t\t"stateVersion":0,\n\t\t"timestamp":0'
    text = f'{{\n\t"dataVersion":{{\n\t\t{version}\n\t}},\n\t"offsetTable":{{\n{table}\n\t}}\n}}'
    return text.encode()
