"""The writer of a log: a broker's bytes, and a sound log after every end of a process."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.errors import NoSpaceError, OutputError, StoreError, SyncError, UsageError
from reput.store.log.appender import LogAppender
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record, decode_host
from reput.store.log.sysflag import SysFlag
from tests.support import power_cuts
from tests.support.faults import Faults
from tests.support.operations import before_operations
from tests.support.power_cuts import Disk, Image, Power, mount
from tests.support.recorder import Recorder
from tests.support.wire import PlainLog, random_fields, read_log, write_over

FILE_SIZE = 2048
ACKNOWLEDGED = "acknowledged"
"""Kind of a note: the number of records that are durable."""


def as_record(fields: dict[str, object]) -> Record:
    """The record of the fields of ``wire.message``."""
    hosts = {name: decode_host(fields[name]) for name in ("born_host", "store_host")}  # type: ignore[arg-type]
    return Record(**{**fields, **hosts, "born_timestamp": 1_700_000_000_000})  # type: ignore[arg-type]


def random_record(rng: random.Random, size: int = 60) -> Record:
    """A record without a NUL in its text, so that each of its bytes is known."""
    return Record(
        topic=rng.choice((b"A", b"%RETRY%group", b"SCHEDULE_TOPIC_XXXX")),
        queue_id=rng.randrange(2),
        body=rng.randbytes(rng.randrange(1, size)),
        properties=b"KEYS\x01k%d\x02TAGS\x01%s\x02" % (rng.randrange(99), b"t" * rng.randrange(90)),
        sys_flag=rng.choice((0, 0, 0, SysFlag.PREPARED, SysFlag.COMMIT)),
        store_timestamp=rng.randrange(1, 1 << 41),
    )


def contents(root: Path) -> bytes:
    """All files of the log, one after the other."""
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


def test_a_log_equals_the_plain_one(tmp_path: Path, seed: int) -> None:
    """Byte for byte, of records of every kind, with their own hosts, times, flags and properties;
    what is returned is what a reader finds."""
    rng, plain = random.Random(seed), PlainLog(FILE_SIZE)
    next_offsets: dict[object, int] = {}
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        for _ in range(200):
            fields = random_fields(rng) | {
                "flag": rng.randrange(-9, 9), "reconsume_times": rng.randrange(9),
                "prepared_transaction_offset": rng.randrange(-99, 1 << 40),
            }  # fmt: skip
            fields["store_timestamp"] = fields["store_timestamp"] or 1
            key = (fields["topic"], fields["queue_id"])
            is_queued = int(str(fields["sys_flag"])) & SysFlag.ROLLBACK in (0, SysFlag.COMMIT)
            fields["queue_offset"] = next_offsets.get(key, 0) if is_queued else 0
            next_offsets[key] = next_offsets.get(key, 0) + is_queued
            stored = appender.append(as_record(fields))
            assert plain.append(**fields) == stored.physical_offset
            assert stored.queue_offset == fields["queue_offset"]
            assert plain.spans[-1][1] - plain.spans[-1][0] == stored.total_size
    found = contents(tmp_path)
    assert found[: len(plain.image)] == plain.image
    assert found[len(plain.image) :] == bytes(FILE_SIZE)
    assert len(plain.image) > 10 * FILE_SIZE


def test_store_time_is_set_where_it_is_none(tmp_path: Path) -> None:
    """All other fields are the record's; ``append_all`` appends in order."""
    given = Record(
        topic=b"T", body=b"b", flag=7, born_timestamp=5, born_host=("10.1.1.1", 9), sys_flag=0x1,
        store_host=("2001:db8::2", 10911), reconsume_times=3, prepared_transaction_offset=-8,
        properties=b"a\x01b",
    )  # fmt: skip
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        first, second = appender.append_all([given, replace(given, store_timestamp=77)])
    log = CommitLog([tmp_path / "commitlog"])
    assert log.record_starting_at(0) == first
    assert log.record_starting_at(first.total_size) == second
    assert first.store_timestamp > 1_600_000_000_000
    assert second.store_timestamp == 77
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    for stored in (first, second):
        assert stored.born_host == given.born_host
        assert stored.store_host == given.store_host
        assert (stored.flag, stored.reconsume_times) == (7, 3)
        assert stored.prepared_transaction_offset == -8


