"""A client unpacks messages: bodies, inner batches, tags compared by text."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from reput.readers.getmessage import GetMessageStatus
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.store.errors import MessageBodyError
from tests.readers.stores import SmallStore
from tests.support.wire import TWO_MESSAGES

COMPRESSED, NEED_UNWRAP, INNER_BATCH = 0x1, 0x40, 0x80
ZLIB = 0x300
SAME_HASH = ("Aa", "BB")
"""2112 both: Java's String.hashCode."""


def test_a_body_is_inflated_up_to_the_limit(tmp_path: Path) -> None:
    """A megabyte of zeros in a kilobyte; what does not inflate is named by its offset."""
    small = SmallStore(tmp_path)
    plain = bytes(1 << 20)
    small.append(body=zlib.compress(plain), sys_flag=COMPRESSED)
    small.append(body=zlib.compress(plain), sys_flag=COMPRESSED | ZLIB)
    bad = small.append(body=b"no stream", sys_flag=COMPRESSED | ZLIB)
    unknown = small.append(body=b"no codec", sys_flag=COMPRESSED | 0x700)
    root = small.write()
    with MessageStore(root, max_body_bytes=len(plain)) as store:
        found = store.queue("Topic", 0).get_message(0).messages
        assert [message.body() for message in found[:2]] == [plain, plain]
        for message, offset in zip(found[2:], (bad, unknown), strict=True):
            with pytest.raises(MessageBodyError, match=f"physical offset {offset} "):
                message.body()
    with MessageStore(root, max_body_bytes=len(plain) - 1) as store:
        for message in store.queue("Topic", 0).get_message(0).messages[:2]:
            with pytest.raises(MessageBodyError, match=f"within {len(plain) - 1} bytes"):
                message.body()


@pytest.mark.parametrize("compressed", [False, True])
def test_an_inner_batch_is_taken_apart(tmp_path: Path, compressed: bool) -> None:
    """As RocketMQ's client does: its messages have the batch's place, and their own tags."""
    small = SmallStore(tmp_path)
    small.units[0] = []
    offset = small.append(
        body=zlib.compress(TWO_MESSAGES) if compressed else TWO_MESSAGES,
        sys_flag=INNER_BATCH | NEED_UNWRAP | (COMPRESSED if compressed else 0),
        queue_offset=40,
        properties=b"TAGS\x01Aa\x02",
        tags_code=2112,
    )
    with MessageStore(small.write()) as store:
        pulled = store.queue("Topic", 0).get_message(0)
        assert len(pulled.found) == 1
        first, second = pulled.messages
        assert (first.body(), first.record.flag, first.queue_offset) == (b"first", 7, 40)
        assert (second.body(), second.record.flag, second.queue_offset) == (b"", -1, 41)
        assert (first.tags, first.keys) == ("Aa", ("k1", "k2"))
        assert (second.tags, second.keys) == ("BB", ())
        assert first.physical_offset == second.physical_offset == offset
        wanted = MessageFilter.by_tags("Aa")
        assert store.queue("Topic", 0).get_message(0, message_filter=wanted).messages == (first,)


@pytest.mark.parametrize("cut", [0, 1, 19, 21, 30, -1])
def test_what_is_no_inner_batch_comes_as_it_is(tmp_path: Path, cut: int) -> None:
    """RocketMQ's client logs an error and hands the batch over."""
    small = SmallStore(tmp_path)
    small.append(body=TWO_MESSAGES[:cut], sys_flag=INNER_BATCH | NEED_UNWRAP)
    small.append(body=TWO_MESSAGES, sys_flag=INNER_BATCH)
    with MessageStore(small.write()) as store:
        pulled = store.queue("Topic", 0).get_message(0)
        assert pulled.messages == pulled.found
        with pytest.raises(MessageBodyError, match="is not an inner batch"):
            pulled.messages[0].unwrap()
        assert pulled.messages[1].unwrap() == [pulled.messages[1]]


def test_tags_are_compared_by_hash_then_by_text(tmp_path: Path) -> None:
    """Two tags of the same hash: a broker sends both, and counts them; a client keeps one."""
    small = SmallStore(tmp_path)
    for tag in (*SAME_HASH, "C"):
        small.append(tags_code=2112 if tag != "C" else 67, properties=f"TAGS\x01{tag}\x02".encode())
    with MessageStore(small.write()) as store:
        for tag in SAME_HASH:
            wanted = MessageFilter.by_tags(tag)
            pulled = store.queue("Topic", 0).get_message(0, message_filter=wanted)
            assert [message.tags for message in pulled.found] == list(SAME_HASH)
            assert [message.tags for message in pulled.messages] == [tag]
            assert pulled.next_begin_offset == 3
        pulled = store.queue("Topic", 0).get_message(
            1, 1, message_filter=MessageFilter.by_tags("Aa")
        )
        assert (pulled.status, pulled.messages) == (GetMessageStatus.FOUND, ())


def test_keys_of_the_same_hash_are_told_apart(tmp_path: Path) -> None:
    """By their texts, by topic, and by which property they stand in."""
    small = SmallStore(tmp_path)
    first = small.append(properties=b"KEYS\x01Aa k\x02UNIQ_KEY\x01u\x02")
    second = small.append(properties=b"KEYS\x01BB\x02")
    third = small.append(properties=b"UNIQ_KEY\x01Aa\x02")
    index = [("Topic#u", first), ("Topic#Aa", first), ("Topic#k", first)]
    small.write_index([*index, ("Topic#BB", second), ("Topic#Aa", third)])
    with MessageStore(small.write()) as store:

        def found(key: str) -> list[list[int]]:
            result = store.index.query("Topic", key)
            both = (result.with_key("Topic", key, is_unique=kind) for kind in (False, True))
            return [[message.physical_offset for message in messages] for messages in both]

        assert found("Aa") == [[first], [third]]
        assert found("BB") == [[second], []]
        assert found("u") == [[], [first]]
        assert store.index.query("TopjD", "k").with_key("TopjD", "k") == []
        # the limit counts what the index finds, as RocketMQ's does
        assert store.index.query("Topic", "Aa", max_count=1).with_key("Topic", "Aa") == []
    with (small.root / "broker.conf").open("a") as conf:
        conf.write("maxMsgsNumBatch=1\n")
    with MessageStore(small.root) as store:
        for max_count in (None, 9):
            result = store.index.query("Topic", "Aa", max_count=max_count)
            assert result.with_key("Topic", "Aa") == []
            assert len(result.with_key("Topic", "Aa", is_unique=True)) == 1


def test_keys_have_any_number_of_spaces_around_them(tmp_path: Path) -> None:
    """RocketMQ's index leaves out the empty texts that ``split(" ")`` gives then, too."""
    small = SmallStore(tmp_path)
    small.append(properties=b"KEYS\x01 k1  k2   k1 \x02")
    small.append(properties=b"KEYS\x01 \x02")
    with MessageStore(small.write()) as store:
        first, second = store.queue("Topic", 0).get_message(0).messages
    assert (first.keys, second.keys) == (("k1", "k2", "k1"), ())
