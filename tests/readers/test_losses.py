"""Logs with lost files and damage: whatever gives messages accounts for every byte it passed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset
from pyspark.sql.pandas.types import from_arrow_schema

from reput.readers.consumer import Consumer
from reput.readers.dataset import MessageDataset
from reput.readers.export import RowSelection
from reput.readers.iteration import iterate
from reput.readers.messagestore import MessageStore
from reput.readers.tail import TopicTail
from reput.sources.commitlog import CommitLogBatchReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.store.config import read_store_settings
from reput.store.errors import CommitLogDataLossError, CommitLogError, CorruptRecordError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.logtail import LogTail
from reput.store.log.losses import Losses
from reput.store.log.places import AsOf
from reput.store.log.status import Status
from reput.store.rows.rowform import AS_STORED
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.readers.stores import LOG_FILE_SIZE, SmallStore
from tests.readers.test_consumer import FIRST, drained
from tests.readers.test_export import exported
from tests.sources.test_queue_rows import batch_reader, rows_of
from tests.support.cli import Call
from tests.support.damage import damage
from tests.support.plain_walk import PlainWalk
from tests.support.several_paths import state_paths
from tests.support.small_logs import FILE_SIZE, random_log
from tests.support.wire import PlainLog, file_name

Part = tuple[int, int, str | None]
"""Physical offset, its end, and why it is no record; "blank" for a BLANK."""
FIRST_MS = 1_700_000_000_000
field = dataset.field


def random_store(rng: random.Random, root: Path) -> tuple[PlainLog, list[int]]:
    """A log of four to seven files with a few damages, some of whose files are gone; their starts,
    in order."""
    log = random_log(rng)
    for number in range(rng.randrange(20, 60)):
        at = FIRST_MS + number * 60_000
        log.append(topic=rng.choice((b"A", b"B")), body=bytes(100), store_timestamp=at)
    damage(rng, log)
    del log.image[len(log.image) // FILE_SIZE * FILE_SIZE :]
    log.write(root / "commitlog")
    starts = [log.start + at for at in range(0, len(log.image), FILE_SIZE)]
    gone = sorted(rng.sample(starts[:-1], rng.randrange(0, min(4, len(starts) - 1))))
    for start in gone:
        (root / "commitlog" / file_name(start)).unlink()
    return log, gone


def test_three_ranges_of_a_kind_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """The others are counted; bytes are those of all."""
    losses = Losses()
    for number in reversed(range(8)):
        losses.add(BadRange(number * 100, number * 100 + 10 + number, Status.BAD_MAGIC))
    for number in range(3):
        losses.add(BadRange(1000 + number * 100, 1050 + number * 100, Status.SEGMENT_DELETED))
    losses.say()
    losses.say()
    (said,) = caplog.records
    assert vars(said)["fields"] == {
        "lost_bytes": 150, "damaged_bytes": 108,
        "lost": "[1000, 1050), [1100, 1150), [1200, 1250)",
        "damaged": "[0, 10), [100, 111), [200, 212), 5 more",
    }  # fmt: skip


def parts_of(log: PlainLog, gone: list[int], start: int, end: int) -> list[Part]:
    """Return the parts of the log in [start, end), by a walk over its bytes in memory."""
    found: list[Part] = []
    walk = PlainWalk(log)
    for file in range(log.start, log.start + len(log.image), FILE_SIZE):
        low, high = max(file, start), min(file + FILE_SIZE, end)
        if low >= high:
            continue
        if file in gone:
            joins = bool(found) and found[-1][1:] == (file, "segment_deleted")
            before = found.pop()[0] if joins else file
            found.append((before, high, "segment_deleted"))
            continue
        items = walk.items(low, high)
        blanks = [(at, file + FILE_SIZE, "blank") for at in items.blanks]
        records = [(at, at + walk.stated_size(at), None) for at in items.records]
        bad = [(one.start, one.end, one.status.name.lower()) for one in items.bad]
        found += sorted([*blanks, *records, *bad])
    return found


def parts_of_rows(rows: Iterable[dict[str, Any]]) -> list[Part]:
    """Rows as parts."""
    return [
        (row["physicalOffset"], row["physicalOffset"] + row["storeSize"], row["corruptReason"])
        for row in rows
    ]


def sizes(parts: Iterable[Part]) -> tuple[int, int]:
    """(lost bytes, damaged bytes)."""
    bad = [part for part in parts if part[2] not in (None, "blank")]
    lost = [part for part in bad if part[2] == "segment_deleted"]
    total, gone = (sum(part[1] - part[0] for part in some) for some in (bad, lost))
    return gone, total - gone


def test_every_byte_is_a_record_a_blank_or_said(tmp_path: Path, seed: int) -> None:
    """In the dataset, with any columns and a condition on any of them, in exported files, and in a
    read of the Spark source; where one must not pass a loss it raises."""
    rng = random.Random(seed)
    raised = 0
    for case in range(25):
        root = tmp_path / str(case)
        plain, gone = random_store(rng, root)
        log = CommitLog([root / "commitlog"])
        start, end = log.min_offset, LogTail(log).settled()
        parts = parts_of(plain, gone, start, end)
        # one part begins where the one before it ends
        assert [part[0] for part in parts] + [end] == [start, *(part[1] for part in parts)]
        expected = [part for part in parts if part[2] != "blank"]
        settings = read_store_settings(root)
        for columns, topic in ((ROWS_SCHEMA.names, None), (["queueId"], None), (["body"], "A")):
            messages = MessageDataset(settings, AS_STORED)
            wanted = None if topic is None else field("topic") == topic
            table = messages.scanner(columns, wanted).to_table()
            losses = messages.losses
            assert (losses.lost_bytes, losses.damaged_bytes) == sizes(parts), (case, columns)
            if columns == ROWS_SCHEMA.names:
                assert parts_of_rows(table.to_pylist()) == expected
            elif topic is None:
                assert table.num_rows == len(expected)
        some = [RowSelection(["*"])] if any(part[2] is None for part in parts) else []
        for selection in (RowSelection(), *some):
            place = tmp_path / f"{case}-{len(selection.topics)}"
            out = exported(root, place, selection, form=AS_STORED)
            assert (out.lost_bytes, out.damaged_bytes) == sizes(parts)
        options = {"path": str(root), "failOnDataLoss": "false", "minPartitions": "3"}
        options["includeInternal"] = "true"
        reader = CommitLogBatchReader(CommitLogOptions(options), from_arrow_schema(ROWS_SCHEMA))
        rows = [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]
        assert parts_of_rows(rows) == expected
        if any(sizes(parts)):
            raised += 1
            with pytest.raises((CommitLogDataLossError, CorruptRecordError)):
                MessageDataset(settings, AS_STORED, fail_on_data_loss=True).count_rows()
        else:
            assert MessageDataset(settings, AS_STORED, fail_on_data_loss=True).count_rows() == len(
                expected
            )
    assert raised


def holed(root: Path, *, gone: int = 2, spoiled: int | None = None) -> SmallStore:
    """Messages of one queue, one a minute, each with a key of its own; one file is removed, and one
    record damaged."""
    store = SmallStore(root)
    offsets = []
    for number in range(100):
        at = FIRST_MS + number * 60_000
        properties = b"KEYS\x01key-%d\x02" % number
        offsets.append(store.append(store_timestamp=at, body=bytes(100), properties=properties))
    store.write()
    store.write_index([(f"Topic#key-{number}", offsets[number]) for number in (1, 40, 41)])
    (root / "commitlog" / file_name(gone * LOG_FILE_SIZE)).unlink()
    if spoiled is not None:
        path = root / "commitlog" / file_name(offsets[spoiled] // LOG_FILE_SIZE * LOG_FILE_SIZE)
        with path.open("r+b") as file:
            file.seek(offsets[spoiled] % LOG_FILE_SIZE + 4)
            file.write(bytes(4))
    return store


def numbers_in(store: SmallStore, start: int, end: int) -> list[int]:
    """Numbers of the messages that lie in [start, end) of the log."""
    return [number for number, span in enumerate(store.log.spans) if start <= span[0] < end]


def test_a_condition_on_place_or_time_leaves_out_what_it_rules_out(tmp_path: Path) -> None:
    """A gap that cannot hold what is chosen is not lost to the reader; one that can is, and so is
    one between files whose times are near."""
    store = holed(tmp_path, gone=2)
    start, end = 2 * LOG_FILE_SIZE, 3 * LOG_FILE_SIZE
    gone = numbers_in(store, start, end)
    assert gone

    def at(number: int) -> pa.Scalar:
        return pa.scalar((FIRST_MS + number * 60_000) * 1000, pa.timestamp("us", tz="UTC"))

    time, place = field("storeTimestamp"), field("physicalOffset")
    for wanted, is_lost in (
        (place >= end, False),
        (place < start, False),
        (place >= end - 1, True),
        (time >= at(gone[-1] + 30), False),
        (time < at(gone[0] - 30), False),
        (time >= at(gone[-1]), True),
        ((time >= at(gone[0] + 5)) & (time < at(gone[0] + 6)), True),
        (field("topic") == "no such", True),
    ):
        messages = MessageDataset(read_store_settings(tmp_path))
        messages.scanner(["queueId"], wanted).to_table()
        assert messages.losses.lost_bytes == LOG_FILE_SIZE * is_lost, wanted


def test_a_log_that_begins_late_has_lost_nothing(
    tmp_path: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Expired files are no loss, for any reader."""
    holed(tmp_path, gone=0)
    out = exported(tmp_path, tmp_path / "out")
    assert (out.lost_bytes, out.damaged_bytes) == (0, 0)
    done = call("sql", tmp_path, "select count(*) from messages", "--fail-on-data-loss")
    assert done.returncode == 0
    assert done.stderr == caplog.text == ""
    assert call("tail", tmp_path, "Topic", "--fail-on-data-loss").returncode == 0


