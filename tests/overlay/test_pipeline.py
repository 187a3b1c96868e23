"""The overlay's queues and index are those of a dispatcher, and end where the log is durable."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership, check_is_free
from reput.overlay.groupcommit import GroupCommit
from reput.overlay.pipeline import Pipeline, write_settings
from reput.store import fsops
from reput.store.brokerlock import broker_pid
from reput.store.config import StoreSettings, read_store_settings
from reput.store.errors import OwnershipError, StoreError, SyncError, UsageError
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag
from reput.store.runs.dispatch import Run
from reput.store.state.built import settings_of
from reput.store.state.watermark import read_watermark
from reput.streaming.config import DispatcherConfig
from reput.upkeep.verify.run import verify
from tests.support.crash_images import outcome
from tests.support.operations import before_operations
from tests.support.processes import became, is_killed_at, wait_status_of
from tests.support.sparkless import dispatch

FILE_SIZE = 1 << 14
INDEX_SIZES = (100, 400)
CONF = "maxHashSlotNum=100\nmaxIndexNum=400\nmappedFileSizeConsumeQueue=2000\n"
WAIT_SECONDS = 60.0


@dataclass
class Overlay:
    """An open overlay."""

    appender: LogAppender
    commits: GroupCommit
    pipeline: Pipeline
    told: list[Sequence[Run] | None]

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Append; wait until they are in their queues."""
        stored = self.commits.submit(records).result(WAIT_SECONDS)
        assert self.pipeline.wait_for(stored[-1].physical_offset + 1, WAIT_SECONDS)
        return stored


@contextmanager
def overlay(root: Path) -> Iterator[Overlay]:
    told: list[Sequence[Run] | None] = []
    pipeline = Pipeline(root, lambda _, runs: told.append(runs))
    with ExitStack() as opened:
        appender = opened.enter_context(LogAppender(root, file_size=FILE_SIZE))
        opened.enter_context(pipeline)
        commits = GroupCommit(appender, lambda end, _: pipeline.advance(end))
        opened.enter_context(commits)
        pipeline.advance(commits.durable_end)
        yield Overlay(appender, commits, pipeline, told)


def made(root: Path, levels: str = "2s 7s 1m") -> Path:
    """The root of an overlay whose base has these delay levels."""
    base = root.with_name(f"base-of-{root.name}")
    (base / "commitlog").mkdir(parents=True)
    (base / "broker.conf").write_text(f"messageDelayLevel={levels}\n")
    root.mkdir(exist_ok=True)
    if not (root / "broker.conf").exists():
        (root / "broker.conf").write_text(CONF)
    write_settings(root, read_store_settings(base), FILE_SIZE)
    shutil.rmtree(base)
    return root


def random_record(rng: random.Random) -> Record:
    kind = rng.randrange(4)
    if kind == 0:
        level = rng.randrange(1, 4)
        return Record(
            topic=b"SCHEDULE_TOPIC_XXXX", queue_id=level - 1, body=rng.randbytes(20),
            properties=b"DELAY\x01%d\x02KEYS\x01k%d\x02" % (level, rng.randrange(50)),
            store_timestamp=1_700_000_000_000,
        )  # fmt: skip
    return Record(
        topic=rng.choice((b"%RETRY%g", b"%DLQ%g", b"Orders")), queue_id=rng.randrange(2),
        body=rng.randbytes(rng.randrange(200)), flag=rng.randrange(5),
        properties=b"TAGS\x01t%d\x02KEYS\x01a b%d\x02" % (rng.randrange(9), rng.randrange(50)),
        sys_flag=rng.choice((0, 0, 0, SysFlag.PREPARED, SysFlag.ROLLBACK)),
        prepared_transaction_offset=rng.randrange(-99, 99), store_timestamp=1_700_000_000_000,
    )  # fmt: skip


def settings(root: Path) -> StoreSettings:
    return settings_of(root, read_store_settings(root))


