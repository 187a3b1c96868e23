"""``inspect`` shows records, queues and positions that are not as they should be, with the reason.

The log and its queues are written by hand, after formats.md.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import NotFoundError, UsageError
from reput.upkeep.inspect import describe_checkpoint, describe_queue, describe_record
from tests.support import wire
from tests.support.batch_queue import BatchMessage
from tests.support.cli import Call, json_object
from tests.support.derived_output import DerivedOutput

FILE_SIZE = 1024
QUEUE_FILE_SIZE = 200
BODY = b"x" * 63 + "é".encode()
RECORD = len(wire.message(0, body=BODY))


def log_of(root: Path, *, levels: str = "", files: tuple[int, ...] = (0, 1)) -> Path:
    """A store whose log has three records and a BLANK, and one record in each file after it."""
    log = root / "commitlog"
    log.mkdir(parents=True)
    first = b"".join(wire.message(at * RECORD, body=BODY, queue_offset=at) for at in range(3))
    rest = FILE_SIZE - len(first)
    first += struct.pack(">iI", rest, wire.BLANK_MAGIC).ljust(rest, b"\0")
    for number in files:
        start = number * FILE_SIZE
        delayed = {"topic": b"SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x013\x02"}
        data = wire.message(start, **delayed).ljust(FILE_SIZE, b"\0")  # type: ignore[arg-type]
        (log / wire.file_name(start)).write_bytes(data if number else first)
    (root / "broker.conf").write_text(
        f"mappedFileSizeConsumeQueue={QUEUE_FILE_SIZE}\n{levels}", encoding="utf-8"
    )
    return root


def units(root: Path, kind: str, *data: bytes) -> None:
    """A queue of these units, queue 0 of ``Topic``."""
    path = root / kind / "Topic" / "0" / wire.file_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(data).ljust(QUEUE_FILE_SIZE, b"\0"))


@pytest.mark.parametrize(
    ("offset", "stands", "size", "start", "last"),
    [
        (RECORD + 4, "bad_magic", 0xDAA320A7 - (1 << 32), RECORD, 0),
        (3 * RECORD, "blank", FILE_SIZE - 3 * RECORD, 3 * RECORD, 2 * RECORD),
        (FILE_SIZE + 500, "empty", 0, 2 * FILE_SIZE, FILE_SIZE),
    ],
)
def test_what_is_no_record_is_told_with_its_neighbours(
    tmp_path: Path, offset: int, stands: str, size: int, start: int, last: int
) -> None:
    """The eight bytes, the size that they state, where a record starts, and the last one before."""
    settings = read_store_settings(log_of(tmp_path))
    found = describe_record(settings, offset)
    file = tmp_path / "commitlog" / wire.file_name(offset - offset % FILE_SIZE)
    stored = file.read_bytes()[offset % FILE_SIZE :][:8]
    assert found == {
        "file": str(file), "stands_here": stands, "size": size, "bytes": stored.hex(" "),
        "record_start_at_or_before": start, "last_record_before": last,
    }  # fmt: skip


def test_where_no_file_is(tmp_path: Path) -> None:
    """A lost part of the log ends with 1 and is named with its bounds; a place outside with 2."""
    settings = read_store_settings(log_of(tmp_path, files=(1, 3)))
    lost = (2 * FILE_SIZE, 3 * FILE_SIZE - 1)
    for offset in lost:
        with pytest.raises(
            NotFoundError, match=rf"\[2048, 3072\).* offset {offset}: .* lost"
        ) as got:
            describe_record(settings, offset)
        assert (got.value.exit_code, got.value.fields["physical_offset"]) == (1, offset)
    for offset in (FILE_SIZE - 1, 4 * FILE_SIZE):
        with pytest.raises(UsageError, match=rf"offset {offset} is not in \[1024, 4096\)"):
            describe_record(settings, offset)
    for offset in (FILE_SIZE, 3 * FILE_SIZE):
        assert describe_record(settings, offset)["physical_offset"] == offset


def test_a_record_is_shown_with_64_bytes_of_its_body(tmp_path: Path) -> None:
    """They may end within a character. The checksum is the stored one, right or not."""
    settings = read_store_settings(log_of(tmp_path))
    sound = describe_record(settings, RECORD)
    assert sound["body"] == "x" * 63 + "\\xc3"
    assert (sound["body_length"], sound["body_crc_is_right"]) == (65, True)
    assert (sound["size"], sound["magic"], sound["queue_offset"]) == (RECORD, "0xdaa320a7", 1)
    path = tmp_path / "commitlog" / wire.file_name(0)
    data = bytearray(path.read_bytes())
    data[data.index(BODY, RECORD)] ^= 1
    path.write_bytes(data)
    damaged = describe_record(settings, RECORD)
    changed = {name for name in sound if damaged[name] != sound[name]}
    assert changed == {"body", "body_crc_is_right"}
    assert damaged["body_crc_is_right"] is False


@pytest.mark.parametrize(
    ("levels", "delay_ms"), [("", 10_000), ("messageDelayLevel=1s 5s 2m\n", 120_000)]
)
def test_the_tags_code_of_a_delayed_message_is_when_it_is_due(
    tmp_path: Path, levels: str, delay_ms: int
) -> None:
    """By the broker's delay levels (formats.md §11)."""
    settings = read_store_settings(log_of(tmp_path, levels=levels))
    found = describe_record(settings, FILE_SIZE)
    assert found["tags_code"] - found["store_timestamp"] == delay_ms