def test_commands_say_what_is_lost_and_damaged(tmp_path: Path, call: Call) -> None:
    """A line with places and counts, in JSON as well, and an error in one line where it is asked
    for; without the option the rest is given."""
    root = tmp_path / "store"
    store = holed(root, spoiled=70)
    lost = (2 * LOG_FILE_SIZE, 3 * LOG_FILE_SIZE)
    broken = store.log.spans[70]
    count = 100 - len(numbers_in(store, *lost)) - 1
    sizes_of = {"lost_bytes": LOG_FILE_SIZE, "damaged_bytes": broken[1] - broken[0]}
    places = {"lost": "[{}, {})".format(*lost), "damaged": "[{}, {})".format(*broken)}
    for number, (selected, rows) in enumerate(((["--topic", "Topic"], count), ([], count + 2))):
        done = call("export", root, tmp_path / f"out-{number}", "--json", *selected)
        assert done.returncode == 0
        summary = json.loads(done.stdout)
        assert summary | {"rows": rows, **sizes_of} == summary
        said = json.loads(done.stderr.splitlines()[-1])
        assert said | {"level": "warning", **sizes_of, **places} == said
    query = "select count(*) as n from messages where topic = 'Topic'"
    done = call("sql", root, query)
    assert json.loads(done.stdout) == {"n": count}
    assert len(done.stderr.splitlines()) == 1
    assert "4096 bytes are lost" in done.stderr
    assert places["lost"] in done.stderr
    done = call("tail", root, "Topic", "--count", "100")
    assert len(done.stdout.splitlines()) == count
    assert "4096 bytes are lost" in done.stderr
    done = call("query", root, "Topic", "--key", "key-40")
    assert (done.returncode, places["lost"] in done.stderr) == (1, True)
    for command in (
        ["export", root, tmp_path / "failed"],
        ["sql", root, query],
        ["tail", root, "Topic", "--count", "100"],
        ["query", root, "Topic", "--key", "key-40"],
    ):
        done = call(*command, "--fail-on-data-loss")
        assert done.returncode == 1, command
        assert f"no commitlog file covers {places['lost']}" in done.stderr.splitlines()[-1]
        assert "leave out --fail-on-data-loss" in done.stderr
    assert not (tmp_path / "failed").exists()
    done = call("get", root, "Topic", "0", "40")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"is lost or damaged, at physical offset {lost[0]}" in done.stderr
    done = call("inspect", "record", root, lost[0])
    assert (done.returncode, places["lost"] in done.stderr) == (1, True)
    units = json.loads(
        call("inspect", "queue", root, "Topic", 0, "--from", 40, "-n", 1, "--json").stdout
    )
    assert units[0]["record"] == "segment_deleted"


