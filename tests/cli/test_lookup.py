"""Messages found by a broker's id, by keys with and without an index, and by their traces; and
bodies in other charsets."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.streaming.config import DispatcherConfig
from tests.cli.test_errors import assert_one_line
from tests.cli.test_read import messages_of, places, plain_places
from tests.support.cli import Call, json_lines, reput
from tests.support.live_store import LiveStore
from tests.support.sparkless import dispatch

CHINESE = "订单已付款"


def id_of(host: bytes, port: int, physical_offset: int) -> str:
    """RocketMQ's ``MessageDecoder.createMessageId``."""
    return (host + struct.pack(">iq", port, physical_offset)).hex().upper()


def test_a_brokers_id_finds_its_message_without_queues(
    golden: Callable[[str], Path], call: Call
) -> None:
    """In either case of letters; the message is the one of its place in the queue."""
    store = golden("plain")
    message = messages_of(store, "Topic_1")[17].record
    (wanted,) = json_lines(call("get", store, "Topic_1", message.queue_id, message.queue_offset))
    address, port = message.store_host
    packed = bytes(map(int, address.split(".")))
    shutil.rmtree(store / "consumequeue")
    given = id_of(packed, port, message.physical_offset)
    for text in (given, given.lower()):
        assert json_lines(call("get", store, "--message-id", text)) == [wanted]
    other = id_of(bytes([192, 0, 2, 1]), port, message.physical_offset)
    assert_one_line(call("get", store, "--message-id", other), 1, "another broker", given)
    beside = id_of(packed, port, message.physical_offset + 1)
    end = message.physical_offset + 1
    assert_one_line(call("get", store, "--message-id", beside), 1, "no record begins", str(end))
    assert_one_line(call("get", store, "--message-id", "7F00"), 2, "32 or 56")
    assert_one_line(call("get", store), 2, "TOPIC, QUEUE and OFFSET, or --message-id")
    assert_one_line(call("get", store, "Topic_1", "--message-id", given), 2, "--message-id")
    assert_one_line(call("get", store, "Topic_1", 0), 2, "QUEUE and OFFSET after TOPIC")


def test_without_an_index_every_message_is_looked_at(
    golden: Callable[[str], Path], call: Call
) -> None:
    """A key and a unique key find what the index finds, and a line says how."""
    store = golden("plain")
    stored = messages_of(store, "Topic_1")
    keyed = next(m for m in stored if {"KEYS", "UNIQ_KEY"} <= m.values.keys())
    key, unique = keyed.values["KEYS"].split()[0], keyed.values["UNIQ_KEY"]
    asked = (("--key", key), ("--unique-key", unique))
    found = [json_lines(call("query", store, "Topic_1", *one)) for one in asked]
    assert plain_places([keyed]) == places(found[1])
    shutil.rmtree(store / "index")
    for one, wanted in zip(asked, found, strict=True):
        done = call("query", store, "Topic_1", *one)
        assert json_lines(done) == wanted
        assert f"looking at {len(stored):,} messages of topic Topic_1" in done.stderr
        assert f"reput rebuild {store} --only index builds one" in done.stderr
        for bound in ("--begin", "--end"):
            last = call("query", store, "Topic_1", *one, bound, keyed.record.store_timestamp)
            assert plain_places([keyed])[0] in places(json_lines(last))
    early = ("--end", min(m.record.store_timestamp for m in stored) - 1)
    assert call("query", store, "Topic_1", "--key", key, *early).returncode == 1
    assert call("query", store, "Topic_1", "--key", key[:-1]).returncode == 1


def test_older_entries_that_were_not_examined_are_said(
    golden: Callable[[str], Path], call: Call
) -> None:
    """With ``--max`` too few; with enough of them there is no such line."""
    store = golden("plain")
    counts: dict[str, int] = {}
    for message in messages_of(store, "Topic_1"):
        for key in message.values.get("KEYS", "").split():
            counts[key] = counts.get(key, 0) + 1
    key, count = max(counts.items(), key=lambda item: item[1])
    assert count > 1
    cut = call("query", store, "Topic_1", "--key", key, "--max", count - 1)
    assert len(json_lines(cut)) == count - 1
    assert "--max N examines more" in cut.stderr
    whole = call("query", store, "Topic_1", "--key", key, "--max", count)
    assert len(json_lines(whole)) == count
    assert whole.stderr == ""


