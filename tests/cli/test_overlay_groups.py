"""``overlay`` where several groups and a topic have messages: each count is of one of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from reput.cli.overlay import _drain_result
from reput.cli.printer import Table
from reput.overlay.drain.contents import Kind
from reput.overlay.drain.drain import Drained
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call, json_lines, json_object

T = 1_700_000_000_000
THIRD, FIFTH = 10_000, 60_000
"""ms of RocketMQ's delay levels 3 and 5, ``10s`` and ``1m``; level n has queue n - 1."""
TARGET = "127.0.0.1:10911"


def waits(level: int, topic: str, stored: int, queue: int = 0) -> Record:
    """A delayed message as a broker's schedule topic has it."""
    block = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue}\x02DELAY\x01{level}\x02"
    return Record(
        topic=b"SCHEDULE_TOPIC_XXXX", queue_id=level - 1, properties=block.encode(),
        body=b"waits", store_timestamp=stored,
    )  # fmt: skip


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The message of level 3 that is due first is not the first one of the log."""
    origin = b"RETRY_TOPIC\x01Orders\x02ORIGIN_MESSAGE_ID\x01FIRST\x02"
    with LogAppender(tmp_path / "overlay", file_size=1 << 16) as appender:
        for record in (
            waits(5, "%RETRY%billing", T - 55_000),
            waits(3, "%RETRY%billing", T + 7),
            waits(3, "%RETRY%billing", T),
            waits(3, "Orders", T + 100),
            Record(
                topic=b"%RETRY%billing", body=b"again", reconsume_times=2, properties=origin,
                store_timestamp=T,
            ),
            Record(topic=b"Orders", body=b"new", store_timestamp=T),
            Record(topic=b"%DLQ%shipping", body=b"dead", store_timestamp=T),
            Record(topic=b"%DLQ%shipping", body=b"dead", store_timestamp=T),
        ):  # fmt: skip
            appender.append(record)
    return tmp_path


def test_each_group_and_each_topic_has_its_counts(output: Path, call: Call) -> None:
    """With the time at which the next message of each level is due."""
    groups = json_object(call("overlay", "status", output, "--json"))["groups"]
    third = {"level": 3, "messages": 2, "next_due": T + THIRD}
    fifth = {"level": 5, "messages": 1, "next_due": T - 55_000 + FIFTH}
    none = {"waiting": 0, "next_due": None, "levels": [], "delivered": 0, "dead": 0,
            "dead_sent_again": 0}  # fmt: skip
    alone = {"level": 3, "messages": 1, "next_due": T + 100 + THIRD}
    due = {"waiting": 1, "next_due": T + 100 + THIRD, "levels": [alone], "delivered": 1}
    assert groups == [
        {**none, "group": None, "topic": "Orders", **due},
        {**none, "group": "billing", "topic": None, "waiting": 3, "levels": [third, fifth],
         "next_due": T - 55_000 + FIFTH, "delivered": 1},
        {**none, "group": "shipping", "topic": None, "dead": 2},
    ]  # fmt: skip


def test_counts_stand_below_their_headings(output: Path, call: Call) -> None:
    """A topic without a group is named as one."""
    cells = [
        re.split(r"  +", line) for line in call("overlay", "status", output).stdout.splitlines()
    ]
    assert [row for row in cells if row[0] == "group"] == [
        ["group", "waiting", "not consumed", "dead", "sent again", "next due"],
        ["group", "level", "messages", "next due"],
    ]
    assert [row[1:] for row in cells if row[0] == "billing"] == [
        ["3", "1", "0", "0", "2023-11-14T22:13:25.000Z"],
        ["3", "2", "2023-11-14T22:13:30.000Z"],
        ["5", "1", "2023-11-14T22:13:25.000Z"],
    ]
    assert [row[1:] for row in cells if row[0] == "topic Orders"] == [
        ["1", "1", "0", "0", "2023-11-14T22:13:30.100Z"], ["3", "1", "2023-11-14T22:13:30.100Z"],
    ]  # fmt: skip
    assert [row[1:] for row in cells if row[0] == "shipping"] == [["0", "0", "2", "0", "unknown"]]


def test_messages_of_one_group_are_exported(output: Path, call: Call) -> None:
    """A topic's have no group, and are in what is asked for without one."""

    def exported(*groups: str) -> Counter[tuple[str, str | None, str, str | None]]:
        words = [word for group in groups for word in ("--group", group)]
        found = json_lines(call("overlay", "export", output, *words))
        return Counter(
            (one["kind"], one["group"], one["origin_topic"], one["origin_message_id"])
            for one in found
        )

    billing = {
        ("waiting", "billing", "%RETRY%billing", None): 3,
        ("delivered", "billing", "Orders", "FIRST"): 1,
    }
    shipping = {("dead", "shipping", "%DLQ%shipping", None): 2}
    orders = {("waiting", None, "Orders", None): 1, ("delivered", None, "Orders", None): 1}
    assert exported("billing") == billing
    assert exported("shipping", "billing") == {**billing, **shipping}
    assert exported() == {**billing, **shipping, **orders}


def test_a_plan_counts_by_kind(output: Path, call: Call) -> None:
    """Nothing is sent, and nothing is asked of the broker."""
    drain = ("overlay", "drain", output, "--broker", TARGET)
    found = json_object(call(*drain, "--json"))
    assert found["sent"] == {"waiting": 4, "delivered": 2, "dead": 2}
    assert (found["applied"], found["broker"], found["remaining"]) == (False, TARGET, 0)
    done = call(*drain)
    assert done.stdout == (
        "8 messages (2 dead, 2 delivered, 4 waiting) would be sent to 127.0.0.1:10911; nothing "
        "was sent, give --apply\n"
    )
    both = call(*drain, "--namesrv", TARGET)
    assert_one_line(both, 2, "give --broker or --namesrv, one of them")


@pytest.mark.parametrize("remaining", [0, 1])
def test_a_drain_that_leaves_something_has_failed(remaining: int) -> None:
    """Whoever moves the overlay away afterwards would lose it. Each count has its own words."""
    done = Drained(
        Counter({Kind.DEAD: 1, Kind.WAITING: 1200}), found=2, before=3, remaining=remaining,
        left_out=Counter({"half of a transaction": 5}),
    )  # fmt: skip
    result = _drain_result(TARGET, done, apply=True)
    assert result.exit_code == remaining
    table, line = result.parts
    assert isinstance(table, Table) and [*table.rows] == [(5, "half of a transaction")]
    rest = "; 1 were not: run the same command again for those" if remaining else ""
    assert line == (
        f"1,201 messages (1 dead, 1200 waiting) sent to {TARGET}; the broker had 2 of a run that "
        f"was killed; 3 were sent before{rest}"
    )
    assert result.fields == {
        "applied": True, "broker": TARGET, "sent": {"dead": 1, "waiting": 1200}, "found": 2,
        "sent_before": 3, "remaining": remaining, "left_out": {"half of a transaction": 5},
    }  # fmt: skip
