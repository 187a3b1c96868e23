"""The files by which a broker goes on in an overlay."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from reput.overlay.base.debts import read_timer_checkpoint
from reput.overlay.brokerfiles import BrokerFiles
from reput.overlay.delivery.waiting import NextOffsets
from reput.overlay.overlay import Overlay
from reput.overlay.records.release import RELEASE_5_3_3, Writer
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.errors import NoSpaceError, StoreError
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from tests.overlay.test_snapshot import dead_letter
from tests.readers.stores import SmallStore
from tests.support.processes import became

SECONDS = 30.0


class Files:
    """The files of an overlay, and what they are made of."""

    def __init__(self, directory: Path) -> None:
        self.root, self.base = directory / "overlay", directory / "base"
        for root in (self.root, self.base):
            (root / "config").mkdir(parents=True)
        self.offsets: dict[int, int] = {}
        self.timers: int | None = None
        self.is_complete = True
        self.counters: dict[str, int] = {}
        """The version of each file, as read last."""

    def open(self) -> BrokerFiles:
        return BrokerFiles(
            self.root,
            self.base,
            lambda: NextOffsets(dict(self.offsets), self.timers),
            lambda: self.is_complete,
        )

    def read(self, name: str, table: str) -> dict[str, Any]:
        document = json.loads((self.root / "config" / f"{name}.json").read_bytes())
        assert document["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
        self.counters[name] = document["dataVersion"]["counter"]
        found: dict[str, Any] = document[table]
        return found

    def write(self, root: Path, name: str, **tables: Any) -> None:
        (root / "config" / f"{name}.json").write_text(json.dumps(tables))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_topics_have_their_queues(files: Files) -> None:
    """Clients send to retry topics and to those of dead letters, and only read others; RocketMQ
    makes its own topics by itself."""
    groups = {"many": {"retryQueueNums": 3}, "bad": {"retryQueueNums": "x"}}
    files.write(files.base, "subscriptionGroup", subscriptionGroupTable=groups)
    opened = files.open()
    for topic, queue_id in (
        (b"%RETRY%g", 0), (b"%RETRY%g", 2), (b"%RETRY%g", 1), (b"%RETRY%many", 0),
        (b"%RETRY%bad", 0), (b"%DLQ%g", 0), (b"SCHEDULE_TOPIC_XXXX", 4),
        (b"rmq_sys_wheel_timer", 0),
    ):  # fmt: skip
        opened.note(Record(topic=topic, queue_id=queue_id))
    with opened:
        opened.note_queue(b"Owed", 0)
    topics = files.read("topics", "topicConfigTable")
    found = {
        name: (one["readQueueNums"], one["writeQueueNums"], one["perm"])
        for name, one in topics.items()
    }
    assert found == {
        "%RETRY%g": (3, 3, 6), "%RETRY%many": (3, 3, 6), "%RETRY%bad": (1, 1, 6),
        "%DLQ%g": (1, 1, 6), "Owed": (1, 1, 4),
    }  # fmt: skip
    assert {one["topicName"] for one in topics.values()} == topics.keys()


def test_a_broker_delivers_to_the_queue_that_a_record_names(files: Files) -> None:
    """So that queue is a topic's before anything is in it, unless nobody can mean it."""
    opened = files.open()
    for topic, real, queue_id in (
        (b"SCHEDULE_TOPIC_XXXX", b"Late", b"3"), (b"rmq_sys_wheel_timer", b"Timed", b"1"),
        (b"SCHEDULE_TOPIC_XXXX", b"Late", b"-1"), (b"SCHEDULE_TOPIC_XXXX", b"Late", b"x"),
        (b"SCHEDULE_TOPIC_XXXX", b"Late", b"2000000000"), (b"Plain", b"Other", b"5"),
    ):  # fmt: skip
        values = {b"REAL_TOPIC": real, b"REAL_QID": queue_id}
        opened.note(Record(topic=topic, property_map=values))
    with opened:
        pass
    topics = files.read("topics", "topicConfigTable")
    counts = {name: one["readQueueNums"] for name, one in topics.items()}
    assert counts == {"Late": 4, "Timed": 2, "Plain": 1}


def test_what_others_have_written_stays(files: Files) -> None:
    """A broker's topics and groups, and what an administrator has changed; the base's settings of
    groups hold here too."""
    mine = {"perm": 4, "readQueueNums": 8, "writeQueueNums": 1, "order": True}
    files.write(files.root, "topics", topicConfigTable={"Theirs": {"perm": 2}, "%RETRY%g": mine})
    groups = {"theirs": {"retryMaxTimes": 1}, "both": {"retryMaxTimes": 1}}
    files.write(files.root, "subscriptionGroup", subscriptionGroupTable=groups)
    files.write(
        files.base, "subscriptionGroup", subscriptionGroupTable={"both": {"retryMaxTimes": 2}},
        forbiddenTable={"both": {"T": 4}},
    )  # fmt: skip
    opened = files.open()
    opened.note_queue(b"%RETRY%g", 1)
    with opened:
        pass
    topics = files.read("topics", "topicConfigTable")
    assert topics["Theirs"] == {"perm": 2}
    assert {name: topics["%RETRY%g"][name] for name in mine} == {**mine, "writeQueueNums": 2}
    assert files.read("subscriptionGroup", "subscriptionGroupTable") == {
        "theirs": {"retryMaxTimes": 1}, "both": {"retryMaxTimes": 2},
    }  # fmt: skip
    assert files.read("subscriptionGroup", "forbiddenTable") == {"both": {"T": 4}}


