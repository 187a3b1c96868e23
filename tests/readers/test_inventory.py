"""Half messages of a store: those whose transactions are open, from where its broker stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.readers import inventory
from reput.readers.inventory import take_inventory
from reput.readers.messagestore import MessageStore
from reput.store.log.systemtopics import HALF_TOPIC, OP_TOPIC
from tests.support.broker_store import FILE_SIZE, BrokerStore


def halves_of(root: Path) -> tuple[int, bool]:
    """The count, and whether ended ones are in it."""
    with MessageStore(root) as opened:
        found = take_inventory(opened, root)
    return found.halves, found.are_all_halves


def test_every_message_about_ended_transactions_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many pulls and files of its queue, and as many as may be read, the last one included."""
    made = BrokerStore(tmp_path)
    made.put(HALF_TOPIC, 0, 70)
    for number in range(66):
        made.put(OP_TOPIC, 0, body=b"%d," % number)
    made.write()
    assert halves_of(tmp_path) == (4, False)
    monkeypatch.setattr(inventory, "MOST_READ", 66)
    assert halves_of(tmp_path) == (4, False)
    monkeypatch.setattr(inventory, "MOST_READ", 65)
    assert halves_of(tmp_path) == (70, True)


@pytest.mark.parametrize(
    ("half", "about_ended", "waiting"),
    [(None, None, 2), (4, 1, 2), (10, 2, 2), (11, 2, 1), (12, 3, 1), (13, 3, 0), (99, 99, 0),
     (99, 1, 0)],
)  # fmt: skip
def test_half_messages_that_the_log_has_lost_are_not_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    half: int | None,
    about_ended: int | None,
    waiting: int,
) -> None:
    """Retention took what the transactions' group had not done; an offset beyond the queue is that
    of one that was begun anew."""
    made = BrokerStore(tmp_path)
    made.put(HALF_TOPIC, 0, 10)
    made.put(OP_TOPIC, 0, 2, body=b"1,")
    made.put("Orders", 0, 2, body=b"x" * (FILE_SIZE // 3 * 2))
    made.put(HALF_TOPIC, 0, 3)
    made.put(OP_TOPIC, 0, body=b"11,")
    made.write()
    min((tmp_path / "commitlog").iterdir()).unlink()
    if half is not None:
        group = "CID_RMQ_SYS_TRANS"
        table = {f"{HALF_TOPIC}@{group}": {"0": half}, f"{OP_TOPIC}@{group}": {"0": about_ended}}
        (tmp_path / "config").mkdir()
        text = json.dumps({"offsetTable": table})
        (tmp_path / "config" / "consumerOffset.json").write_text(text)
    assert halves_of(tmp_path) == (waiting, False)
    monkeypatch.setattr(inventory, "MOST_READ", 0)
    open_or_ended = min(3, max(13 - (half or 0), 0))
    is_unread = about_ended is None or about_ended < 3
    assert halves_of(tmp_path) == (open_or_ended if is_unread else waiting, is_unread)


@pytest.mark.parametrize(
    "text", [b"9" * 5000, b"1" * 20, b"-1", b"x", b"", b" 2", "２".encode(), b"\xff", b"1.0"]
)
def test_parts_of_a_body_that_are_no_offset_name_nothing(tmp_path: Path, text: bytes) -> None:
    """RocketMQ's ``TransactionalMessageServiceImpl.getLong`` logs them, and goes on."""
    made = BrokerStore(tmp_path)
    made.put(HALF_TOPIC, 0, 5)
    made.put(OP_TOPIC, 0, body=text)
    made.put(OP_TOPIC, 0, body=b"1," + text + b",3,")
    made.write()
    assert halves_of(tmp_path) == (3, False)


def test_offsets_in_a_body_are_read_as_java_reads_a_long() -> None:
    """A sign and zeros before the number as well, however many."""
    longest = (1 << 63) - 1
    body = b"+1,%s3,0,%d,%d," % (b"0" * 30, longest, longest + 1)
    assert [*inventory.named_halves(body)] == [1, 3, 0, longest]
