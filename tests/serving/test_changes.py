"""Changes while clients are connected: of settings and subscriptions, and a log that grows between
two questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readers.stores import SmallStore
from tests.serving.test_pulling import bodies, pull
from tests.support.processes import became
from tests.support.remoting import Client, heartbeat, served

PULL, QUERY, SEARCH, MAX, EARLIEST, HEART_BEAT = 11, 14, 29, 30, 32, 34
FOUND, NO_PERMISSION, NOT_FOUND, PARSE_FAILED = 0, 16, 22, 23
SECONDS = 30.0


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    """A message of each of two tags."""
    small = SmallStore(tmp_path / "store")
    for number, tag in enumerate((b"A", b"B")):
        small.append(
            tags_code=ord(tag), properties=b"TAGS\x01%b\x02" % tag, store_timestamp=1000 + number
        )
    (small.write() / "config").mkdir()
    return small


@pytest.fixture
def client(small: SmallStore) -> Iterator[Client]:
    with served(small.root) as port, Client(port) as client:
        yield client


def place(queue_id: int = 0, **more: object) -> dict[str, object]:
    return {"consumerGroup": "group", "topic": "Topic", "queueId": queue_id, **more}


def test_a_topic_that_nobody_may_read(small: SmallStore) -> None:
    """Its broker lets clients write it alone."""
    table = '{"topicConfigTable":{"Topic":{"perm":2,"readQueueNums":1,"writeQueueNums":1}}}'
    (small.root / "config" / "topics.json").write_text(table)
    with served(small.root) as port, Client(port) as client:
        answer = client.ask(PULL, pull())
    assert (answer.code, answer.ext.get("forbiddenType")) == (NO_PERMISSION, "3")
    assert answer.body == b""


def test_a_subscription_that_cannot_be_parsed_takes_nothing(client: Client) -> None:
    """The heartbeat is accepted, as at a broker, and the pull says why."""
    beat = heartbeat("c", "group", "Topic:a >", kind="SQL92")
    assert client.ask(HEART_BEAT, {}, beat).code == 0
    answer = client.ask(PULL, pull(sysFlag=0))
    assert (answer.code, answer.body) == (PARSE_FAILED, b"")
    assert "'a >' cannot be parsed" in answer.header["remark"]


def test_an_older_subscription_does_not_replace_a_newer_one(client: Client) -> None:
    """A heartbeat may have been overtaken by a later one; of one version the last counts."""
    for version, tag, taken in ((5, "A", 0), (4, "B", 0), (5, "B", 1), (6, "A", 0)):
        beat = heartbeat("c", "group", f"Topic:{tag}", version=version)
        assert client.ask(HEART_BEAT, {}, beat).code == 0
        (found,) = bodies(client.ask(PULL, pull(sysFlag=0)))
        assert int.from_bytes(found[20:28], "big") == taken


def test_a_group_that_is_forbidden_later_gets_nothing_more(
    small: SmallStore, client: Client
) -> None:
    """Although the same pull was allowed before, and nothing else of the group has changed."""
    for _ in range(2):
        assert client.ask(PULL, pull()).code == FOUND
    table = '{"subscriptionGroupTable":{"group":{"consumeEnable":false}}}'
    (small.root / "config" / "subscriptionGroup.json").write_text(table)
    assert became(lambda: client.ask(PULL, pull()).code == NO_PERMISSION, SECONDS)


@pytest.mark.parametrize(
    ("text", "code"),
    [("1", 0), ("+1", 0), ("-1", 0), ("1_0", 1), (" 1", 1), ("1 ", 1), ("0x1", 1), ("", 1),
     ("1.0", 1), ("\u0663", 1), ("9223372036854775807", 0), ("9223372036854775808", 1),
     ("-9223372036854775808", 0), ("-9223372036854775809", 1)],
)  # fmt: skip
def test_a_number_is_a_long_as_java_reads_it(client: Client, text: str, code: int) -> None:
    """A broker refuses others, but for digits of other scripts, which no client sends."""
    assert client.ask(SEARCH, place(timestamp=text)).code == code


def test_each_question_about_a_queue_sees_what_has_come(small: SmallStore, client: Client) -> None:
    """No pull or other question has to come first: the earliest time, and the offset of a time."""
    for queue_id in (1, 2):
        (small.root / "consumequeue" / "Topic" / str(queue_id)).mkdir()
    assert became(lambda: client.ask(EARLIEST, place(2)).code == 0, SECONDS)
    assert client.ask(EARLIEST, place(1)).ext == {"timestamp": "-1"}
    asked = place(2, timestamp=2001, boundaryType="LOWER")
    assert client.ask(SEARCH, asked).ext == {"offset": "0"}
    small.append(queue_id=1, store_timestamp=2000)
    small.write()
    expected = {"timestamp": "2000"}
    assert became(lambda: client.ask(EARLIEST, place(1)).ext == expected, SECONDS)
    for time_ms in (2000, 2001):
        small.append(queue_id=2, store_timestamp=time_ms)
    small.write()
    assert became(lambda: client.ask(SEARCH, asked).ext == {"offset": "1"}, SECONDS)


def test_a_question_of_a_tool_decides_no_group_s_beginning(
    small: SmallStore, client: Client
) -> None:
    """It is no member; the first member begins where the queue ends then."""
    assert client.ask(QUERY, place()).code == NOT_FOUND
    assert client.ask(MAX, place()).ext == {"offset": "2"}
    small.append()
    small.write()
    assert became(lambda: client.ask(MAX, place()).ext == {"offset": "3"}, SECONDS)
    assert client.ask(HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
    assert client.ask(QUERY, place()).code == NOT_FOUND
    assert client.ask(MAX, place()).ext == {"offset": "3"}