@pytest.mark.parametrize("together", [True, False])
def test_a_record_that_leaves_room_for_the_smallest_blank_ends_its_file(
    tmp_path: Path, together: bool
) -> None:
    """One byte more, and it begins the next one (``CommitLog.DefaultAppendMessageCallback``)."""
    small = Record(topic=b"T", body=b"x", store_timestamp=7)
    for more in (0, 1):
        root = tmp_path / str(more)
        with LogAppender(root, file_size=FILE_SIZE) as appender:
            first = appender.append(small)
            rest = FILE_SIZE - first.total_size - 8
            body = b"x" * (rest - first.total_size + 1 + more)
            large = replace(small, body=body)
            if together:
                second, third = appender.append_all([large, small])
            else:
                second, third = appender.append(large), appender.append(small)
        end = first.total_size
        assert second.physical_offset == (FILE_SIZE if more else end)
        assert second.total_size == rest + more
        assert third.physical_offset == (2 * FILE_SIZE if more else FILE_SIZE)
        size, magic = struct.unpack_from(">Ii", contents(root), end + (0 if more else rest))
        assert (size, magic) == (FILE_SIZE - end - (0 if more else rest), -875286124)


def test_a_stated_file_size_is_followed(tmp_path: Path) -> None:
    """A new log has files as the property file states, which every reader expects; without one it
    is written."""
    (tmp_path / "broker.conf").write_text("mappedFileSizeCommitLog=4096\n")
    for root, size in ((tmp_path, 4096), (tmp_path / "other", FILE_SIZE)):
        with LogAppender(root, file_size=FILE_SIZE) as appender:
            appender.append(Record(topic=b"T"))
        assert len(contents(root)) == 2 * size
        assert (root / "broker.conf").read_text() == f"mappedFileSizeCommitLog={size}\n"


def test_a_property_file_that_states_no_size_stays(tmp_path: Path) -> None:
    """It has other settings of the broker, which nobody else knows. A store whose log is on several
    disks has no place for an appender's, though the first of them is the usual one."""
    (tmp_path / "broker.conf").write_text("brokerName=b\n")
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        appender.append(Record(topic=b"T"))
    assert (tmp_path / "broker.conf").read_text() == "brokerName=b\n"
    before, other = contents(tmp_path), tmp_path / "other"
    other.mkdir()
    text = f"storePathCommitLog={tmp_path / 'commitlog'},{other}\n"
    (tmp_path / "broker.conf").write_text(text)
    with pytest.raises(UsageError, match=f", {other}, and an appender writes only to"):
        LogAppender(tmp_path).__enter__()
    assert contents(tmp_path) == before


def test_a_record_that_does_not_fit_takes_nothing(tmp_path: Path) -> None:
    """Neither its queue offset nor those appended together with it; the appender stays usable."""
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        good = Record(topic=b"T", body=b"x")
        for bad, line in (
            (Record(topic=b"T", body=bytes(FILE_SIZE)), "does not fit into a commitlog file"),
            (Record(topic=b"T", properties=b"x" * 40000), "exceed their length field"),
            (Record(topic=b"T", queue_id=1 << 40), "cannot be stored"),
            (Record(topic=b"T", born_host=("nowhere", 1)), "cannot be stored"),
        ):
            with pytest.raises(StoreError, match=line):
                appender.append_all([good, bad])
        assert appender.end_offset == 0
        assert appender.append(good).queue_offset == 0