def test_a_topic_has_no_more_queues_after_a_snapshot(files: Files) -> None:
    """It is declared with those that were noted before."""
    before, after = files.open(), files.open()
    for topic, queue_id in ((b"%RETRY%g", 2), ("订单".encode(), 0)):
        before.note_queue(topic, queue_id)
    after.restore(json.loads(json.dumps(before.frozen()())))
    with after:
        pass
    topics = files.read("topics", "topicConfigTable")
    assert {name: topics[name]["readQueueNums"] for name in ("%RETRY%g", "订单")} == {
        "%RETRY%g": 3, "订单": 1,
    }  # fmt: skip


def test_they_follow_while_the_overlay_is_open(files: Files) -> None:
    """A broker that starts after a kill repeats the deliveries of a second at most."""
    (files.root / "config" / "delayOffset.json").write_text("damaged")
    with files.open() as opened:
        assert (files.root / "abort").read_text() == str(os.getpid())
        assert files.read("delayOffset", "offsetTable") == {}
        files.offsets[3] = 7
        before = files.counters["delayOffset"]
        assert became(lambda: files.read("delayOffset", "offsetTable") == {"3": 7}, SECONDS)
        # by a version that is as it was a broker's peers see no change
        assert files.counters["delayOffset"] > before
        opened.note_queue(b"%DLQ%g", 0)
        assert became(lambda: "%DLQ%g" in files.read("topics", "topicConfigTable"), SECONDS)
        kept = [path.stat() for path in sorted((files.root / "config").iterdir())]
        files.offsets[4] = 1
    assert files.read("delayOffset", "offsetTable") == {"3": 7, "4": 1}
    after = [path.stat() for path in sorted((files.root / "config").iterdir())]
    assert len(after) == len(kept)
    # what is as it was is not written again
    assert after[-1].st_ino == kept[-1].st_ino
    assert not (files.root / "abort").exists()


def test_abort_stays_where_something_is_missing(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that lacks a message, an error of the overlay, or a file that cannot be written."""
    files.is_complete = False
    with files.open():
        pass
    assert (files.root / "abort").exists()
    files.is_complete = True
    with pytest.raises(ZeroDivisionError), files.open():
        raise ZeroDivisionError
    assert (files.root / "abort").exists()

    def refuse(*_: object) -> None:
        raise NoSpaceError("no room")

    with files.open(), caplog.at_level(logging.ERROR, "reput"):
        files.offsets[1] = 1
        monkeypatch.setattr(fsops, "replace_file", refuse)
        assert became(lambda: "no room" in caplog.text, SECONDS)
    assert (files.root / "abort").exists()
    assert caplog.text.count("no room") == 1


def test_abort_goes_where_a_later_write_has_succeeded(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk was full for a while, twice: each time a line says so."""
    replace_file = fsops.replace_file

    def refuse(*_: object) -> None:
        raise NoSpaceError("no room")

    with files.open(), caplog.at_level(logging.ERROR, "reput"):
        for count in (1, 2):
            monkeypatch.setattr(fsops, "replace_file", refuse)
            files.offsets[1] = count
            assert became(lambda: caplog.text.count("no room") == count, SECONDS)  # noqa: B023
            monkeypatch.setattr(fsops, "replace_file", replace_file)
            expected = {"1": count}
            assert became(lambda: files.read("delayOffset", "offsetTable") == expected, SECONDS)  # noqa: B023
    assert not (files.root / "abort").exists()


def test_they_follow_again_once_the_base_s_settings_can_be_read(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder was in the way for a while."""
    config, aside = files.base / "config", files.base / "aside"
    with files.open(), caplog.at_level(logging.ERROR, "reput"):
        config.rename(aside)
        config.touch()
        files.offsets[1] = 1
        assert became(lambda: "Not a directory" in caplog.text, SECONDS)
        config.unlink()
        aside.rename(config)
        assert became(lambda: files.read("delayOffset", "offsetTable") == {"1": 1}, SECONDS)
    assert not (files.root / "abort").exists()


def test_timer_messages_go_on_with_the_first_that_waits(files: Files) -> None:
    """The wheel of a broker that was there before has others."""
    checkpoint = files.root / "config" / "timercheck"
    with files.open():
        pass
    assert not checkpoint.exists()
    (files.root / "timerlog").mkdir()
    for name in ("timerlog/00000000000000000000", "timerwheel"):
        (files.root / name).write_bytes(b"theirs")
    files.timers = 0
    with files.open():
        assert checkpoint.stat().st_size == 4096
        files.timers = 5
    noted = read_timer_checkpoint(files.root)
    assert noted is not None
    assert noted.enqueued == 5
    assert abs(noted.next_time - time.time() * 1000) < SECONDS * 1000
    assert not (files.root / "timerwheel").exists()
    assert not (files.root / "timerlog").exists()


def test_damaged_topics_are_not_overwritten(files: Files) -> None:
    """A person restores them, or gives them up."""
    (files.root / "config" / "topics.json").write_text('{"topicConfigTable":')
    with pytest.raises(StoreError, match=r"topics\.json"), files.open():
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_abort_stays_where_the_log_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """All that is durable is in its queue; a broker must look for what a failed write has left."""
    small = SmallStore(tmp_path / "store")
    small.append()
    base = read_store_settings(small.write())

    def failing(_appender: LogAppender) -> None:
        raise OSError(5, "a bad disk")

    with Overlay(base, base.root, Writer(RELEASE_5_3_3, ("10.0.0.9", 10912))) as overlay:
        (stored,) = dead_letter(overlay).result(SECONDS)
        # the next one is another message
        overlay.answered(stored)
        if fails:
            monkeypatch.setattr(LogAppender, "sync", failing)
            with pytest.raises(OSError, match="a bad disk"):
                dead_letter(overlay).result(SECONDS)
    assert (overlay.root / "abort").exists() is fails
