"""A store that is written to, and dispatched when the test says so: no Spark, no waiting."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from reput.store.config import read_store_settings
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.workload.appender import Appender
from tests.support.outputs import Output, Setup


class LiveStore:
    """A broker's side, the appender, and a dispatcher's into an output of its own."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "store"
        self.output = directory / "output"
        self._held = ExitStack()

    def __enter__(self) -> LiveStore:
        self._appender = self._held.enter_context(Appender(self.root, file_size=1 << 16))
        log = CommitLog([self.root / "commitlog"], 1 << 16)
        self._held.callback(log.close)
        file_size = read_store_settings(self.root).mapped_file_size_consume_queue
        self._setup = Setup(log, self.output, file_size, {})
        self._dispatcher = Output(self._setup)
        self._held.callback(self._dispatcher.close)
        return self

    def __exit__(self, *_error: object) -> None:
        self._held.close()

    def append(self, messages: Iterable[Record]) -> list[Record]:
        """Write to the log; nothing of it is in a queue yet."""
        return [self._appender.append(message) for message in messages]

    def append_tags(self, *tags: bytes) -> list[Record]:
        """A message for each tag, to queue 0 of topic T."""
        return self.append(
            Record(topic=b"T", body=b"body", properties=b"TAGS\x01" + tag + b"\x02") for tag in tags
        )

    def dispatch(self) -> None:
        """Everything that was appended is in the queues and below the watermark."""
        self._setup.log.refresh()
        self._dispatcher.run(self._appender.end_offset)