def test_queues_and_index_are_a_dispatchers(tmp_path: Path, seed: int) -> None:
    """Built in many batches and two runs, they equal those of one batch of the same log, and verify
    finds no difference."""
    rng, root, other = random.Random(seed), made(tmp_path / "overlay"), tmp_path / "other"
    for _ in range(2):
        with overlay(root) as opened:
            for _ in range(6):
                opened.add([random_record(rng) for _ in range(rng.randrange(1, 40))])
            for _ in range(5):
                opened.commits.submit([random_record(rng) for _ in range(9)])
        assert opened.pipeline.position == opened.appender.end_offset
    for name in ("commitlog", "broker.conf"):
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        other.mkdir(exist_ok=True)
        copy(root / name, other / name)
    dispatch(DispatcherConfig(other, other))
    found, wanted = (dict(outcome(place, INDEX_SIZES)) for place in (root, other))
    assert found == wanted
    assert len(found["consumequeue"]) >= 9  # type: ignore[arg-type]
    assert found["index"]
    assert verify(settings(root), root).differences == ()


def test_a_waiting_record_is_due_by_the_bases_levels(tmp_path: Path) -> None:
    """The unit's tags code is the store time and the level's delay; a changed level counts from the
    next start on, and other lines of the property file stay."""
    root, waiting = tmp_path / "overlay", Record(
        topic=b"SCHEDULE_TOPIC_XXXX", queue_id=1, properties=b"DELAY\x012\x02"
    )  # fmt: skip
    due = []
    for levels in ("2s 7s 1m", "1s 3h"):
        with overlay(made(root, levels)) as opened:
            due.append(opened.add([waiting])[0].store_timestamp)
    path = root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "1" / f"{0:020d}"
    units = [struct.unpack_from(">qiq", path.read_bytes(), at)[2] for at in (0, 20)]
    assert units == [due[0] + 7000, due[1] + 3 * 3600 * 1000]
    assert (root / "broker.conf").read_text().startswith(CONF)
    before = (root / "broker.conf").stat().st_mtime_ns
    write_settings(root, read_store_settings(root), 1 << 20)
    assert (root / "broker.conf").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "line",
    [
        b"mappedFileSizeCommitLog = 4096", b"mappedFileSizeCommitLog:4096",
        b"\tmappedFileSizeCommitLog 4096", b"mappedFileSize\\\nCommitLog=4096",
    ],
)  # fmt: skip
def test_a_file_size_that_is_stated_holds(tmp_path: Path, line: bytes) -> None:
    """In any form that Java takes; lines stay, in whatever charset they are written, and the levels
    are stated once."""
    root = tmp_path / "overlay"
    root.mkdir()
    given = line + b"\n# \xfc \xc3\x85\nmessageDelayLevels=3s\nbrokerName=\\u00\\\n41\n"
    (root / "broker.conf").write_bytes(given + b"\tmessageDelayLevel : 1s \\\n 2s\n")
    made(root)
    assert (root / "broker.conf").read_bytes() == given + b"messageDelayLevel=2s 7s 60s\n"


def test_a_property_file_that_cannot_be_read_is_not_changed(tmp_path: Path) -> None:
    """A broker would not start with it; once it is put right, its statements hold."""
    root, wrong = tmp_path / "overlay", b"mappedFileSizeCommitLog=4096\nbrokerName=\\u12\n"
    root.mkdir()
    (root / "broker.conf").write_bytes(wrong)
    with pytest.raises(UsageError, match=r"broker.conf: \\u12 is no"):
        made(root)
    assert (root / "broker.conf").read_bytes() == wrong