def test_whole_queues_and_consumers_say_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``iterate`` has a row for each lost record, and its bytes once; pulls give where
    the lost part begins, and a member names it once and lists it durably."""
    store = holed(tmp_path)
    lost = numbers_in(store, 2 * LOG_FILE_SIZE, 3 * LOG_FILE_SIZE)
    body = pa.schema([ROWS_SCHEMA.field("body")])
    with MessageStore(tmp_path) as opened:
        rows = [row for batch in iterate(opened, "Topic", 0) for row in batch.to_pylist()]
        reasons = [number for number, row in enumerate(rows) if row["corruptReason"] is not None]
        assert reasons == lost
        assert opened.losses.lost_bytes == LOG_FILE_SIZE
        assert "4096 bytes are lost" in caplog.text
        assert sum(len(batch) for batch in iterate(opened, "Topic", 0, schema=body)) == 100
        pulled = opened.queue("Topic", 0).get_message(lost[0], 100)
        ranges = opened.queue("Topic", 0).get_ranges(lost[0], 100)
        assert pulled.damaged == ranges.damaged == (2 * LOG_FILE_SIZE,)
    with (
        MessageStore(tmp_path, fail_on_data_loss=True) as opened,
        pytest.raises(CommitLogDataLossError, match="no commitlog file covers"),
    ):
        list(iterate(opened, "Topic", 0, schema=body))
    caplog.clear()
    with Consumer(tmp_path, "g", {"Topic": None}, from_where=FIRST) as consumer:
        found = [message.queue_offset for message in drained(consumer, 10)]
    assert found == [number for number in range(100) if number not in lost]
    assert caplog.text.count("skips what is lost or damaged at physical offset 8192") == 1
    listed = next(tmp_path.rglob("quarantine.jsonl")).read_text("utf-8").splitlines()
    assert [json.loads(line)["physical_offset"] for line in listed] == [2 * LOG_FILE_SIZE]


@pytest.mark.parametrize(
    "head", [b"\xff" * 8, b"\x7f" * 8, bytes(8), b"\0\0\0\x60\0\0\0\0"], ids=bytes.hex
)
def test_a_damaged_record_whose_length_is_damaged_ends_where_the_next_one_begins(
    tmp_path: Path, head: bytes
) -> None:
    """Two neighbours are one range, as for a reader of the log; what is not read yet is not
    counted."""
    store = SmallStore(tmp_path)
    offsets = [store.append(body=bytes(50)) for _ in range(9)]
    for number in (2, 5, 6):
        store.log.put(offsets[number], head)
    store.write()
    first, both = (offsets[2], offsets[3]), (offsets[5], offsets[7])
    messages = MessageDataset(read_store_settings(tmp_path))
    messages.scanner(["queueId"]).to_table()
    for as_of, ranges in ((None, [first, both]), (offsets[6], [first, (offsets[5], offsets[6])])):
        expected = sum(end - start for start, end in ranges)
        assert as_of or messages.losses.damaged_bytes == expected
        for read in (
            lambda one: iterate(one, "Topic", 0),
            lambda one: TopicTail(one, "Topic").last(9),
        ):
            with MessageStore(tmp_path, as_of=as_of and AsOf(offset=as_of)) as opened:
                assert len(list(read(opened))) > 0
                assert (opened.losses.lost_bytes, opened.losses.damaged_bytes) == (0, expected)
    size = first[1] - first[0]
    with (
        MessageStore(tmp_path, fail_on_data_loss=True) as opened,
        pytest.raises(CorruptRecordError, match=f"{first[0]}, {size} bytes are no record"),
    ):
        list(iterate(opened, "Topic", 0))


def test_sources_that_begin_at_a_time_do_not_pass_over_a_loss(tmp_path: Path) -> None:
    """Where messages of that time or later may be lost or damaged, the read begins with the loss:
    it is an error by default and otherwise a row. What is there is found whatever is lost."""
    store = holed(tmp_path, spoiled=70)
    gap = (2 * LOG_FILE_SIZE, 3 * LOG_FILE_SIZE)
    gone = numbers_in(store, *gap)
    for number in range(1, 100, 3):
        options = {"path": str(tmp_path), "startingTimestamp": str(FIRST_MS + number * 60_000)}
        schema = from_arrow_schema(ROWS_SCHEMA)
        if number <= gone[-1]:
            reader = CommitLogBatchReader(CommitLogOptions(options), schema)
            with pytest.raises(CommitLogDataLossError, match="no commitlog file covers"):
                [batch for part in reader.partitions() for batch in reader.read(part)]
        options["failOnDataLoss"] = "false"
        reader = CommitLogBatchReader(CommitLogOptions(options), schema)
        rows = [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]
        bad = [part for part in parts_of_rows(rows) if part[2] is not None]
        expected: list[Part] = [(*gap, "segment_deleted")] if number <= gone[-1] else []
        expected += [(*store.log.spans[70], "bad_magic")] if number <= 70 else []
        assert bad == expected, number
        found = [row["queueOffset"] for row in rows if row["corruptReason"] is None]
        assert found == [n for n in range(number, 100) if n not in [*gone, 70]]
        queue = batch_reader(
            tmp_path, startingTimestamp=FIRST_MS + number * 60_000, failOnDataLoss="false"
        )
        first = gone[0] if number in gone else number
        assert [row["queueOffset"] for row in rows_of(queue)] == list(range(first, 100)), number


def test_a_tail_from_a_time_has_no_earlier_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the search by time meets lost records, at which RocketMQ's goes to offset 0."""
    monkeypatch.setattr("tests.readers.stores.QUEUE_FILE_SIZE", 4000)
    store = holed(tmp_path, gone=2)
    gone = numbers_in(store, 2 * LOG_FILE_SIZE, 3 * LOG_FILE_SIZE)
    for number in range(100):
        with MessageStore(tmp_path) as opened:
            found = TopicTail(opened, "Topic").since(FIRST_MS + number * 60_000)
            offsets = [one.queue_offset for one in found if one.message is not None]
        assert offsets == [n for n in range(number, 100) if n not in gone], number


