"""Outputs that are sealed, with the logs that they follow from."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

from reput.store.errors import ReputError
from tests.support.derived_output import DerivedOutput
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.support.wire import file_name


class Sealed:
    """A small store, its output, and the seal as it was made."""

    def __init__(self, directory: Path, seed: int, *, grown: int = 60, **options: Any) -> None:
        """``options`` are those of ``DerivedOutput.start``."""
        self.log = GrownLog(directory / "store", random.Random(seed), ext=False)
        self.log.grow(60)
        self.output = DerivedOutput(self.log.root, directory / "output")
        self.output.start(**options)
        assert self.output.verify(sealed=True).differences == ()
        if grown:
            self.log.grow(grown)
            self.output.start(**options)
        self.path = self.output.state / "seal.json"
        self.data = self.path.read_bytes()
        self.end: int = json.loads(self.data)["end"]
        assert FILE_SIZE <= self.end <= self.log.plain.end

    def answers(self) -> tuple[object, object]:
        """The answers of the sealed and of the full comparison; the seal stays as it was."""
        found = [self._answer(sealed=sealed) for sealed in (True, False)]
        self.path.write_bytes(self.data)
        return found[0], found[1]

    def _answer(self, *, sealed: bool) -> object:
        try:
            found = self.output.verify(sealed=sealed)
        except ReputError as error:
            return type(error), str(error)
        return found.differences, found.replay_from

    def read_from(self) -> int:
        """Where a sealed comparison that finds nothing began to read."""
        found = self.output.verify(sealed=True)
        assert found.differences == ()
        assert (found.log_start, found.log_end) == (self.log_start, self.log.plain.end)
        self.path.write_bytes(self.data)
        return found.seal_end

    @property
    def log_start(self) -> int:
        return int(min((self.log.root / "commitlog").iterdir()).name)

    def unsealed(self, kind: str) -> list[Path]:
        """Files of a kind without anything that is sealed; some of each kind but batch queues,
        whose files are long."""
        parts = {self.output.root / part[0] for part in json.loads(self.data)["parts"]}
        found = [path for path in self.output.files()[kind] if path not in parts]
        assert found or kind == "batchconsumequeue"
        return found

    def change(self, **members: Any) -> None:
        """Write the seal with other values, as if it had been made so."""
        document = {**json.loads(self.data), **members}
        del document["crc32"], document["version"]
        crc32 = zlib.crc32(json.dumps(document, sort_keys=True).encode())
        document |= {"version": 1, "crc32": crc32}
        self.path.write_text(json.dumps(document))

    def hide_changes(self) -> None:
        """Give the seal the identities that the sealed log files have now."""
        files = []
        for start in range(0, self.end, FILE_SIZE):
            status = (self.log.root / "commitlog" / file_name(start)).stat()
            times = [status.st_mtime_ns, status.st_ctime_ns]
            files.append([start, status.st_ino, FILE_SIZE, *times])
        self.change(log=files)
        self.data = self.path.read_bytes()


class BorderStore:
    """Messages of one queue, in log files of 4 KiB, with as many keys as they are told."""

    def __init__(self, directory: Path) -> None:
        # with messages of ours instead of its random ones
        log = GrownLog(directory / "store", random.Random(1), ext=False)
        self.root, self.plain, self.write = log.root, log.plain, log.write
        self.output = DerivedOutput(self.root, directory / "output")
        self.next = 0

    def append(self, queue_offset: int | None = None, *, keys: int = 1, light: bytes = b"") -> None:
        """A message of 300 bytes or so, a second after the one before."""
        number = len(self.plain.spans)
        texts = b" ".join(b"%d-%d" % (number, key) for key in range(keys))
        properties = b"KEYS\x01" + texts + b"\x02" if keys else b""
        self.plain.append(
            topic=b"A", body=bytes(200), properties=properties + light,
            queue_offset=self.next if queue_offset is None else queue_offset,
            store_timestamp=1_700_000_000_000 + 1000 * number,
        )  # fmt: skip
        self.next = self.next + 1 if queue_offset is None else max(self.next, queue_offset + 1)

    def append_up_to(self, end: int, *, keys: int = 1) -> None:
        """Messages up to ``end``; the one that would go beyond a log file begins the next one."""
        while self.plain.end < end:
            self.append(keys=keys)

    def begin_file(self, number: int) -> None:
        """Messages until the next one begins a log file."""
        self.append_up_to(number * FILE_SIZE)
        self.plain.cut(number * FILE_SIZE)
        self.next -= 1

    @property
    def seal(self) -> Path:
        return self.output.state / "seal.json"

    def check(self) -> tuple[object, int]:
        """Both comparisons agree; their differences, and where the sealed one began to read."""
        before = self.seal.read_bytes()
        by_seal = self.output.verify(sealed=True)
        self.seal.write_bytes(before)
        full = self.output.verify()
        assert (by_seal.differences, by_seal.replay_from) == (full.differences, full.replay_from)
        return full.differences, by_seal.seal_end
