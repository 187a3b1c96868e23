"""Queue offsets that begin again: after retention, and where a topic was deleted and made again."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.errors import CommitLogError, StoreError
from reput.store.state.built import topic_begins
from reput.store.state.ledger import RepeatedQueue
from reput.streaming.config import DispatcherConfig
from reput.streaming.progress import Progress
from reput.streaming.sparkless import running
from reput.upkeep.rebuild import rebuild
from reput.upkeep.watch.status import read_status
from tests.support.configs import configured
from tests.support.derived_output import DerivedOutput
from tests.support.faults import Faults
from tests.support.golden import tree
from tests.support.sparkless import dispatch
from tests.support.wire import PlainLog, file_name

LOG_FILE_SIZE, QUEUE_FILE_SIZE = 1 << 12, 200
CONF = (
    f"mappedFileSizeCommitLog={LOG_FILE_SIZE}\nmappedFileSizeConsumeQueue={QUEUE_FILE_SIZE}\n"
    "maxHashSlotNum=50\nmaxIndexNum=400\n"
)


class Site:
    """A store that is written by hand, an output that follows it, and fresh outputs."""

    def __init__(self, directory: Path, conf: str = "") -> None:
        self.directory = directory
        self.plain = PlainLog(LOG_FILE_SIZE)
        self.output = DerivedOutput(directory / "store", directory / "output")
        self.output.store.mkdir()
        (self.output.store / "broker.conf").write_text(CONF + conf)
        self._fresh = 0
        self.offsets: list[tuple[int, int]] = []
        """(queue offset, physical offset) of each message of Orders."""

    def put(self, topic: str, queue_offsets: range) -> None:
        for queue_offset in queue_offsets:
            at = self.plain.append(
                topic=topic.encode(), queue_id=0, queue_offset=queue_offset, body=b"x" * 40,
                properties=b"KEYS\x01k\x02TAGS\x01t\x02",
                store_timestamp=1_000_000 + self.plain.end,
            )  # fmt: skip
            if topic == "Orders":
                self.offsets.append((queue_offset, at))

    def write(self) -> None:
        """The log as it is, without the files that retention took."""
        directory = self.output.store / "commitlog"
        gone = {file_name(at) for at in range(0, self.first, LOG_FILE_SIZE)}
        self.plain.write(directory)
        for name in gone:
            (directory / name).unlink(missing_ok=True)

    first = 0
    """Where the log begins."""

    def expire(self, physical_offset: int) -> None:
        """Remove all log files before the one that holds an offset."""
        self.first = physical_offset - physical_offset % LOG_FILE_SIZE
        self.write()

    def fresh(self) -> DerivedOutput:
        """Another output, built from the log as it is now."""
        self._fresh += 1
        found = DerivedOutput(self.output.store, self.directory / f"fresh-{self._fresh}")
        found.start()
        return found

    def queue(self, output: DerivedOutput | None = None) -> dict[str, bytes]:
        root = (output or self.output).root
        return {
            kind + name: data
            for kind in ("consumequeue/", "consumequeue_ext/", "batchconsumequeue/")
            for name, data in tree(root / kind).items()
            if name.startswith("Orders")
        }


def units(site: Site) -> list[int]:
    """Physical offset at each place of the queue; 0 for a blank."""
    found = b"".join(
        site.queue()[name] for name in sorted(site.queue()) if name.startswith("consumequeue/")
    )
    return [offset for offset, size, _ in struct.iter_unpack(">qiq", found) if size]


def followed(directory: Path, conf: str = "") -> Site:
    """Orders 0..99 dispatched, then taken by retention with what lies beside them."""
    site = Site(directory, conf)
    site.put("Orders", range(100))
    site.put("Other", range(300))
    site.write()
    site.output.start()
    site.expire(site.plain.end - 1)
    return site


def batch_units(site: Site) -> list[int]:
    """Physical offset at each place of the batch queue."""
    queue = site.queue()
    found = b"".join(queue[name] for name in sorted(queue) if name.startswith("batch"))
    return [offset for offset, size, _ in struct.iter_unpack(">qi34s", found) if size]


def batch_site(directory: Path) -> Site:
    """Orders is a topic of batch queues."""
    site = Site(directory, "mapperFileSizeBatchConsumeQueue=460\n")
    (site.output.store / "config").mkdir()
    attributes = {"topicConfigTable": {"Orders": {"attributes": {"queue.type": "BatchCQ"}}}}
    (site.output.store / "config" / "topics.json").write_text(json.dumps(attributes))
    return site


EXT = "enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=1000\n"


@pytest.mark.parametrize("conf", ["", EXT], ids=["queue", "ext"])
@pytest.mark.parametrize("first", [0, 30])
@pytest.mark.parametrize("batches", [1, 5])
def test_a_queue_of_which_the_log_has_nothing_begins_anew(
    tmp_path: Path, conf: str, first: int, batches: int
) -> None:
    """An output that followed equals its own rebuild from the same log, and a restart and a replay
    change nothing."""
    site = followed(tmp_path, conf)
    start = site.plain.end
    site.put("Orders", range(first, 50))
    site.write()
    cuts = [at for _, at in site.offsets[100 :: -(-(50 - first) // batches)]]
    dispatch(DispatcherConfig(site.output.store, site.output.root, once=True), cuts)
    wanted = site.queue(site.fresh())
    assert len(units(site)) - first * (first > 0) == 50 - first or first
    assert site.queue() == wanted
    assert [at for at in units(site) if at >= start] == [at for _, at in site.offsets[100:]]
    site.output.start(replay_from="earliest")
    assert site.queue() == wanted
    assert site.output.verify().differences == ()
    site.put("Orders", range(50, 60))
    site.write()
    site.output.start()
    assert site.queue() == site.queue(site.fresh())


def test_a_queue_begins_anew_whatever_happens_meanwhile(tmp_path: Path, seed: int) -> None:
    """A write, removal or sync of the run fails; the next run ends as if none had."""
    rng = random.Random(seed)
    site = followed(tmp_path, EXT)
    site.put("Orders", range(20))
    site.write()
    wanted = site.queue(site.fresh())
    before = tmp_path / "before"
    site.output.keep(before)
    with Faults(site.output.root, 0, "EIO") as calls:
        site.output.start()
    removals = [n for n, (name, path) in enumerate(calls.made, 1) if name == "unlink"]
    assert len(removals) > 10
    failures = 0
    for number in {*removals[::4], *rng.sample(range(1, calls.count), 15)}:
        shutil.rmtree(site.output.root)
        shutil.copytree(before, site.output.root)
        with Faults(site.output.root, number, "EIO") as fault, suppress(StoreError):
            site.output.start()
            failures -= 1
        failures += 1
        site.output.start()
        assert site.queue() == wanted, (fault.call, fault.path)
        assert site.output.verify().differences == (), (fault.call, fault.path)
    assert failures > 10


@pytest.mark.parametrize("first", [0, 100], ids=["anew", "on"])
def test_a_batch_queue_of_which_the_log_has_nothing_begins_anew(tmp_path: Path, first: int) -> None:
    """It equals a fresh one; without a step back of its offsets it goes on after the earlier
    units."""
    site = batch_site(tmp_path)
    site.put("Orders", range(100))
    site.put("Other", range(300))
    site.write()
    site.output.start()
    site.expire(site.plain.end - 1)
    site.put("Orders", range(first, first + 30))
    site.write()
    site.output.start()
    assert (site.queue() == site.queue(site.fresh())) is (first == 0)
    assert site.output.verify().differences == ()


def test_no_queue_begins_anew_while_a_disk_is_missing(tmp_path: Path) -> None:
    """The log's first files lie in a second directory, which is empty for a while: nothing is
    removed, and the run says why."""
    second = tmp_path / "second"
    second.mkdir()
    places = f"{tmp_path / 'store' / 'commitlog'},{second}"
    site = Site(tmp_path, f"storePathCommitLog={places}\n")
    site.put("Orders", range(30))
    site.put("Other", range(60))
    site.write()
    site.output.start()
    site.expire(site.plain.end - 1)
    before = site.queue()
    site.put("Orders", range(20))
    site.write()
    with pytest.raises(CommitLogError, match=r"no queue begins anew|is not mounted|has no file"):
        site.output.start()
    assert site.queue() == before


def sparkless(
    config: DispatcherConfig, _stop: threading.Event, _show: object, _jvm: object
) -> Progress:
    dispatch(config)
    return Progress()


def test_offsets_that_begin_again_in_the_log_are_dropped_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that was deleted and made again: RocketMQ appends offset 0 and drops the others. One
    line for each queue says so, with the command that gives the queue to the new messages; what it
    builds stays so for verify, a replay, later messages, and a rebuild."""
    caplog.set_level(logging.WARNING, "reput")
    site = Site(tmp_path)
    site.put("Orders", range(40))
    site.put("Other", range(20))
    site.write()
    site.output.start()
    site.put("Orders", range(30))
    site.write()
    caplog.clear()
    site.output.start()
    begin = site.offsets[40][1]
    (line,) = [line for line in caplog.messages if "begin again" in line]
    assert "topic=Orders queue=0 messages=29 from physical offset" in line
    assert f"reput rebuild --topic Orders --from {begin}" in line
    assert units(site) == [at for _, at in site.offsets[:41]]
    status = read_status(site.output.settings(), site.output.root)
    assert status.repeated == (RepeatedQueue("Orders", 0, 29, site.offsets[41][1], begin),)
    before = tree(site.output.root / "consumequeue" / "Other")

    begins = topic_begins(site.output.root) | {"Orders": begin}
    config = configured(site.output.store, site.output.root, topic_begins=begins)
    rebuild(config, threading.Event(), build=sparkless, topics=["Orders"])
    new = [at for _, at in site.offsets[40:]]
    assert units(site) == new
    assert read_status(site.output.settings(), site.output.root).repeated == ()
    assert site.output.verify().differences == ()
    site.output.start(replay_from="earliest")
    assert units(site) == new
    site.put("Orders", range(30, 45))
    site.write()
    site.output.start()
    new = [at for _, at in site.offsets[40:]]
    assert units(site) == new
    assert site.output.verify().differences == ()
    rebuild(
        DispatcherConfig(site.output.store, site.output.root), threading.Event(), build=sparkless
    )
    assert units(site) == new
    assert tree(site.output.root / "consumequeue" / "Other") == before
    # a begin of 0 takes all of them again
    config = configured(site.output.store, site.output.root, topic_begins={})
    rebuild(config, threading.Event(), build=sparkless, topics=["Orders"])
    assert units(site) == [at for _, at in site.offsets[:41]] + [at for _, at in site.offsets[81:]]