def test_bodies_in_another_charset(tmp_path: Path, call: Call) -> None:
    """As text in the charset that is named; ``sql`` marks a body that is no UTF-8."""
    body = CHINESE.encode("gbk")
    with LiveStore(tmp_path) as live:
        live.append([Record(topic=b"T", body=body), Record(topic=b"T", body=CHINESE.encode())])
        live.dispatch()
    place = (live.root, "T", 0, 0, "--output", live.output)
    (found,) = json_lines(call("get", *place, "--charset", "gbk"))
    assert found["body"] == CHINESE
    assert_one_line(call("get", *place, "--charset", "klingon"), 2, "--charset", "klingon")
    # some of Python's codecs are for bytes alone, and some for names of hosts
    for name in ("hex", "idna", "punycode"):
        assert_one_line(call("get", *place, "--charset", name), 2, "--charset", name)
    done = reput("sql", live.root, "select body from messages order by physicalOffset")
    encoded = {"base64": base64.b64encode(body).decode()}
    assert [row["body"] for row in json_lines(done)] == [encoded, CHINESE]


@pytest.mark.parametrize("kind", ["id", "key"])
def test_a_trace_is_the_events_of_one_message(tmp_path: Path, call: Call, kind: str) -> None:
    """Events of other messages in the same body are left out; a consumption ends after its begin,
    also where the end has no time of its own."""
    sent = "Pub\x011700000000500\x01r\x01pg\x01Orders\x01ID1\x01tag\x01k1 k2\x01b:1\x0110\x013\x010"
    sent += "\x01OFFSETID\x01true\x01192.0.2.7"
    other = sent.replace("ID1", "ID2").replace("k1 k2", "k3")
    begin = "SubBefore\x011700000000900\x01r\x01cg\x01req\x01ID1\x011\x01k1\x01192.0.2.8"
    end = "SubAfter\x01req\x01ID1\x0142\x01false\x01k1\x010"
    with LiveStore(tmp_path) as live:
        live.append(
            Record(
                topic=b"RMQ_SYS_TRACE_TOPIC", body="\x02".join([*events, ""]).encode(),
                properties=f"KEYS\x01{keys}\x02".encode(),
            )
            for keys, events in (("ID1 k1", [end, begin]), ("ID1 ID2 k1 k2 k3", [other, sent]))
        )  # fmt: skip
        live.dispatch()
    asked = {"id": "ID1", "key": "k1"}[kind]
    done = call("trace", live.root, asked, "--output", live.output)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["kind"], one.get("group")) for one in found] == [
        ("Pub", "pg"), ("SubBefore", "cg"), ("SubAfter", None)
    ]  # fmt: skip
    assert found[0]["offset_message_id"] == "OFFSETID"
    assert (found[1]["retry_times"], found[2]["success"], found[2]["cost_ms"]) == (1, False, 42)
    missing = call("trace", live.root, "none", "--output", live.output)
    assert missing.returncode == 1
    assert "no event of message none" in missing.stderr


def test_a_trace_has_all_events_however_many_bodies_hold_them(tmp_path: Path, call: Call) -> None:
    """A broker answers with the newest 64 messages of a key; a message that is consumed by many
    groups, or again and again, has more."""
    count = 150
    begin = "SubBefore\x01%d\x01r\x01g%d\x01req%d\x01ID1\x010\x01k1\x01192.0.2.8\x02"
    with LogAppender(tmp_path, file_size=1 << 20) as appender:
        for number in range(count):
            body = begin % (1_700_000_000_000 + number, number, number)
            keys = b"KEYS\x01ID1\x02"
            appender.append(
                Record(topic=b"RMQ_SYS_TRACE_TOPIC", properties=keys, body=body.encode())
            )
    dispatch(DispatcherConfig(tmp_path, tmp_path, once=True))
    done = call("trace", tmp_path, "ID1")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["group"] for one in events] == [f"g{number}" for number in range(count)]
    assert done.stderr == ""