def test_a_disk_that_is_not_mounted_is_said(
    tmp_path: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Where one of several directories is empty, the log may begin earlier than it seems: a warning
    that names it, and an error where losses are one."""
    store, other = holed(tmp_path / "store", gone=0).root, tmp_path / "other"
    other.mkdir()
    state_paths(store, [other, store / "commitlog"])
    exported(store, tmp_path / "out")
    assert f"{other} has no file of the log" in caplog.text
    done = call("sql", store, "select count(*) from messages", "--fail-on-data-loss")
    assert (done.returncode, f"{other} has no file of the log" in done.stderr) == (1, True)
    schema = from_arrow_schema(ROWS_SCHEMA)
    with pytest.raises(CommitLogError, match="may not be mounted"):
        CommitLogBatchReader(CommitLogOptions({"path": str(store)}), schema).partitions()
    options = CommitLogOptions({"path": str(store), "failOnDataLoss": "false"})
    assert CommitLogBatchReader(options, schema).partitions()


def test_a_last_record_that_is_not_whole_is_said(tmp_path: Path, call: Call) -> None:
    """Cut off or damaged, it is not read, since a broker may be writing it."""
    store = SmallStore(tmp_path)
    for _ in range(9):
        store.append(body=bytes(50))
    start, end = store.log.spans[-1]
    for spoil in (lambda: store.log.put(start + 60, bytes(end - start - 60)),
                  lambda: store.log.put(start + 4, bytes(4))):  # fmt: skip
        spoil()
        store.write()
        done = call("sql", tmp_path, "select count(*) as n from messages")
        assert json.loads(done.stdout) == {"n": 8}
        assert f"read up to physical offset {start}, where no whole record" in done.stderr


@pytest.mark.parametrize("kind", ["short", "unreadable", "zero"])
def test_a_file_that_is_there_but_no_log(tmp_path: Path, call: Call, kind: str) -> None:
    """A short or unreadable file is an error that names it; the bytes of a file of zeros, and what
    was overwritten with them, are damaged."""
    store = holed(tmp_path / "store", gone=0).root
    victim = store / "commitlog" / file_name(3 * LOG_FILE_SIZE)
    data = victim.read_bytes()
    if kind == "short":
        victim.write_bytes(data[:-1])
    elif kind == "zero":
        victim.write_bytes(bytes(len(data)))
    else:
        victim.unlink()
        victim.mkdir()  # root may read any file
    done = call("sql", store, "select max(corruptReason) as r, count(*) as n from messages")
    if kind == "short":
        assert (done.returncode, str(victim) in done.stderr) == (1, True)
        return
    assert done.returncode == 0
    row = json.loads(done.stdout)
    assert row["r"] == {"zero": "zero_hole", "unreadable": "segment_deleted"}[kind]
    assert f"[{3 * LOG_FILE_SIZE}, {4 * LOG_FILE_SIZE})" in done.stderr