@pytest.mark.parametrize("make", [Site, batch_site])
def test_a_queue_that_begins_anew_within_one_batch_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Site]
) -> None:
    """The log loses the first messages of a batch that is scanned and not written yet: a sync of
    the files that are removed is none of the new ones of the same names."""
    site = make(tmp_path)
    site.put("Orders", range(20))
    site.put("Other", range(150))
    site.put("Orders", range(15))
    site.write()
    synced: set[int] = set()
    sync = fsops.sync

    def noted(fd: int, path: str | Path) -> None:
        sync(fd, path)
        synced.add(os.fstat(fd).st_ino)

    with running(DispatcherConfig(site.output.store, site.output.root, once=True)) as run:
        batch = run.scan(site.plain.end)
        site.expire(site.offsets[20][1])
        monkeypatch.setattr(fsops, "sync", noted)
        run.commit(batch)
    found = units(site) if make is Site else batch_units(site)
    assert found == [at for _, at in site.offsets[20:]]
    files = [path for path in site.output.root.glob("*consumequeue/Orders/0/*") if path.is_file()]
    assert files
    assert [path for path in files if path.stat().st_ino not in synced] == []


def test_a_batch_queue_of_which_the_log_has_one_message_goes_on(tmp_path: Path) -> None:
    """Its last message is the log's first: the next ones stand after it."""
    site = batch_site(tmp_path)
    while not site.offsets or site.offsets[-1][1] % LOG_FILE_SIZE or not site.offsets[-1][1]:
        site.put("Orders", range(len(site.offsets), len(site.offsets) + 1))
    site.write()
    site.output.start()
    site.expire(site.offsets[-1][1])
    site.put("Orders", range(5))
    site.write()
    site.output.start()
    assert batch_units(site) == [at for _, at in site.offsets]
    assert site.output.verify().differences == ()


def test_a_batch_queue_is_given_to_the_new_messages_too(tmp_path: Path) -> None:
    """Messages before the begin of their topic get no units, in a first run and in verify."""
    site = batch_site(tmp_path)
    site.put("Orders", range(10))
    site.put("Orders", range(15))
    site.write()
    begin = site.offsets[10][1]
    site.output.start(topic_begins={"Orders": begin})
    assert batch_units(site) == [at for _, at in site.offsets[10:]]
    assert site.output.verify().differences == ()


def test_a_rebuild_keeps_what_the_ledger_lists_up_to_the_watermark(tmp_path: Path) -> None:
    """The log's last message is one that was dropped."""
    site = Site(tmp_path)
    site.put("Orders", range(40))
    site.put("Orders", range(30))
    site.write()
    site.output.start()
    ledger = site.output.state / "quarantine.jsonl"
    before = ledger.read_bytes()
    assert before.count(b"\n") == 29
    config = DispatcherConfig(site.output.store, site.output.root)
    rebuild(config, threading.Event(), build=sparkless, topics=["Orders"])
    assert ledger.read_bytes() == before