@pytest.mark.parametrize("rest", ["zeros", "old bytes"])
def test_every_cut_of_the_tail_is_recovered(tmp_path: Path, seed: int, rest: str) -> None:
    """Whole records stay and nothing else: a later record is followed by zeros, also where the
    newest file had other bytes."""
    rng, plain = random.Random(seed), PlainLog(FILE_SIZE)
    for _ in range(30):
        record = random_record(rng)
        plain.append(topic=record.topic, body=record.body, properties=record.properties)
    starts = [start for start, _ in plain.spans if start % FILE_SIZE == 0]
    first = starts[-1] - 300
    for cut in range(first, plain.end + 1, 1 if seed == 0 else 7):
        image = bytearray(plain.image)
        end = max([end for _, end in plain.spans if end <= cut], default=0)
        if end + 8 <= cut and starts[-1] - end < 300 and plain.image[end + 4 : end + 5] == b"\xcb":
            end = starts[-1]  # its file's BLANK is whole
        image[cut:] = bytes(len(image) - cut)
        if rest == "old bytes":
            after = min((end for _, end in plain.spans if end > cut), default=cut)
            image[after : after + 200] = rng.randbytes(len(image[after : after + 200]))
        for at in range(0, len(image), FILE_SIZE):
            path = tmp_path / "commitlog" / f"{at:020d}"
            path.parent.mkdir(exist_ok=True)
            write_over(path, image[at : at + FILE_SIZE])
        with LogAppender(tmp_path) as appender:
            assert appender.end_offset in (end, min(plain.end, -(-end // FILE_SIZE) * FILE_SIZE))
            later = appender.append(Record(topic=b"later"))
        begin = later.physical_offset
        found = contents(tmp_path)
        assert found[:end] == plain.image[:end]
        assert not any(found[begin + later.total_size :])
        assert begin in (end, -(-end // FILE_SIZE) * FILE_SIZE)


def test_zeros_in_a_text_are_told_from_a_lost_page(tmp_path: Path) -> None:
    """Text that a lost page might have left is stored with RocketMQ's property CRC, by which it is
    known after a restart; a record whose own text is zero without it has been torn."""
    blocks = (b"a\x01b\x00", b"a\x01" + bytes(64) + b"c\x02", b"a\x01b\x00c\x02")
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        stored = [appender.append(Record(topic=b"T", body=b"b", properties=one)) for one in blocks]
    assert [b"__CRC32#\x01" in one.properties for one in stored] == [True, True, False]
    assert all(one.properties.startswith(two) for one, two in zip(stored, blocks, strict=True))
    with LogAppender(tmp_path) as appender:
        assert appender.end_offset == sum(one.total_size for one in stored)
        end = appender.end_offset
        last = appender.append(Record(topic=b"T", properties=b"name\x01" + b"v" * 90))
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[end + last.total_size - 64 : end + last.total_size] = bytes(64)
    path.write_bytes(data)
    with LogAppender(tmp_path) as appender:
        assert appender.end_offset == end


@pytest.mark.parametrize("damaged", range(5))
def test_damage_in_the_last_files_ends_the_log(tmp_path: Path, damaged: int) -> None:
    """In the three that a broker's recovery reads: what follows the damage is no part of the log;
    damage before them is left for its readers."""
    plain = PlainLog(FILE_SIZE)
    while plain.end < 5 * FILE_SIZE - 400:
        plain.append(body=bytes(300))
    start = next(start for start, _ in plain.spans if start > damaged * FILE_SIZE)
    plain.image[start + 200] ^= 1
    plain.write(tmp_path / "commitlog")
    with LogAppender(tmp_path) as appender:
        assert appender.end_offset == (plain.end if damaged < 2 else start)


def recorded(root: Path, rng: random.Random) -> tuple[Recorder, list[Record]]:
    """Appends with acknowledgements, in three openings; the records in the order of the log."""
    stored: list[Record] = []
    with Recorder(root) as recorder:
        for _ in range(3):
            with LogAppender(root / "store", file_size=1024) as appender:
                appender.sync()
                for _ in range(5):
                    group = [random_record(rng) for _ in range(rng.randrange(1, 9))]
                    stored += appender.append_all(group)
                    appender.sync()
                    recorder.note(ACKNOWLEDGED, len(stored))
                # as a kill leaves it
                stored += appender.append_all([random_record(rng) for _ in range(4)])
    recorder.check()
    return recorder, stored


def problem(root: Path, image: Image, stored: list[Record], acknowledged: int) -> str | None:
    """The fault of a log that begins with this image, and goes on; None if it is sound."""
    mount(image.tree, root)
    store = root / "store"
    if not store.exists():
        return "the store is gone" if acknowledged else None
    with LogAppender(store, file_size=1024) as appender:
        later = appender.append_all([Record(topic=b"later", body=b"x" * 300)] * 4)
        offsets = {(one.topic, one.queue_id): one.queue_offset for one in later}
        appender.sync()
    found = read_log(store / "commitlog")
    kept = [at for at, _ in found if at < later[0].physical_offset]
    if kept != [one.physical_offset for one in stored[: len(kept)]] or len(kept) < acknowledged:
        return f"{len(kept)} records are there, {acknowledged} were acknowledged"
    log = CommitLog([store / "commitlog"])
    for one in (*stored[: len(kept)], *later):
        if log.record_starting_at(one.physical_offset) != one:
            return f"the record at {one.physical_offset} is another one"
    end = later[-1].physical_offset + later[-1].total_size
    if any(contents(store)[end:]):
        return "old bytes follow"
    with LogAppender(store) as appender:
        if appender.end_offset != end or offsets[b"later", 0] != 3:
            return "the next opening finds another end"
        for one in stored[: len(kept)]:
            if one.dispatched_to_queue:
                offsets[one.topic, one.queue_id] = one.queue_offset
        for key, offset in offsets.items():
            if appender.next_queue_offset(*key) != offset + 1:
                return f"queue {key} goes on at {appender.next_queue_offset(*key)}"
    return None


@pytest.mark.extended
@pytest.mark.usefixtures("whole_sectors")
def test_a_power_cut_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    """After every operation: with none, all, one, all but one, and random parts of what was not
    durable, pages torn."""
    root, rng = tmp_path / "disk", random.Random(seed)
    root.mkdir()
    recorder, stored = recorded(root, rng)
    disk = Disk(recorder.begin, recorder.directories())
    tried: set[object] = set()
    for count, operation in enumerate(recorder.operations, 1):
        disk.apply(operation)
        notes = [int(str(value)) for at, _, value in recorder.notes if at <= count]
        acknowledged = max(notes, default=0)
        images = [*disk.chosen_images(), *(disk.random_image(rng) for _ in range(3))]
        for image in images:
            key = (image.key(), acknowledged)
            if key not in tried:
                tried.add(key)
                wrong = problem(root, image, stored, acknowledged)
                assert wrong is None, f"after operation {count} ({str(operation)[:80]}): {wrong}"
    assert len(tried) > 100


@pytest.fixture
def whole_sectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write is torn at a byte within a sector, as a queue's units are in other tests: a host has
    no checksum, and recovery may write it for the second time."""
    monkeypatch.setattr(power_cuts, "PARTED_BYTES", power_cuts.PAGE)


class _CutError(Exception):
    """The power fails."""


@pytest.mark.usefixtures("whole_sectors")
def test_power_cuts_in_a_row_lose_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    """At any operation, in a recovery as well, each on the disk that the one before has left;
    kills stand between them, after which nothing is lost yet."""
    rng, root = random.Random(seed), tmp_path / "disk"
    store, log = root / "store", root / "store" / "commitlog"
    acknowledged: list[Record] = []
    with Power(root) as power:
        for _ in range(80):
            left = rng.choice((3, 10, 30))

            def count(_operation: str, _path: str) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise _CutError

            appender = LogAppender(store, file_size=512)
            opened = ExitStack()
            with suppress(_CutError), before_operations(count):
                opened.enter_context(appender)
                appender.sync()
                while True:
                    group = [random_record(rng) for _ in range(rng.randrange(1, 5))]
                    stored = appender.append_all(group)
                    appender.sync()
                    acknowledged += stored
            rng.choice((power.fail, power.kill))(rng, opened.close)
            with LogAppender(store, file_size=512):
                found = {at for at, _ in read_log(log)} if log.exists() else set()
            assert found >= {one.physical_offset for one in acknowledged}
    opened_log = CommitLog([log])
    for one in acknowledged:
        assert opened_log.record_starting_at(one.physical_offset) == one
    assert acknowledged[-1].physical_offset > 20 * 512


CHILD = """
import sys
from pathlib import Path
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record

with LogAppender(Path(sys.argv[1]), file_size=1 << 16) as appender:
    appender.sync()
    while True:
        stored = appender.append_all([Record(topic=b"T", body=b"x" * 200)] * 3)
        appender.sync()
        print(stored[-1].physical_offset, stored[-1].queue_offset, flush=True)
"""


def test_a_killed_appender_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """kill -9 at any moment, and queue offsets go on without a gap."""
    acknowledged = (0, -1)
    for kill_after in (1, 20, 150, 7):
        command = [sys.executable, "-c", CHILD, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(kill_after)]
            os.kill(child.pid, signal.SIGKILL)
            lines += child.stdout.readlines()
        position, queue_offset = map(int, [one for one in lines if one.endswith("\n")][-1].split())
        assert queue_offset > acknowledged[1]
        acknowledged = position, queue_offset
        last = CommitLog([tmp_path / "commitlog"]).record_starting_at(position)
        assert isinstance(last, Record)
        assert last.queue_offset == queue_offset
    offsets = [
        struct.unpack_from(">q", data, 20)[0] for _, data in read_log(tmp_path / "commitlog")
    ]
    assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize(
    ("failing", "kind", "line"),
    [
        ("pwrite:%d=ENOSPC", NoSpaceError, "No space left"),
        ("pwrite:%d=EIO", OutputError, "Input/output error"),
        ("sync:%d=EIO", SyncError, "cannot sync"),
    ],
)
def test_a_failed_write_is_the_last_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    kind: type[OutputError],
    line: str,
) -> None:
    """Neither write nor sync is tried again, the error says why, and the next start goes on from
    what was acknowledged."""
    record = Record(topic=b"T", body=b"x" * 100)
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        acknowledged = appender.append(record)
        appender.sync()
        monkeypatch.setattr(fsops, "_failpoints", fsops._Failpoints(failing % 1))
        with pytest.raises(kind, match=line):
            appender.append(record)
            appender.sync()
        with Faults(tmp_path, 0, "EIO") as calls:
            for again in (lambda: appender.append(record), appender.sync):
                with pytest.raises(StoreError, match=f"nothing more is appended.*{line}") as caught:
                    again()
                assert not caught.value.retriable
        assert calls.made == []
    with LogAppender(tmp_path) as appender:
        stored = appender.append(record)
        appender.sync()
    assert stored.queue_offset in (1, 2)
    log = CommitLog([tmp_path / "commitlog"])
    assert log.record_starting_at(0) == acknowledged
    assert log.record_starting_at(stored.physical_offset) == stored


def test_what_a_failed_sync_left_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the pages for clean: the bytes reach the disk only if they are written once
    more, before anything is acknowledged."""
    root, real, is_failing = tmp_path / "disk", os.fdatasync, False
    root.mkdir()

    def fdatasync(fd: int) -> None:
        if is_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with Recorder(root) as recorder:
        with LogAppender(root / "store", file_size=FILE_SIZE) as appender:
            stored = [appender.append(Record(topic=b"T", body=b"x" * 100))]
            is_failing = True
            with pytest.raises(SyncError):
                appender.sync()
            is_failing = False
        with LogAppender(root / "store") as appender:
            stored.append(appender.append(Record(topic=b"T", body=b"y")))
            appender.sync()
    mount(Disk.after(recorder).image([]).tree, root)
    log = CommitLog([root / "store" / "commitlog"])
    assert [log.record_starting_at(one.physical_offset) for one in stored] == stored


def test_a_file_is_durable_before_the_next_one_has_a_byte(tmp_path: Path) -> None:
    """Two files, and then as many as the log needs: the names are synced as well."""
    with LogAppender(tmp_path, file_size=FILE_SIZE) as appender:
        with Faults(tmp_path, 0, "EIO") as calls:
            appender.append_all([Record(topic=b"T", body=b"x" * 500)] * 9)
        made = [
            (call, path[-4:]) for call, path in calls.made if call in ("pwrite", "fdatasync")
        ]  # fmt: skip
    written: list[str] = []
    for call, path in made:
        if call == "pwrite" and path not in written:
            at = len(made) if not written else made.index(("pwrite", path))
            if written:
                assert ("fdatasync", written[-1]) in made[made.index(("pwrite", written[-1])) : at]
            written.append(path)
    assert len(written) == 3


@pytest.mark.parametrize("property_crc", [False, True])
def test_a_record_that_rocketmq_refuses_does_not_end_the_log(
    tmp_path: Path, *, property_crc: bool
) -> None:
    """It is whole, although a property of it is no number: what follows it stays."""
    bad = Record(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01x\x02")
    with LogAppender(tmp_path, file_size=FILE_SIZE, property_crc=property_crc) as appender:
        first, last = appender.append_all([bad, Record(topic=b"T")])
    assert first.total_size == last.physical_offset
    with LogAppender(tmp_path) as appender:
        assert appender.end_offset == last.physical_offset + last.total_size