def test_starts_leave_no_checkpoints_of_spark_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No query has begun from them: each start says anew where one would begin."""
    root = made(tmp_path / "overlay")
    for _ in range(3):
        with LogAppender(root, file_size=FILE_SIZE), Pipeline(root):
            pass
    assert [path.name for path in (root / "reput").glob("spark*")] == ["spark"]
    assert "moved aside" not in caplog.text


def test_the_store_is_ours_for_both_parts(tmp_path: Path) -> None:
    """Other processes are refused with the dispatcher's name, until the last part has ended; the
    pipeline is not refused by the appender, and its end does not free the store."""

    def is_refused() -> None:
        with pytest.raises(OwnershipError, match="written by another dispatcher"):
            check_is_free(root)
        with pytest.raises(OwnershipError):
            Ownership(root).__enter__()

    def is_held() -> None:
        assert broker_pid(root) is not None

    root = made(tmp_path / "overlay")
    with LogAppender(root, file_size=FILE_SIZE) as appender:
        appender.append(Record(topic=b"T"))
        with Pipeline(root):
            check_is_free(root)
            assert wait_status_of(is_refused) == 0
        assert wait_status_of(is_held) == 0
    check_is_free(root)
    assert wait_status_of(lambda: check_is_free(root)) == 0


def test_nothing_is_visible_before_it_is_durable(tmp_path: Path) -> None:
    """While a sync of the log lasts, the queues stay as they are, although the log has more."""
    is_reached, may_go = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "sync" and "/commitlog/" in path:
            is_reached.set()
            assert may_go.wait(WAIT_SECONDS)

    root = made(tmp_path / "overlay")
    with overlay(root) as opened:
        first = opened.add([Record(topic=b"T")])[0]
        assert opened.told[0] is None
        assert [run.topic for run in opened.told[-1] or ()] == [b"T"]
        with before_operations(hold):
            future = opened.commits.submit(Record(topic=b"T"))
            assert is_reached.wait(WAIT_SECONDS)
            assert opened.appender.end_offset == first.total_size * 2
            # a batch that is dispatched meanwhile has no more than was durable
            opened.pipeline.advance(opened.commits.durable_end)
            assert not opened.pipeline.wait_for(first.total_size + 1, 0.2)
            mark = read_watermark(root / "reput")
            assert mark is not None
            assert mark.end_offset == first.total_size
            may_go.set()
            future.result(WAIT_SECONDS)
            assert opened.pipeline.wait_for(first.total_size * 2, WAIT_SECONDS)


def test_what_is_durable_at_the_end_is_in_its_queue(tmp_path: Path) -> None:
    """The end comes while a batch is written, and the log has more."""
    root, found = made(tmp_path / "overlay"), list[Overlay]()

    def hold(operation: str, path: str) -> None:
        if operation == "pwrite" and "/consumequeue/" in path:
            assert became(lambda: found[0].pipeline._is_closed, WAIT_SECONDS)

    with before_operations(hold), overlay(root) as opened:
        found.append(opened)
        for _ in range(3):
            (stored,) = opened.commits.submit([Record(topic=b"T")]).result(WAIT_SECONDS)
        assert not opened.pipeline.wait_for(1, 0)
    watermark = read_watermark(root / "reput")
    assert watermark is not None
    assert watermark.end_offset == stored.physical_offset + stored.total_size
    assert not (root / "reput" / "abort").exists()


def test_a_start_that_is_refused_says_so(tmp_path: Path) -> None:
    """As every start of the dispatcher: queues that it has not built are not gone on with."""
    root = made(tmp_path / "overlay")
    with LogAppender(root, file_size=FILE_SIZE) as appender:
        appender.append(Record(topic=b"T"))
        appender.sync()
        queue = root / "consumequeue" / "T" / "0"
        queue.mkdir(parents=True)
        (queue / f"{0:020d}").write_bytes(bytes(2000))
        with pytest.raises(UsageError, match="adopt"), Pipeline(root):
            pass


def test_a_failed_sync_ends_it_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """Appends go on meanwhile: they are durable, and are dispatched then. Whoever waits for a
    position, however long, is told."""
    root, were_reached = made(tmp_path / "overlay"), list[bool]()
    with overlay(root) as opened:
        opened.add([Record(topic=b"T")])

        def fail(operation: str, path: str) -> None:
            if operation == "sync" and "/consumequeue/" in path:
                raise OSError(5, "Input/output error", path)

        with before_operations(fail):
            stored = opened.commits.submit([Record(topic=b"T")]).result(WAIT_SECONDS)
            end = stored[0].physical_offset + stored[0].total_size
            waiting = threading.Thread(
                target=lambda: were_reached.append(opened.pipeline.wait_for(end)), daemon=True
            )
            waiting.start()
            waiting.join(WAIT_SECONDS)
        assert were_reached == [False]
        assert isinstance(opened.pipeline.failure, SyncError)
        assert opened.commits.submit(Record(topic=b"T")).result(WAIT_SECONDS)
    with overlay(root) as opened:
        assert opened.pipeline.wait_for(opened.commits.durable_end, WAIT_SECONDS)
    assert verify(settings(root), root).differences == ()


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues go on when there is room."""
    root = made(tmp_path / "overlay")
    with overlay(root) as opened:
        opened.add([Record(topic=b"T")])
        failing = fsops._Failpoints("open:1=ENOSPC")
        monkeypatch.setattr(fsops, "_failpoints", failing)
        opened.add([Record(topic=b"New")])
        assert failing._counts["open"] > 1
        assert opened.pipeline.failure is None
    assert verify(settings(root), root).differences == ()


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """An overlay with several index files."""
    root = made(tmp_path / "overlay")
    with overlay(root) as opened:
        opened.add([keyed(number) for number in range(600)])
    assert len(index_files(root)) > 1
    return root


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def add_keyed(root: Path) -> None:
    with overlay(root) as opened:
        opened.add([keyed(600)])


