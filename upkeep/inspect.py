"""Decodes the content of a store as far as possible; it never changes a byte.

It is for the case in which something is wrong: it shows damaged bytes with the reason, where a
reader would stop.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reput.checkpoints.spark_checkpoint import DamagedCheckpointError, read_position
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import NotFoundError, UsageError
from reput.store.files import ABORT_FILE, SPARK_DIRECTORY, STATE_DIRECTORY
from reput.store.log import properties
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.log.record import (
    MAX_RECORD_LENGTH,
    SIZE_MAGIC_LENGTH,
    Record,
    body_crc_is_right,
    decode,
    fields_for_json,
    tags_code,
)
from reput.store.log.status import Outcome, Status
from reput.store.queue.consumequeue import (
    PRE_BLANK_SIZE,
    QueueKey,
    topic_directory,
)
from reput.store.queue.kinds import QueueKind
from reput.store.queue.topics import check_topics
from reput.store.queue.view import open_view
from reput.store.state.built import built_fields
from reput.store.state.output import end_of_output
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.store.state.watermark import read_watermark

BODY_PREVIEW_BYTES = 64


def describe_record(settings: StoreSettings, physical_offset: int) -> dict[str, Any]:
    """Return the fields of the record at an offset, or else what lies there and the last record
    start before it.

    Raises UsageError for an offset outside the log, NotFoundError for one in a lost part of it.
    """
    with closing(settings.open_log()) as log:
        return _record_at(log, settings, physical_offset)


def _record_at(log: CommitLog, settings: StoreSettings, physical_offset: int) -> dict[str, Any]:
    segment = log.segments.at(physical_offset)
    if segment is None:
        if gap := log.segments.gap_at(physical_offset):
            raise NotFoundError(
                f"no commitlog file covers [{gap[0]}, {gap[1]}), and with it physical offset "
                f"{physical_offset}: this part of the log is lost",
                physical_offset=physical_offset,
            )
        raise UsageError(
            f"physical offset {physical_offset} is not in [{log.min_offset}, {log.segments.end})"
        )
    file_end = segment.start + log.file_size
    head = log.read(physical_offset, SIZE_MAGIC_LENGTH)
    size = int.from_bytes(head[:4], "big", signed=True)
    data = log.read(physical_offset, min(max(size, SIZE_MAGIC_LENGTH), MAX_RECORD_LENGTH))
    result = decode(data, physical_offset, file_end)
    if isinstance(result, Outcome):
        before = walk(log, Window(log), segment.start, physical_offset)
        return {
            "file": str(segment.path),
            "stands_here": result.status.name.lower(),
            "size": result.size,
            "bytes": head.hex(" "),
            "record_start_at_or_before": before.offset,
            "last_record_before": before.last_record_offset,
        }
    return {"file": str(segment.path), **_record_fields(result, settings)}


def _record_fields(record: Record, settings: StoreSettings) -> dict[str, Any]:
    return {
        **fields_for_json(record),
        "magic": f"{record.magic:#x}",
        "tags_code": tags_code(record, settings.message_delay_levels_ms),
        "properties": properties.as_texts(record.property_map),
        "body": record.body[:BODY_PREVIEW_BYTES].decode("utf-8", "backslashreplace"),
        "body_length": len(record.body),
        "body_crc": record.body_crc,
        "body_crc_is_right": body_crc_is_right(record),
    }


def describe_queue(
    settings: StoreSettings, output: Path, topic: str, queue_id: int, first: int, count: int
) -> list[dict[str, Any]]:
    """Units of a queue below ``output``, from the one that holds the queue offset ``first``.

    Raises NotFoundError where there is no such queue, UsageError for an unknown topic and where the
    output does not belong to this log.
    """
    key = QueueKey(topic, queue_id)
    with closing(settings.open_log()) as log:
        end_of_output(output, settings.root, log)
        return _units_of(output, key, settings, log, first, count)


def _units_of(
    output: Path, key: QueueKey, settings: StoreSettings, log: CommitLog, first: int, count: int
) -> list[dict[str, Any]]:
    topic, queue_id = key.topic, key.queue_id
    is_name = topic_directory(topic.encode("utf-8", "surrogateescape")) is not None
    kinds = [kind for kind in QueueKind if is_name and (output / kind / key.relative_path).is_dir()]
    if not kinds:
        check_topics([topic], settings.root, output)
        raise NotFoundError(
            f"no queue {queue_id} of topic {topic} below {output}; "
            f"{command_line('status', settings.root, output, '--topic', topic)} lists its queues"
        )
    is_batch = kinds[-1] is QueueKind.BATCH
    queue = open_view(output, key, settings, log, kinds[-1])
    queue.follow(None)
    # units beyond a hole are shown as well, which only a consume queue can find
    index = max(first, queue.first_unit)
    if is_batch:
        index = queue.unit_from(queue.unit_start(first))
    units = queue.files.read(index, count)
    rows = []
    for queue_offset, unit in zip(queue.queue_offsets(index, units).tolist(), units, strict=True):
        offset, size = int(unit["offset"]), int(unit["size"])
        if not any(unit.tobytes()):
            break
        state = "pre-blank"
        if size <= 0:
            state = Status.BAD_SIZE.name.lower()
        elif size != PRE_BLANK_SIZE:
            result = log.record_at(offset, size)
            state = result.status.name.lower() if isinstance(result, Outcome) else "sound"
        rows.append(
            {
                "queue_offset": queue_offset,
                "physical_offset": offset,
                "size": size,
                "tags_code": int(unit["tags_code"]),
                **({"batch_size": int(unit["batch_size"])} if is_batch else {}),
                "record": state,
            }
        )
    return rows


def describe_checkpoint(store: Path) -> dict[str, Any]:
    """Return every position that a store or another output keeps, and the settings with which it
    was built; None is unknown.

    Raises UsageError where there is no directory.
    """
    if not store.is_dir():
        raise UsageError(f"{store} is not a directory; give a store's root")
    state_directory = store / STATE_DIRECTORY
    checkpoint = StoreCheckpoint.read(store)
    watermark = read_watermark(state_directory)
    fields: dict[str, Any] = {
        f"store_checkpoint.{name}": getattr(checkpoint, name, None)
        for name in StoreCheckpoint.__dataclass_fields__
    }
    fields["abort"] = (store / ABORT_FILE).exists()
    fields |= {f"built.{name}": value for name, value in built_fields(store).items()}
    if watermark is None:
        return {**fields, "watermark": None}
    fields |= {f"watermark.{name}": value for name, value in asdict(watermark).items()}
    try:
        position = read_position(state_directory / SPARK_DIRECTORY, watermark.store_id)
    except DamagedCheckpointError as error:
        return {**fields, "spark": f"not usable: {error}"}
    if position is None:
        return {**fields, "spark": None}
    return fields | {f"spark.{name}": value for name, value in asdict(position).items()}