def test_units_are_shown_with_what_the_log_has(tmp_path: Path, call: Call) -> None:
    """A blank before the queue's begin, a sound unit, one that leads elsewhere; they end where none
    was written, and go on beyond for who begins there."""
    root = log_of(tmp_path)
    elsewhere = wire.UNIT.pack(4, RECORD, 9)
    last = wire.UNIT.pack(2 * RECORD, RECORD, -1)
    sound = wire.UNIT.pack(0, RECORD, 7)
    units(root, "consumequeue", wire.PRE_BLANK, sound, elsewhere, bytes(20), last)
    names = ("queue_offset", "physical_offset", "size", "tags_code", "record")
    wanted = [
        dict(zip(names, row, strict=True))
        for row in (
            (0, 0, (1 << 31) - 1, 0, "pre-blank"), (1, 0, RECORD, 7, "sound"),
            (2, 4, RECORD, 9, "bad_magic"), (4, 2 * RECORD, RECORD, -1, "sound"),
        )
    ]  # fmt: skip
    settings = read_store_settings(root)
    for first, count, rows in (
        (0, 20, wanted[:3]), (1, 1, wanted[1:2]), (2, 2, wanted[2:3]), (3, 5, []),
        (4, 1, wanted[3:]), (5, 5, []), (10, 1, []), (11, 1, []),
    ):  # fmt: skip
        assert describe_queue(settings, root, "Topic", 0, first, count) == rows
    done = call("inspect", "queue", root, "Topic", 0, "--from", 5)
    assert (done.returncode, done.stdout) == (
        0, "no units from queue offset 5 on; begin lower with --from\n",
    )  # fmt: skip
    done = call("inspect", "queue", root, "Topic", 0, "--from", 5, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


@pytest.mark.parametrize("size", [-RECORD, -(1 << 31), 0])
def test_a_unit_of_a_damaged_size_hides_no_other(tmp_path: Path, size: int) -> None:
    """Only what was never written ends the units: a reader would stop at this one."""
    root = log_of(tmp_path)
    data = (wire.UNIT.pack(at * RECORD, RECORD, at) for at in (0, 2))
    units(root, "consumequeue", next(data), wire.UNIT.pack(RECORD, size, 1), next(data))
    found = describe_queue(read_store_settings(root), root, "Topic", 0, 0, 20)
    wanted = [(0, RECORD, "sound"), (RECORD, size, "bad_size"), (2 * RECORD, RECORD, "sound")]
    assert [(one["physical_offset"], one["size"], one["record"]) for one in found] == wanted
    assert [one["queue_offset"] for one in found] == [0, 1, 2]


def test_units_of_a_batch_queue_are_found_by_their_base(tmp_path: Path) -> None:
    """One that holds the queue offset is the first; its own offset is that of its first message."""
    root = log_of(tmp_path)
    batches = [
        BatchMessage(at * RECORD, RECORD, tags_code=at, base=base, batch_size=size)
        for at, base, size in ((0, 10, 5), (1, 15, 1), (2, 16, 3))
    ]
    units(root, "batchconsumequeue", *(one.unit for one in batches))
    (root / "broker.conf").write_text(f"mapperFileSizeBatchConsumeQueue={46 * 4}\n")
    path = root / "batchconsumequeue" / "Topic" / "0" / wire.file_name(0)
    path.write_bytes(path.read_bytes()[: 46 * 3].ljust(46 * 4, b"\0"))
    settings = read_store_settings(root)
    wanted = [
        {"queue_offset": one.base, "physical_offset": one.offset, "size": RECORD,
         "tags_code": one.tags_code, "batch_size": one.batch_size, "record": "sound"}
        for one in batches
    ]  # fmt: skip
    for first, rows in (
        (0, wanted),
        (10, wanted),
        (14, wanted),
        (15, wanted[1:]),
        (18, wanted[2:]),
    ):
        assert describe_queue(settings, root, "Topic", 0, first, 20) == rows
    assert describe_queue(settings, root, "Topic", 0, 10, 2) == wanted[:2]


def test_positions_of_a_store_and_of_an_output(tmp_path: Path, call: Call) -> None:
    """RocketMQ's checkpoint and abort file as they stand there (formats.md §1 and §9)."""
    root = log_of(tmp_path / "store")
    names = [
        f"store_checkpoint.{name}"
        for name in (
            "physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp",
            "master_flushed_offset", "confirm_phy_offset", "logics_physical_offset",
        )
    ]  # fmt: skip
    nothing = dict.fromkeys(names) | {"abort": False, "watermark": None}
    assert describe_checkpoint(root) == nothing
    (root / "checkpoint").write_bytes(struct.pack(">6q", 11, 12, 13, 14, 15, 16).ljust(4096, b"\0"))
    (root / "abort").touch()
    wanted = dict(zip(names, range(11, 17), strict=True)) | {"abort": True, "watermark": None}
    assert describe_checkpoint(root) == wanted
    assert json_object(call("inspect", "checkpoint", root, "--json")) == wanted
    with pytest.raises(UsageError, match="none is not a directory"):
        describe_checkpoint(tmp_path / "none")


def test_a_spark_checkpoint_that_is_damaged_is_told(tmp_path: Path) -> None:
    """The other positions are shown all the same; one that is not there is None."""
    output = DerivedOutput.build("plain", tmp_path)
    whole = describe_checkpoint(output.root)
    log_end = max(int(path.name) for path in (output.store / "commitlog").iterdir())
    assert whole["watermark.end_offset"] > log_end
    assert whole["spark"] is None
    spark = output.state / "spark"
    spark.mkdir(exist_ok=True)
    (spark / "metadata").write_text("[]")
    damaged = describe_checkpoint(output.root)
    assert damaged == whole | {"spark": "not usable: metadata has no query id"}
