"""A server's words about its store: content that it delivers, and content that nobody does.

The stores are made byte by byte, or a broker's own; counts are made from their units and bodies.
"""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Callable
from logging.handlers import QueueHandler
from pathlib import Path

import pytest

from reput.readers import inventory
from reput.readers.inventory import Inventory, take_inventory
from reput.readers.messagestore import MessageStore
from reput.serving import inventory as reports
from reput.serving.inventory import lines
from reput.store.log.systemtopics import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC, is_system_topic
from tests.support.broker_store import FILE_SIZE, BrokerStore, four_queues
from tests.support.cli import Call
from tests.support.plain_queues import plain_units, queue_directories
from tests.support.remoting import TIMEOUT_SECONDS, Client, served

SEND_BACK, SYSTEM_ERROR = 36, 1


def texts(store: Path) -> list[str]:
    with MessageStore(store) as opened:
        return [text for _, text in lines(take_inventory(opened, store))]


def write_config(root: Path, name: str, content: object) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["plain", "mixed", "lmq", "batch", "wide"])
def test_topics_and_counts_of_a_brokers_store(golden: Callable[[str], Path], name: str) -> None:
    """The largest by name, all of them in the sums; RocketMQ's own topics in neither."""
    store = golden(name)
    counts: dict[str, int] = {}
    for directory in queue_directories(store):
        topic = directory.parent.name
        if not is_system_topic(topic):
            units = plain_units(directory)
            # the unit of an inner batch is several messages
            counts[topic] = counts.get(topic, 0) + len(units)
    with MessageStore(store) as opened:
        found = take_inventory(opened, store)
    assert found.topics.keys() >= counts.keys()
    if name != "batch":
        assert {topic: found.topics[topic] for topic in counts} == counts
        total = f"{sum(counts.values()):,} messages in {len(found.topics):,} topics: "
        assert texts(store)[0].startswith(total)


def test_the_largest_topics_are_named() -> None:
    """Five of them, and those of one size by name; the others are counted."""
    topics = {"c": 4, "b": 4, "a": 3, "d": 3000, "e": 5, "f": 1, "g": 2}
    (line,) = lines(Inventory(topics, 0, 0, 0, are_all_halves=False), has_overlay=True)
    named = "d 3,000, e 5, b 4, c 4, a 3"
    assert line == (logging.INFO, f"3,019 messages in 7 topics: {named} and 2 more")
    del topics["f"], topics["g"]
    (line,) = lines(Inventory(topics, 0, 0, 0, are_all_halves=False), has_overlay=True)
    assert line == (logging.INFO, f"3,016 messages in 5 topics: {named}")


def test_what_only_a_broker_delivers_is_counted(tmp_path: Path, call: Call) -> None:
    """Delay levels from where the broker stopped, timed messages, and half messages that no message
    about an ended transaction names, in both forms; ``status`` counts the same."""
    made = BrokerStore(tmp_path)
    made.put("Orders", 0, 3)
    made.put("SCHEDULE_TOPIC_XXXX", 1, 10)
    made.put("SCHEDULE_TOPIC_XXXX", 4, 6)
    made.put(TIMER_TOPIC, 0, 4)
    made.put(HALF_TOPIC, 0, 12)
    made.put(OP_TOPIC, 0, body=b"1")
    made.put(OP_TOPIC, 0, body=b"5,7,11,")
    made.put(OP_TOPIC, 0, body=b"3,")
    made.write()
    # level n has queue n - 1
    write_config(tmp_path, "delayOffset.json", {"offsetTable": {"2": 7, "9": 3}})
    assert texts(tmp_path) == [
        "3 messages in 1 topic: Orders 3",
        "not delivered: 9 delayed messages: only a broker moves them to their topics when they are "
        "due",
        "not delivered: up to 4 timed messages: only a broker moves them to their topics when they "
        "are due",
        "not delivered: 7 half messages: their transactions are open, and only a broker asks their "
        "producers",
    ]
    # an overlay takes all of them over, and says so itself
    with MessageStore(tmp_path) as opened:
        taken_over = [*lines(take_inventory(opened, tmp_path), has_overlay=True)]
    assert [text for _, text in taken_over] == texts(tmp_path)[:1]
    waiting = json.loads(call("status", tmp_path, "--json").stdout)["waiting"]
    assert (waiting["delayed"], waiting["timed"], waiting["halves"]) == (9, 4, 7)
    shown = call("status", tmp_path).stdout
    assert "waiting      9 delayed messages, up to 4 timed messages, 7 open half messages" in shown
    group = "CID_RMQ_SYS_TRANS"
    offsets = {f"{HALF_TOPIC}@{group}": {"0": 6}, f"{OP_TOPIC}@{group}": {"0": 1}}
    write_config(tmp_path, "consumerOffset.json", {"offsetTable": offsets})
    assert texts(tmp_path)[3].startswith("not delivered: 4 half messages: ")


