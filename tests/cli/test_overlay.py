"""``overlay`` and ``dlq``: what they print of an overlay that a server has left, and write."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput.overlay.drain import contents, resends
from reput.overlay.drain.drainjournal import DrainJournal, DrainNotes
from reput.store.errors import UsageError
from reput.store.log.appender import LogAppender
from reput.store.log.record import Record
from reput.store.state.consumeroffset import Offsets
from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call, json_lines, json_object, reput
from tests.support.golden import tree
from tests.support.left_overlay import DEAD, GROUP, MAX, RETRIES, SECONDS, LeftOverlay, left_overlay
from tests.support.operations import before_operations
from tests.support.processes import became, is_killed_at
from tests.support.remoting import Client, served_stores

WITHOUT_SERVER = "stop that `reput serve --overlay` first"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LeftOverlay:
    """One for the tests that change nothing."""
    return left_overlay(tmp_path_factory.mktemp("left"))


@pytest.fixture
def left(shared: LeftOverlay, tmp_path: Path) -> LeftOverlay:
    """A copy."""
    shutil.copytree(shared.output.parent, tmp_path, symlinks=True, dirs_exist_ok=True)
    return LeftOverlay(tmp_path / "output", shared.waiting, shared.delivered, shared.dead)


def answer(call: Call, *words: object) -> dict[str, Any]:
    return json_object(call(*words, "--json"))


def resent(left: LeftOverlay) -> list[Record]:
    """Records of the retry topic that were made from a dead letter."""
    records = left.records
    letters = {one.physical_offset + 1 for one in records if one.topic == DEAD.encode()}
    return [
        one
        for one in records
        if one.topic == RETRIES.encode() and one.prepared_transaction_offset in letters
    ]


def test_status_counts_what_is_left(shared: LeftOverlay, call: Call) -> None:
    """By group and level; nothing is written."""
    before = tree(shared.output)
    found = answer(call, "overlay", "status", shared.output)
    (group,) = found["groups"]
    counts = {"waiting": 5, "delivered": 4, "dead": 4, "dead_sent_again": 0}
    assert {name: group[name] for name in counts} == counts
    assert (group["group"], group["topic"]) == (GROUP, None)
    (level,) = group["levels"]
    assert (level["level"], level["messages"]) == (4, 5)
    due = min(one.store_timestamp for one in shared.records if one.topic == b"SCHEDULE_TOPIC_XXXX"
              and one.queue_id == 3) + 3_600_000  # fmt: skip
    assert level["next_due"] == group["next_due"] == due
    end = shared.records[-1].physical_offset + shared.records[-1].total_size
    assert (found["log_begin"], found["log_end"], found["dispatched"]) == (0, end, end)
    assert (found["server_pid"], found["drained"], found["left_out"]) == (None, 0, {})
    assert tree(shared.output) == before


def test_status_for_people(shared: LeftOverlay) -> None:
    done = reput("overlay", "status", shared.output)
    assert done.returncode == 0
    assert "group  waiting  not consumed  dead  sent again  next due" in done.stdout
    assert "server              none runs" in done.stdout


def test_export_prints_each_message(shared: LeftOverlay, call: Call) -> None:
    """With its group, its topic, and the id of its first copy."""
    found = json_lines(call("overlay", "export", shared.output))
    for kind in ("waiting", "delivered", "dead"):
        entries = [one for one in found if one["kind"] == kind]
        expected = Counter(getattr(shared, kind))
        assert Counter((one["attempts"], one["body"].encode()) for one in entries) == expected
        assert {one["group"] for one in entries} == {GROUP}
        assert all((one["due"] is not None) == (kind == "waiting") for one in entries)
    named = [one for one in found if one["body"] != "alike"]
    assert {one["origin_topic"] for one in named} == {"Topic"}
    assert all(len(one["origin_message_id"]) == 32 for one in named)
    assert json_lines(call("overlay", "export", shared.output, "--group", "none")) == []


def test_dead_letters_are_listed_and_shown(shared: LeftOverlay, call: Call) -> None:
    """By group and time, the last ones; one by its offset or an id."""
    found = answer(call, "dlq", shared.output)["dead_letters"]
    assert [(one["attempts"], one["queue_offset"]) for one in found] == [(3, n) for n in range(4)]
    last = answer(call, "dlq", "list", shared.output, "-n", "1")
    assert (last["dead_letters"], last["earlier"]) == (found[-1:], 3)
    second = found[1]["store_timestamp"]
    later = answer(call, "dlq", "list", shared.output, "--from-time", str(second))
    assert later["dead_letters"] == [one for one in found if one["store_timestamp"] >= second]
    earlier = answer(call, "dlq", "list", shared.output, "--to-time", str(second))
    assert earlier["dead_letters"] == [one for one in found if one["store_timestamp"] < second]
    assert answer(call, "dlq", "list", shared.output, "--group", "none")["dead_letters"] == []
    for words in (
        ("2",), ("--message-id", found[2]["message_id"]), ("--message-id", found[2]["unique_key"]),
        ("--message-id", found[2]["origin_message_id"]),
    ):  # fmt: skip
        (letter,) = json_lines(call("dlq", "show", shared.output, GROUP, *words))
        assert (letter["topic"], letter["queue_offset"], letter["body"]) == (DEAD, 2, "message 8")


def test_the_last_of_several_with_one_key_is_shown(left: LeftOverlay, call: Call) -> None:
    """A group that got a dead letter again has failed with it again."""
    first = next(one for one in left.records if one.topic == DEAD.encode())
    with LogAppender(left.root) as appender:
        last = appender.append(replace(first, body=b"once more", store_timestamp=0))
    key = first.property_map[b"UNIQ_KEY"].decode()
    (letter,) = json_lines(call("dlq", "show", left.output, GROUP, "--message-id", key))
    assert (letter["queue_offset"], letter["body"]) == (last.queue_offset, "once more")


def test_a_dead_letter_is_sent_again_once(left: LeftOverlay, call: Call) -> None:
    """It has no attempts then, and its group gets it; without --apply nothing is written."""
    before = tree(left.output)
    planned = answer(call, "dlq", "resend", left.output, GROUP, "--offset", "1")
    assert (planned["applied"], planned["offsets"]) == (False, [1])
    assert tree(left.output) == before
    words = ("dlq", "resend", left.output, GROUP, "--offset", "1", "--apply")
    assert answer(call, *words)["offsets"] == [1]
    again = answer(call, *words)
    assert (again["offsets"], again["sent_before"]) == ([], 1)
    (one,) = resent(left)
    assert (one.reconsume_times, one.queue_id, one.body) == (0, 0, b"message 5")
    names = set(one.property_map)
    assert {b"UNIQ_KEY", b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"TAGS", b"PGROUP"} <= names
    assert not names & {b"DELAY", b"REAL_TOPIC", b"TRAN_MSG"}
    (group,) = answer(call, "overlay", "status", left.output)["groups"]
    assert (group["dead"], group["dead_sent_again"], group["delivered"]) == (4, 1, 5)
    assert answer(call, "verify", left.root)["units"] == len(left.records)
    store = left.output.parent / "store"
    queue = {"consumerGroup": GROUP, "topic": RETRIES, "queueId": 0}
    with served_stores([(store, left.output)], overlay=True) as ports, Client(ports[1]) as twin:
        assert became(lambda: twin.ask(MAX, queue).ext == {"offset": "7"}, SECONDS)
    assert answer(call, *words)["sent_before"] == 1


@pytest.mark.parametrize("kill", range(1, 20, 2))
def test_kills_send_each_dead_letter_again_once(
    left: LeftOverlay, call: Call, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    """Whenever the command ends, also between two portions, the next one sends the rest."""
    monkeypatch.setattr(resends, "APPENDED_AT_ONCE", len(left.dead) - 1)
    words = ("dlq", "resend", left.output, GROUP, "--all", "--apply")
    assert is_killed_at(kill, lambda: call(*words))
    assert call(*words).returncode == 0
    assert Counter(one.body for one in resent(left)) == {body: 1 for _, body in left.dead}


def test_what_is_sent_again_is_durable_before_it_is_in_a_queue(
    left: LeftOverlay, call: Call
) -> None:
    """A power cut would leave a consumer's position beyond the log's end otherwise."""
    done: list[tuple[str, str]] = []
    with before_operations(lambda operation, path: done.append((operation, path))):
        assert call("dlq", "resend", left.output, GROUP, "--all", "--apply").returncode == 0
    queued = next(at for at, (_, path) in enumerate(done) if "/consumequeue/" in path)
    of_log = [operation for operation, path in done[:queued] if "/commitlog/" in path]
    assert "pwrite" in of_log
    assert of_log[-1] == "sync"


def test_nothing_is_sent_beside_a_server(left: LeftOverlay) -> None:
    """The line names the process; status and list are answered."""
    store, before = left.output.parent / "store", len(left.records)
    with served_stores([(store, left.output)], overlay=True):
        for words in (
            ("dlq", "resend", left.output, GROUP, "--all", "--apply"),
            ("overlay", "drain", left.output, "--broker", "127.0.0.1:1", "--apply"),
        ):
            done = reput(*words)
            assert done.returncode == 1
            assert f"process {os.getpid()} serves {left.root}" in done.stderr
            assert WITHOUT_SERVER in done.stderr
        found = json.loads(reput("overlay", "status", left.output, "--json").stdout)
        assert (found["server_pid"], found["groups"][0]["dead"]) == (os.getpid(), 4)
        assert reput("dlq", left.output).returncode == 0
    assert len(left.records) == before


@pytest.mark.parametrize(
    "words",
    [("dlq", "resend", "{0}", GROUP, "--all", "--apply"),
     ("overlay", "drain", "{0}", "--broker", "127.0.0.1:1", "--apply")],
    ids=str,
)  # fmt: skip
def test_nobody_writes_between_the_reading_and_the_sending(
    left: LeftOverlay, call: Call, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """A dead letter that another process sent again meanwhile would come twice."""
    fill, others = contents._fill, []

    def filled(found: contents.Contents, committed: Offsets) -> None:
        fill(found, committed)
        others.append(reput("dlq", "resend", left.output, GROUP, "--all", "--apply"))

    monkeypatch.setattr(contents, "_fill", filled)
    call(*(word.format(left.output) for word in words))
    (other,) = others
    assert_one_line(other, 1, f"process {os.getpid()} serves {left.root}")
    again = {body: 1 for _, body in left.dead} if words[0] == "dlq" else {}
    assert Counter(one.body for one in resent(left)) == again


def test_a_drained_overlay_is_not_served(left: LeftOverlay, call: Call) -> None:
    """Its consumers would get twice what the broker delivers now; the rest goes there, too."""
    target = "127.0.0.1:10911"
    with DrainJournal(DrainNotes(left.root), left.root, target) as journal:
        journal.begin([(0, 0)])
    store = left.output.parent / "store"
    line = f"messages of {left.root} were sent to the broker {target}"
    with pytest.raises(UsageError, match=line), served_stores([(store, left.output)], overlay=True):
        pass
    done = call("dlq", "resend", left.output, GROUP, "--all", "--apply")
    assert_one_line(done, 2, line, "move the directory away once `reput overlay drain` has")
    done = call("overlay", "drain", left.output, "--broker", "127.0.0.1:1", "--apply")
    assert_one_line(
        done, 2, f"went to {target} already: send the rest there, with that as --broker"
    )
    assert answer(call, "overlay", "status", left.output)["drained_to"] == target


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("overlay", "status", "{0}/none"), 1, "has no overlay: `reput serve --overlay` makes one"),
        (("overlay", "drain", "{0}"), 2, "give --broker or --namesrv, one of them"),
        (("overlay", "drain", "{0}", "--broker", "x"), 2, "--broker is 'x'; it must be HOST:PORT"),
        (("overlay", "drain", "{0}", "--broker", "127.0.0.1:1", "--apply"), 1,
         "run the same command again once it does"),
        (("overlay", "drain", "{0}", "--namesrv", "127.0.0.1:1"), 1, "127.0.0.1:1 does not answer"),
        (("dlq", "show", "{0}", GROUP), 2, "give OFFSET or --message-id, one of them"),
        (("dlq", "show", "{0}", GROUP, "9"), 1,
         "has no dead letter with offset 9: it has 4, which `reput dlq list` shows"),
        (("dlq", "show", "{0}", "other", "--message-id", "K"), 1, "no dead letter with id K"),
        (("dlq", "resend", "{0}", GROUP), 2, "give --offset or --message-id"),
        (("dlq", "resend", "{0}", GROUP, "--all", "--offset", "1"), 2, "or --all"),
        (("dlq", "resend", "{0}", GROUP, "--offset", "1", "--offset", "7"), 1, "with offset 7"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_calls(
    left: LeftOverlay, call: Call, words: tuple[str, ...], code: int, line: str
) -> None:
    """One line says what to do."""
    done = call(*(word.format(left.output) for word in words))
    assert_one_line(done, code, line)
