"""A mirror driven as ``streaming.followers`` does, without Spark; also as a process to be killed.

``python -m tests.interop.mirroring STORE BOOTSTRAP IDENTITY RECORDS_PER_WRITE`` mirrors a store to
its end and prints a line after every write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from reput.sinks.kafka.mirror import KafkaMirrorTarget
from reput.sinks.kafka.topics import TopicNames, TopicSelection
from reput.sinks.kafka.transactions import DEFAULT_MAX_MESSAGE_BYTES, KafkaSettings
from reput.store.config import read_store_settings
from reput.store.follower import LogFollower
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.rows.rowform import DEFAULT_FORM, RowForm
from reput.store.rows.rows import message_rows
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.settings import ANY_SETTINGS


def mirror_target(
    bootstrap: str,
    identity: str,
    *patterns: str,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> KafkaMirrorTarget:
    """A mirror into topics whose names begin with ``identity`` and a point."""
    settings = KafkaSettings(bootstrap, identity, max_message_bytes)
    return KafkaMirrorTarget(
        settings, TopicSelection(patterns), TopicNames(f"{identity}.{{topic}}")
    )


def open_log(store: Path) -> tuple[CommitLog, int]:
    """A store's log and its sealed end."""
    settings = read_store_settings(store)
    log = settings.open_log()
    return log, LogTail(log).settled()


def found_in(store: Path) -> list[Record | BadRange]:
    """Everything in a store's log, decoded the plain way."""
    log, end = open_log(store)
    with closing(log):
        return list(records(log, log.min_offset, end, fail_on_data_loss=False))


def boundaries(store: Path) -> list[int]:
    """Where a write may begin or end."""
    log, end = open_log(store)
    with closing(log):
        found = records(log, log.min_offset, end, fail_on_data_loss=False)
        starts = [
            item.start if isinstance(item, BadRange) else item.physical_offset for item in found
        ]
    return [*starts, end]


def rows(
    store: Path, start: int, end: int, form: RowForm = DEFAULT_FORM
) -> Iterator[pa.RecordBatch]:
    """The batch that the framework gives for [start, end)."""
    settings = read_store_settings(store)
    log, _ = open_log(store)
    with closing(log):
        yield from message_rows(
            log, start, end, ROWS_SCHEMA, form, delay_levels_ms=settings.message_delay_levels_ms,
            fail_on_corrupt=False, fail_on_data_loss=False,
        )  # fmt: skip


def follow(follower: LogFollower, store: Path, step: int = 1 << 30) -> Iterator[int]:
    """Ask for the position, then write ``step`` records at a time; every end reached."""
    ends = boundaries(store)
    position = follower.position()
    position = ends[0] if position is None else position
    while position < ends[-1]:
        following = [end for end in ends if end > position]
        end = following[min(step, len(following)) - 1]
        follower.write(position, end, rows(store, position, end, follower.row_form()))
        position = end
        yield position


def mirror(target: KafkaMirrorTarget, store: Path, step: int = 1 << 30) -> None:
    """To the log's end."""
    with closing(target.open("", ANY_SETTINGS)) as follower:
        for _ in follow(follower, store, step):
            pass


if __name__ == "__main__":
    store, bootstrap, identity, step = sys.argv[1:]
    with closing(mirror_target(bootstrap, identity).open("", ANY_SETTINGS)) as opened:
        for reached in follow(opened, Path(store), int(step)):
            print(reached, flush=True)
    print("end", flush=True)
