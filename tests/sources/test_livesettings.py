"""A batch is dispatched by the settings that a broker wrote last."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from reput.sources.livesettings import LiveSettings
from reput.store.config import read_store_settings
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS

BATCH = {"attributes": {"queue.type": "BatchCQ"}}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("commitlog", "config"):
        (tmp_path / name).mkdir()
    return tmp_path


def declare(store: Path, **topics: object) -> None:
    """As a broker does it: the old text to ``.bak``, then the new one in place."""
    path = store / "config" / "topics.json"
    if path.exists():
        path.with_name("topics.json.bak").write_text(path.read_text())
    path.write_text(json.dumps({"topicConfigTable": topics}))


def test_topics_are_seen_as_soon_as_they_are_written(store: Path) -> None:
    """Size and time of one file may equal those of the next, so that only the text differs. A
    topic that is no longer declared keeps what it was; one that is declared is what it says."""
    live = LiveSettings(read_store_settings(store), None, frozenset({b"Old"}))
    assert live.poll().batch_topics == {b"Old"}
    path, now = store / "config" / "topics.json", time.time_ns()
    for topic in ("A", "B"):
        declare(store, **{topic: BATCH})
        os.utime(path, ns=(now, now))
        assert topic.encode() in live.poll().batch_topics
    assert live.poll().batch_topics == {b"Old", b"A", b"B"}
    declare(store, Old={}, B={"attributes": {"queue.type": "SimpleCQ"}})
    assert live.poll().batch_topics == {b"A"}


def test_half_a_file_is_not_taken_for_no_batch_topics(store: Path) -> None:
    """A broker that died in the middle of it leaves the text before in the ``.bak``."""
    declare(store, A=BATCH)
    live = LiveSettings(read_store_settings(store), None)
    declare(store, A=BATCH)
    path = store / "config" / "topics.json"
    text = path.read_text()
    for half in ("", text[: len(text) // 2], text[:-1]):
        path.write_text(half)
        assert live.poll().batch_topics == {b"A"}
        assert LiveSettings(read_store_settings(store), None).poll().batch_topics == {b"A"}


def test_delay_levels_count_from_the_next_start_of_a_broker(store: Path) -> None:
    """A broker reads broker.conf when it starts, and writes its abort file before it takes
    messages; without it no message comes."""
    abort, conf = store / "abort", store / "broker.conf"
    abort.write_text("17")
    os.utime(abort, (1_700_000_000, 1_700_000_000))
    live = LiveSettings(read_store_settings(store), None)
    conf.write_text("messageDelayLevel=3s 1m\n")
    assert live.poll().delay_levels_ms == DEFAULT_DELAY_LEVELS_MS
    abort.unlink()
    assert live.poll().delay_levels_ms == DEFAULT_DELAY_LEVELS_MS
    abort.write_text("18")
    assert live.poll().delay_levels_ms == (3000, 60_000)


@pytest.mark.parametrize("name", ["broker.conf", "elsewhere.conf"])
def test_delay_levels_stay_until_the_start_after(store: Path, name: str) -> None:
    """They are those of the file that the run was given; what is written there after a start
    counts from the next one on."""
    abort, conf = store / "abort", store / name
    given = None if name == "broker.conf" else conf
    conf.write_text("messageDelayLevel=1s\n")
    live = LiveSettings(read_store_settings(store, given), given)
    levels = []
    for number, level in enumerate(("2s", "3s", "4s")):
        conf.write_text(f"messageDelayLevel={level}\n")
        levels.append(live.poll().delay_levels_ms)
        abort.write_text(str(number))
        os.utime(abort, (1_700_000_000 + number, 1_700_000_000 + number))
        levels.append(live.delay_levels_ms())
    assert levels == [(1000,), (2000,), (2000,), (3000,), (3000,), (4000,)]