@pytest.mark.parametrize(("delivered", "waiting"), [(7, 2), (11, 1), (99, 0)])
def test_delayed_messages_that_the_log_has_lost_do_not_wait(
    tmp_path: Path, delivered: int, waiting: int
) -> None:
    """Retention took what a broker had not delivered yet."""
    made = BrokerStore(tmp_path)
    made.put("SCHEDULE_TOPIC_XXXX", 1, 10)
    made.put("Orders", 0, 2, body=b"x" * (FILE_SIZE // 3 * 2))
    made.put("SCHEDULE_TOPIC_XXXX", 1, 2)
    made.write()
    write_config(tmp_path, "delayOffset.json", {"offsetTable": {"2": delivered}})
    min((tmp_path / "commitlog").iterdir()).unlink()
    with MessageStore(tmp_path) as opened:
        assert take_inventory(opened, tmp_path).delayed == waiting


def test_a_store_without_queues_says_that_nothing_is_served(tmp_path: Path) -> None:
    """A log alone is no topic."""
    made = BrokerStore(tmp_path)
    made.write()
    made.log.append()
    made.log.write(tmp_path / "commitlog")
    assert texts(tmp_path) == ["no topic has a message"]


def test_many_ended_transactions_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count is then an upper bound, and says so."""
    made = BrokerStore(tmp_path)
    made.put(HALF_TOPIC, 0, 5)
    made.put(OP_TOPIC, 0, 4, body=b"1,")
    made.write()
    assert texts(tmp_path)[1].startswith("not delivered: 4 half messages: ")
    monkeypatch.setattr(inventory, "MOST_READ", 3)
    assert texts(tmp_path)[1].startswith("not delivered: up to 5 half messages: ")


def test_a_server_logs_what_it_does_not_serve_for_as_long_as_it_is_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At its start, and at each look until the queues are whole. Without an overlay nobody delivers
    a half message."""
    made = four_queues(tmp_path)
    made.put(HALF_TOPIC, 0, 1)
    made.write()
    lost = made.zero_last("Orders", 1, 5)
    monkeypatch.setattr(reports, "LOOK_SECONDS", 0.01)
    said: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = QueueHandler(said)
    logger = logging.getLogger("reput")
    caplog.set_level(logging.INFO, "reput")
    logger.addHandler(handler)
    try:
        with served(tmp_path):
            found = [said.get(timeout=TIMEOUT_SECONDS).getMessage() for _ in range(4)]
    finally:
        logger.removeHandler(handler)
    assert found[0] == "broker made: 238 messages in 3 topics: Payments 120, Orders 115, Idle 3"
    assert found[1].startswith("broker made: not delivered: 1 half message")
    missing = f"broker made: not served: {lost:,} bytes of the log are in no queue"
    assert [text.startswith(missing) for text in found[2:]] == [True, True]
    made.write()
    with MessageStore(tmp_path) as opened:
        assert opened.note_coverage() is None


def test_a_failing_listener_is_logged_once_for_its_group(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """When a client sends a message back and is refused; other groups have lines of their own."""
    caplog.set_level(logging.WARNING, "reput")
    with Client(port) as client:
        for group in ("Failing", "Failing", "Other", "Failing"):
            ext = {"group": group, "offset": 1234, "delayLevel": 0, "originTopic": "Topic_0"}
            answer = client.ask(SEND_BACK, ext)
            assert answer.code == SYSTEM_ERROR
            assert "read-only" in answer.header["remark"]
    said = [record.getMessage() for record in caplog.records if "listener" in record.getMessage()]
    assert len(said) == 2
    assert "group Failing" in said[0]
    assert "physical offset 1234" in said[0]
    assert "group Other" in said[1]
