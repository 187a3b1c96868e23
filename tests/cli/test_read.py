"""``get``, ``tail``, ``query`` and ``search-time``: what they print of real stores, and how."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.cli import texts
from reput.readers.messagestore import MessageStore
from reput.store.log.record import Record
from tests.cli.test_errors import assert_one_line
from tests.support.childruns import ChildRun
from tests.support.cli import REPUT, Call, json_lines, json_object, reput, reput_on_terminal
from tests.support.golden import destroy
from tests.support.live_store import LiveStore
from tests.support.plain_queues import PlainMessage, plain_queue, queue_directories

ORDERS_DIGEST = "810099c39d292309b7dc4e743490099d943cbefb9624cdbf5b845a8681258e75"
"""The digest of what a RocketMQ client drains (tests/golden/README.md)."""
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\r\n\x7f\x9b31m\u202ecod\u2066.\u200b:smile:"

STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Bold headings."""


def messages_of(store: Path, topic: str) -> list[PlainMessage]:
    """All of a topic, in the order in which they were stored."""
    found = [
        message
        for directory in queue_directories(store)
        if directory.parent.name == topic
        for message in plain_queue(store, directory)
    ]
    return sorted(found, key=lambda message: message.record.physical_offset)


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["queue_id"], row["queue_offset"]) for row in found]


def plain_places(found: list[PlainMessage]) -> list[tuple[int, int]]:
    return [(message.record.queue_id, message.queue_offset) for message in found]


def test_tail_of_everything_is_what_a_client_drains(golden: Callable[[str], Path]) -> None:
    """All 6,000 orders, by the digest that a RocketMQ client's bodies have."""
    command = ("tail", golden("broker"), "Orders", "--count", 9999, "--body", "hex")
    found = json_lines(reput(*command))
    assert len(found) == 6000
    bodies = sorted(
        (f"{row['queue_id']:03d}-{row['queue_offset']:012d}", row["body"]) for row in found
    )
    digest = hashlib.sha256()
    for key, body in bodies:
        digest.update(key.encode() + bytes.fromhex(body))
    assert digest.hexdigest() == ORDERS_DIGEST
    offsets = [row["physical_offset"] for row in found]
    assert offsets == sorted(offsets)


def test_get_shows_every_field(golden: Callable[[str], Path], call: Call) -> None:
    """Every field of a message with a topic and tags beyond ASCII equals the plain decoder's."""
    store = golden("mixed")
    message = next(m for m in messages_of(store, "订单-主题") if "KEYS" in m.values)
    found, values = message.record, message.values
    place = ("订单-主题", found.queue_id, message.queue_offset)
    (shown,) = json_lines(call("get", store, *place, "--body", "base64"))
    assert shown == {
        "topic": "订单-主题",
        "queue_id": found.queue_id,
        "queue_offset": found.queue_offset,
        "physical_offset": found.physical_offset,
        "size": found.total_size,
        "message_id": shown["message_id"],
        "unique_key": values["UNIQ_KEY"],
        "tags": values.get("TAGS"),
        "keys": values["KEYS"].split(),
        "born_timestamp": found.born_timestamp,
        "store_timestamp": found.store_timestamp,
        "born_host": "{}:{}".format(*found.born_host),
        "store_host": "{}:{}".format(*found.store_host),
        "flag": found.flag,
        "sys_flag": found.sys_flag,
        "reconsume_times": found.reconsume_times,
        "prepared_transaction_offset": found.prepared_transaction_offset,
        "properties": values,
        "body": base64.b64encode(found.body).decode(),
        "body_problem": None,
    }
    assert shown["message_id"].endswith(f"{found.physical_offset:016X}")
    (bare,) = json_lines(call("get", store, *place, "--body", "none"))
    assert bare == {name: shown[name] for name in shown if not name.startswith("body")}


def test_hosts_are_written_as_in_rows(golden: Callable[[str], Path], call: Call) -> None:
    """IPv6 addresses in brackets, so that the port can be told."""
    store = golden("wide")
    topic, record = next(
        (m.record.topic.decode(), m.record)
        for directory in queue_directories(store)
        for m in plain_queue(store, directory)
        if ":" in m.record.born_host[0]
    )
    (shown,) = json_lines(call("get", store, topic, record.queue_id, record.queue_offset))
    assert shown["born_host"] == "[{}]:{}".format(*record.born_host)