def check_index(root: Path) -> None:
    verified = verify(settings_of(root, read_store_settings(root)), root)
    assert (verified.differences, verified.damage) == ((), ())
    assert verified.index_entries == verified.units


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_index_of_which_files_are_gone(
    indexed: Path, caplog: pytest.LogCaptureFixture, *, is_begun: bool
) -> None:
    """A broker has removed the newest file, or has begun another one for the log's end: the whole
    index is built again. Queues that are gone are for an operator."""
    *others, newest = index_files(indexed)
    if is_begun:
        # it has the log's end alone
        newest.rename(newest.with_name("20990101000000000"))
        for path in others:
            path.unlink()
    else:
        newest.unlink()
    for _ in range(2):
        add_keyed(indexed)
        assert caplog.text.count("building it again") == 1
        check_index(indexed)
    index_files(indexed)[-1].unlink()
    shutil.rmtree(indexed / "consumequeue" / "T")
    with pytest.raises(StoreError, match="lack entries"), overlay(indexed):
        pass


def test_kills_while_an_index_is_built_again(indexed: Path) -> None:
    """The next start goes on with it."""
    index_files(indexed)[-1].unlink()
    kills = 0
    for ordinal in range(3, 60, 8):
        kills += is_killed_at(ordinal, lambda: add_keyed(indexed))
    assert kills > 2
    add_keyed(indexed)
    check_index(indexed)


def keyed(number: int) -> Record:
    """A message with a key."""
    topic = b"T" if number % 2 else b"Other"
    return Record(topic=topic, body=b"body", properties=b"KEYS\x01k%d\x02" % number)


def test_it_needs_no_spark(tmp_path: Path) -> None:
    """Neither pyspark nor Java, whose start would take seconds."""
    program = (
        "import sys; from pathlib import Path\n"
        "from reput.overlay.pipeline import Pipeline\n"
        "from reput.store.log.appender import LogAppender\n"
        "root = Path(sys.argv[1])\n"
        "with LogAppender(root, file_size=4096), Pipeline(root): pass\n"
        "print([name for name in ('pyspark', 'py4j') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