def test_get_an_offset_inside_of_an_inner_batch(golden: Callable[[str], Path], call: Call) -> None:
    """The batch, which here is none that could be taken apart: as a client would hand it over."""
    store = golden("batch")
    directory = next(d for d in queue_directories(store) if d.parent.name == "BatchTopic")
    batch = list(plain_queue(store, directory))[1]
    offset = batch.queue_offset + int(batch.values["INNER_NUM"]) - 1
    assert offset > batch.queue_offset
    command = ("get", store, "BatchTopic", directory.name, offset, "--body", "hex")
    (shown,) = json_lines(call(*command))
    assert shown["queue_offset"] == batch.queue_offset
    assert shown["physical_offset"] == batch.record.physical_offset
    assert bytes.fromhex(shown["body"]) == batch.record.body


def test_tail_by_lines_tags_expression_and_time(golden: Callable[[str], Path], call: Call) -> None:
    """The last ones of all queues together, in the order in which they were stored."""
    store = golden("plain")
    stored = messages_of(store, "Topic_2")
    assert len({message.record.queue_id for message in stored}) > 1
    assert places(json_lines(call("tail", store, "Topic_2"))) == plain_places(stored[-10:])
    tagged = [m for m in stored if m.values.get("TAGS") in ("Tag1", "Tag4")]
    found = json_lines(call("tail", store, "Topic_2", "--tag", "Tag1 || Tag4", "--count", 7))
    assert places(found) == plain_places(tagged[-7:])
    keyless = [m for m in stored if "KEYS" not in m.values]
    found = json_lines(call("tail", store, "Topic_2", "--sql", "KEYS IS NULL", "--count", 9999))
    assert places(found) == plain_places(keyless)
    assert json_lines(call("tail", store, "Topic_2", "--count", 0)) == []
    assert_one_line(call("tail", store, "Topic_2", "--tag", "none"), 1, "no message of", "Topic_2")
    since = stored[len(stored) // 2].record.store_timestamp
    later = [m for m in stored if m.record.store_timestamp >= since]
    found = json_lines(call("tail", store, "Topic_2", "--from-time", since))
    assert places(found) == plain_places(later)


def test_tail_of_a_registered_group(golden: Callable[[str], Path], call: Call) -> None:
    """Its expression, without a look into the log where bit maps rule a message out: those records
    are destroyed here, and would be named on stderr."""
    store = golden("ext")
    stored = messages_of(store, "Topic_0")
    with MessageStore(store) as opened:
        wanted = opened.consumer_filter("Topic_0", "g1")
    assert wanted and wanted.consumer
    command = ("tail", store, "Topic_0", "--group", "g1", "--count", 9999)
    matching = [m for m in stored if wanted.is_matched_by_commit_log(m.values)]
    assert 0 < len(matching) < len(stored)
    assert places(json_lines(call(*command))) == plain_places(matching)
    kept = {m.record.physical_offset for m in matching}
    lost = [m.record for m in stored if m.record.physical_offset not in kept]
    destroy(store, lost)
    done = call(*command)
    assert places(json_lines(done)) == plain_places(matching)
    # a bit map may say yes where the expression says no
    assert done.stderr.count("damaged record") < len(lost) / 2


def test_query_by_key(golden: Callable[[str], Path], call: Call) -> None:
    """All messages with a key, by physical offset, and the one with a unique key."""
    store = golden("plain")
    stored = messages_of(store, "Topic_1")
    keyed = next(m for m in stored if {"KEYS", "UNIQ_KEY"} <= m.values.keys())
    key = keyed.values["KEYS"].split()[0]
    wanted = [m for m in stored if key in m.values.get("KEYS", "").split()]
    found = json_lines(call("query", store, "Topic_1", "--key", key))
    assert places(found) == plain_places(wanted)
    unique = keyed.values["UNIQ_KEY"]
    found = json_lines(call("query", store, "Topic_1", "--unique-key", unique))
    assert places(found) == [(keyed.record.queue_id, keyed.queue_offset)]
    before = min(m.record.store_timestamp for m in stored) - 5000
    assert_one_line(
        call("query", store, "Topic_1", "--key", key, "--end", before), 1, "no message", key
    )


def test_search_time(golden: Callable[[str], Path], call: Call) -> None:
    """The first at or after a time, the last at or before it; ms and ISO 8601 are the same."""
    store = golden("plain")
    stored = [m for m in messages_of(store, "Topic_3") if m.record.queue_id == 0]
    times = [message.record.store_timestamp for message in stored]
    wanted = times[len(times) // 2] - 1
    first = next(m for m in stored if m.record.store_timestamp >= wanted)
    last = [m for m in stored if m.record.store_timestamp <= wanted][-1]
    for options, message in (((), first), (("--upper",), last)):
        (found,) = json_lines(call("search-time", store, "Topic_3", 0, wanted, *options))
        assert found == {
            "topic": "Topic_3",
            "queue_id": 0,
            "queue_offset": message.queue_offset,
            "store_timestamp": message.record.store_timestamp,
        }
    iso = "1970-01-01T02:00:00+02:00"
    (found,) = json_lines(call("search-time", store, "Topic_3", 0, iso))
    assert found["queue_offset"] == 0
    (found,) = json_lines(call("search-time", store, "Topic_3", 0, times[-1] + 1))
    assert (found["queue_offset"], found["store_timestamp"]) == (len(stored), None)


def test_file_sizes_by_flags_stand_above_the_property_file(
    golden: Callable[[str], Path], call: Call
) -> None:
    """Where broker.conf speaks of another store: refused, and read with the right sizes."""
    store = golden("plain")
    conf = dict(line.split("=") for line in (store / "broker.conf").read_text().split())
    wrong = {**conf, "mappedFileSizeConsumeQueue": "4000"}
    del wrong["mappedFileSizeCommitLog"]
    text = "".join(f"{name}={value}\n" for name, value in wrong.items())
    (store / "broker.conf").write_text(text)
    key = next(k for m in messages_of(store, "Topic_1") for k in m.values.get("KEYS", "").split())
    sizes = (
        "--commitlog-file-size", conf["mappedFileSizeCommitLog"],
        "--consume-queue-file-size", conf["mappedFileSizeConsumeQueue"],
    )  # fmt: skip
    time = messages_of(store, "Topic_1")[0].record.store_timestamp
    commands = (("get", 0, 0), ("tail",), ("search-time", 0, time), ("query", "--key", key))
    for name, *rest in commands:
        command = (name, store, "Topic_1", *rest)
        if name != "query":
            assert_one_line(call(*command), 2, "mappedFileSizeConsumeQueue")
        assert json_lines(call(*command, *sizes))
        other = (*sizes, "--commitlog-file-size", "4096")
        assert_one_line(call(*command, *other), 1, "commitlog")


def hostile_store(live: LiveStore) -> str:
    """A message all of whose texts want to act on a terminal; its topic."""
    topic = "T\u202e[red]\u2066"
    block = f"TAGS\x01{HOSTILE}\x02KEYS\x01{HOSTILE}\x02{HOSTILE}\x01{HOSTILE}\x02"
    live.append([Record(topic=topic.encode(), body=HOSTILE.encode(), properties=block.encode())])
    live.dispatch()
    return topic


def test_hostile_text_does_not_act_on_a_terminal(tmp_path: Path) -> None:
    """Tables and errors: nothing unprintable arrives, markup and emoji names stay text."""
    with LiveStore(tmp_path) as live:
        topic = hostile_store(live)
    commands = (
        ("get", live.root, topic, 0, 0, "--output", live.output),
        ("tail", live.root, topic, "--output", live.output),
        ("get", live.root, topic, 0, 7, "--output", live.output),
    )
    for command in commands:
        sent = reput_on_terminal(*command)
        assert {c for c in sent if not c.isprintable()} == {"\r", "\n"}
        assert "\r" not in sent.replace("\r\n", "")
    # the last command's error is no table, which 80 columns would fold
    assert r"T\u202e[red]\u2066" in sent
    for command in commands[:2]:
        shown = STYLE.sub("", reput_on_terminal(*command, term="xterm"))
        assert r"\x1b]0;owned\x07\x1b[2J[bold red]x[/]\r\n\x7f\x9b31m\u202ecod" in shown
        assert ":smile:" in shown


@pytest.mark.parametrize(
    "value",
    [
        HOSTILE, HOSTILE.encode(), b"\xff\x1b", [HOSTILE, b"\x1b"], {HOSTILE: 1}, {1: HOSTILE},
        {"a": [{HOSTILE: (HOSTILE,)}]}, Path(HOSTILE),
    ],
)  # fmt: skip
def test_hostile_values_of_any_kind_are_printable(value: object) -> None:
    """Wherever the text is in them; all that is printable in it remains."""
    shown = texts.shown(value)
    assert shown.isprintable()
    assert "[bold red]x[/]" in shown or "[bold red]" not in str(value)


def test_hostile_text_in_json_is_ascii_and_whole(tmp_path: Path, call: Call) -> None:
    """Only printable ASCII; a parser has every character again, and bodies every byte."""
    with LiveStore(tmp_path) as live:
        topic = hostile_store(live)
        live.append([Record(topic=topic.encode(), body=bytes(range(256)))])
        live.dispatch()
    done = call("tail", live.root, topic, "--output", live.output)
    assert all(" " <= c <= "~" for c in done.stdout.replace("\n", ""))
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["topic"] == topic
    assert first["body"] == first["tags"] == first["properties"][HOSTILE] == HOSTILE
    assert second["body"].startswith("\x00\x01") and second["body"].endswith("\\xfe\\xff")
    (found,) = json_lines(
        call("get", live.root, topic, 0, 1, "--output", live.output, "--body", "hex")
    )
    assert found["body"] == bytes(range(256)).hex()


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """Messages appear once they are dispatched, in new queues too, where they pass the filter."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"A", b"B", b"A")
        live.dispatch()
        command = [
            *REPUT, "tail", str(live.root), "T", "--output", str(live.output), "--follow",
            "--tag", "A", "--count", "1",
        ]  # fmt: skip
        with ChildRun(tmp_path / "log", command) as tail:

            def wait_for_lines(number: int) -> list[dict[str, Any]]:
                tail.wait_until(lambda: tail.stdout.count("\n") >= number)
                return [json.loads(line) for line in tail.stdout.splitlines()]

            assert [line["queue_offset"] for line in wait_for_lines(1)] == [2]
            live.append_tags(b"B", b"A")
            live.dispatch()
            assert [line["queue_offset"] for line in wait_for_lines(2)] == [2, 4]
            tags = b"TAGS\x01A\x02"
            for queue_id in (7, 0):
                live.append([Record(topic=b"T", queue_id=queue_id, properties=tags)])
            live.dispatch()
            assert places(wait_for_lines(4)[2:]) == [(7, 0), (0, 5)]
            tail.process.send_signal(number)
            assert tail.wait() == 0
            assert len(wait_for_lines(4)) == 4


def test_tail_says_that_it_waits_for_a_topic(tmp_path: Path) -> None:
    """Once; what comes is printed."""
    with LiveStore(tmp_path) as live:
        live.append([Record(topic=b"Other")])
        live.dispatch()
        command = [
            *REPUT, "tail", str(live.root), "T", "--output", str(live.output), "--follow",
        ]  # fmt: skip
        with ChildRun(tmp_path / "log", command) as tail:
            note = f" info    no queue of topic T in {live.output} yet; waiting for one\n"
            tail.wait_until(lambda: tail.stderr.endswith(note))
            live.append_tags(b"A")
            live.dispatch()
            tail.wait_until(lambda: tail.stdout.endswith("\n"))
            assert json.loads(tail.stdout)["tags"] == "A"
            assert tail.stop() == 0
            assert tail.stderr.endswith(note)
            assert tail.stderr.count("\n") == 1


def test_a_damaged_message_is_said(golden: Callable[[str], Path], call: Call) -> None:
    """``get`` fails with its place; ``tail`` names it and goes on."""
    store = golden("broker")
    stored = messages_of(store, "Orders")
    victim = stored[-2]
    offset = victim.record.physical_offset
    destroy(store, [victim.record])
    done = call("get", store, "Orders", victim.record.queue_id, victim.queue_offset)
    assert_one_line(done, 1, str(offset), "damaged", "reput inspect record")
    done = call("tail", store, "Orders", "--count", 3)
    assert done.returncode == 0
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert places(found) == plain_places([stored[-3], stored[-1]])
    assert f"damaged record at physical offset {offset}" in done.stderr


def test_an_unknown_topic_is_a_wrong_call(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """The name that was meant, in every command with topics, in place of an empty answer; nothing
    is written. A rebuild has a test of its own."""
    store, out = golden("broker"), tmp_path / "out"
    for done in (
        call("get", store, "Order", 0, 0),
        call("tail", store, "Order"),
        call("query", store, "Order", "--key", "k"),
        call("search-time", store, "Order", 0, "1h"),
        call("inspect", "queue", store, "Order", 0),
        call("status", store, "-t", "Orders", "-t", "Order"),
        call("export", store, out, "-t", "Orders", "-t", "Order"),
        call("export", store, out, "-t", "Orders?"),
    ):
        assert_one_line(done, 2, "(did you mean Orders?); ")
    shutil.rmtree(store / "consumequeue")
    (store / "config" / "topics.json").unlink()
    assert_one_line(call("tail", store, "Orders"), 2, "build queues with reput run")
    assert list(tmp_path.iterdir()) == [store]


def test_a_topic_without_messages_in_the_range_is_no_error(
    golden: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    """The store knows it; patterns match what the store knows, too."""
    store = golden("broker")
    for number, topic in enumerate(("Orders", "Order*")):
        out = tmp_path / str(number)
        done = call("export", store, out, "-t", topic, "--to-offset", 0, "--json")
        assert json_lines(done)[-1]["rows"] == 0


def test_what_is_not_there_and_what_is_called_wrongly(
    golden: Callable[[str], Path], call: Call
) -> None:
    """One line each; 1 for not found, 2 for a wrong call."""
    store = golden("plain")
    assert_one_line(call("get", store, "Topic_1", 0, 10**9), 1, "no message", "which has [0, ")
    assert_one_line(call("search-time", store, "Topic_1", 99, 0), 1, "no queue 99")
    assert_one_line(call("query", store, "Topic_1", "--key", "none"), 1, "no message", "none")
    assert_one_line(call("get", store / "index", "Topic_1", 0, 0), 1, "no commitlog in")
    assert_one_line(call("get", store, "\udcff", 0, 0), 2, "UTF-8")
    assert_one_line(call("query", store, "Topic_1"), 2, "--key or --unique-key")
    for both in (("--tag", "A", "--sql", "a = 1"), ("--sql", "a = 1", "--group", "g")):
        assert_one_line(call("tail", store, "Topic_1", *both), 2, "one of --tag, --sql and --group")
    assert_one_line(call("tail", store, "Topic_1", "--group", "g"), 1, "no expression", "group g")
    assert_one_line(call("tail", store, "Topic_1", "--sql", "a >"), 2, "SQL92 expression")
    assert_one_line(call("tail", store, "Topic_1", "--from-time", "noon"), 2, "--from-time", "noon")
    assert call("get", store, "Topic_1", 0, "x").returncode == 2


def test_tail_shows_the_offsets_of_the_queue_that_it_reads(
    golden: Callable[[str], Path], call: Call
) -> None:
    """A light queue has other ones than its messages' own queues, and ``get`` finds the same
    messages there."""
    store, topic = golden("lmq"), "%LMQ%dev0"
    stored = messages_of(store, topic)[-5:]
    found = json_lines(call("tail", store, topic, "--count", 5))
    assert [row["queue_offset"] for row in found] == [one.queue_offset for one in stored]
    assert any(one.queue_offset != one.record.queue_offset for one in stored)
    for row in found:
        assert json_object(call("get", store, topic, 0, row["queue_offset"], "--json")) == row
