"""Committed offsets: where groups begin, what survives a kill, and RocketMQ's file."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from reput.serving import offsets, offsetwriter
from reput.serving.config import FirstPosition
from reput.store import configjson
from reput.store.brokerlock import BrokerLock
from reput.store.errors import NoSpaceError, OwnershipError, StoreError, SyncError
from reput.store.files import CONSUMER_OFFSET_FILE
from reput.store.state.consumeroffset import ConsumerOffsetFile, Offsets, TopicGroup, read_committed
from tests.interop.clients import serving
from tests.readers.stores import QUEUE_FILE_SIZE, SmallStore
from tests.support.golden import unpack_golden
from tests.support.processes import became
from tests.support.remoting import Client, heartbeat, served

QUERY, UPDATE, SEARCH, MAX, MIN, EARLIEST, STATS, PROGRESS, CONFIG, CLONE = (
    14, 15, 29, 30, 31, 32, 202, 208, 351, 314,
)  # fmt: skip
NOT_FOUND = 22
KILLS, MANY_KILLS, SLOW_KILLS = 2, 200, 20
KEY = TopicGroup("Topic", "group")

# RocketMQ 5.3.3 wrote this one
BROKERS_FILE = """{
	"dataVersion":{
		"counter":3,
		"stateVersion":0,
		"timestamp":1795331300000
	},
	"groupTopicMap":{},
	"offsetTable":{
		"Orders@group":{0:10,1:20
		},
		"%RETRY%group@group":{0:0
		}
	}
}"""


def place(queue_id: int = 0, **more: object) -> dict[str, object]:
    return {"consumerGroup": "group", "topic": "Topic", "queueId": queue_id, **more}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of one topic with two queues of five messages."""
    small = SmallStore(tmp_path / "store")
    for number in range(5):
        for queue_id in (0, 1):
            small.append(queue_id=queue_id, store_timestamp=1000 + number)
    return small.write()


@pytest.fixture
def output(store: Path, tmp_path: Path) -> Path:
    """An output that has the store's queues, but no offsets."""
    shutil.copytree(store / "consumequeue", tmp_path / "output" / "consumequeue")
    return tmp_path / "output"


def await_committed(output: Path, expected: dict[int, int]) -> None:
    """Wait until a reader of file and journals finds the group's offsets."""
    assert became(lambda: (read_committed(output) or {}).get(KEY) == expected, 60)


def table(output: Path) -> object:
    document = configjson.read(output / CONSUMER_OFFSET_FILE)
    assert isinstance(document, dict)
    return document["offsetTable"]


@pytest.mark.parametrize("first", list(FirstPosition))
def test_where_a_group_begins(store: Path, first: FirstPosition) -> None:
    """A broker would answer 0; with as-asked there is no offset, and the client decides."""
    with served(store, first_position=first) as port, Client(port) as client:
        answer = client.ask(QUERY, place())
        assert answer.code == (0 if first is FirstPosition.ROCKETMQ else NOT_FOUND)
        assert answer.ext.get("offset") == ("0" if answer.code == 0 else None)
        assert client.ask(QUERY, place(setZeroIfNotFound="false")).code == NOT_FOUND
        assert client.ask(QUERY, place(7)).code == NOT_FOUND


def test_the_first_end_that_was_answered_stands(tmp_path: Path) -> None:
    """It stands until the group commits: an orderly client asks twice while messages arrive, and
    so does the member that has the queue after it."""
    small = SmallStore(tmp_path / "store")
    small.append()
    with served(small.write()) as port, Client(port) as client, Client(port) as other:
        for member, client_id in ((client, "c"), (other, "d")):
            assert member.ask(34, {}, heartbeat(client_id, "group", "Topic")).code == 0
            assert member.ask(QUERY, place()).code == NOT_FOUND
        assert client.ask(MAX, place()).ext == {"offset": "1"}
        small.append()
        small.append()
        small.write()
        while client.ask(MAX, place()).ext == {"offset": "1"}:
            pass
        assert client.ask(QUERY, place()).ext == {"offset": "1"}
        assert other.ask(MAX, place()).ext == {"offset": "1"}
        assert client.ask(QUERY, place(consumerGroup="other")).code == NOT_FOUND
        assert client.ask(UPDATE, place(commitOffset=2)).code == 0
        assert client.ask(QUERY, place()).ext == {"offset": "2"}


def test_what_a_group_that_begins_at_the_end_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says once for each group and topic that it gets nothing, and what helps. It helps,
    and a queue that a broker would not begin at 0 either is not promised so."""
    caplog.set_level(logging.INFO, "reput")
    small = SmallStore(tmp_path / "store")
    for queue_id in (0, 0, 1):
        small.append(queue_id=queue_id)
    root = small.write()

    def lines(member: Client, group: str, ends: dict[int, str]) -> list[str]:
        """The lines about a group whose member asks for queues' offsets, and then for ends."""
        caplog.clear()
        assert member.ask(34, {}, heartbeat("c", group, "Topic")).code == 0
        for queue_id, end in ends.items():
            if member.ask(QUERY, place(queue_id, consumerGroup=group)).code == NOT_FOUND:
                assert member.ask(MAX, place(queue_id)).ext == {"offset": end}
        return [line for line in caplog.messages if "begins at the end" in line]

    with served(root) as port, Client(port) as member, Client(port) as admin:
        first, second = lines(member, "late", {0: "2", 1: "1"})
        assert "queue 0 of topic Topic, offset 2, as its client asks; it gets nothing" in first
        assert "mqadmin resetOffsetByTime -g late -t Topic -s 0 moves it" in first
        assert "with `first_position=rocketmq` further groups begin there" in first
        assert second.endswith("queue 1 of topic Topic, offset 1, as its client asks")
        moved = {"topic": "Topic", "group": "late", "timestamp": 0, "isForce": True}
        assert admin.ask(222, moved).code == 0
        assert member.ask(QUERY, place(consumerGroup="late")).ext == {"offset": "0"}
    with served(root, first_position=FirstPosition.ROCKETMQ) as port, Client(port) as member:
        assert lines(member, "further", {0: "2", 1: "1"}) == []
        assert member.ask(QUERY, place(consumerGroup="further")).ext == {"offset": "0"}
    # RocketMQ's rule is for queues that begin at 0: an empty one is passed over, and of one whose
    # beginning is gone it says nothing
    later = SmallStore(tmp_path / "later")
    for number in range(QUEUE_FILE_SIZE // 20 + 1):
        later.append(queue_id=1, queue_offset=number)
    files = sorted((later.write() / "consumequeue" / "Topic" / "1").iterdir())
    files[0].unlink()
    (later.root / "consumequeue" / "Topic" / "0").mkdir()
    with served(later.root) as port, Client(port) as member:
        empty, line = lines(member, "later", {0: "0", 1: str(len(later.units[1]))})
        assert empty.endswith("offset 0, as its client asks")
        assert "resetOffsetByTime -g later" in line
        assert "first_position=" not in line


def test_questions_about_queues(store: Path) -> None:
    """Bounds, times and tables, as mqadmin and consumers request them."""
    with served(store) as port, Client(port) as client:
        assert client.ask(MAX, place()).ext == {"offset": "5"}
        assert client.ask(MIN, place()).ext == {"offset": "0"}
        assert client.ask(EARLIEST, place()).ext == {"timestamp": "1000"}
        for time_ms, offset in ((0, "0"), (1002, "2"), (9999, "5")):
            answer = client.ask(SEARCH, place(timestamp=time_ms, boundaryType="LOWER"))
            assert answer.ext == {"offset": offset}
        assert client.ask(SEARCH, place(timestamp=9999, boundaryType="UPPER")).ext["offset"] == "4"
        for code in (MAX, MIN, EARLIEST, SEARCH, CONFIG):
            assert client.ask(code, {**place(timestamp=0), "topic": "Nowhere"}).code == 17
        assert client.ask(UPDATE, place(1, commitOffset=3)).code == 0
        assert client.ask(UPDATE, place(2, commitOffset=3)).code == 1
        # a queue that clients are not told of is not looked for
        for code in (MAX, MIN, EARLIEST, SEARCH):
            assert client.ask(code, place(2, timestamp=0)).code == 1
        stats = client.ask(STATS, {"topic": "Topic"}).json["offsetTable"]
        assert [(key["queueId"], value) for key, value in stats] == [
            (n, {"lastUpdateTimestamp": 1004, "maxOffset": 5, "minOffset": 0}) for n in (0, 1)
        ]
        pairs = client.ask(PROGRESS, {"consumerGroup": "group"}).json["offsetTable"]
        found = {key["queueId"]: value for key, value in pairs}
        assert found[1] == {
            "brokerOffset": 5, "consumerOffset": 3, "lastTimestamp": 1002, "pullOffset": 3,
        }  # fmt: skip
        assert found[0]["consumerOffset"] == 0
        config = client.ask(CONFIG, {"topic": "Topic", "lo": "true"}).json
        assert (config["topicName"], config["readQueueNums"], config["perm"]) == ("Topic", 2, 4)
        # a group that is known has an empty retry topic, by which mqadmin finds it
        assert client.ask(105, {"topic": "%RETRY%group"}).json["queueDatas"][0]["perm"] == 4
        assert client.ask(105, {"topic": "%RETRY%nobody"}).code == 17
        assert client.ask(34, {}, heartbeat("a", "member", "Topic")).code == 0
        assert client.ask(206).json["topicList"] == ["%RETRY%group", "%RETRY%member", "Topic"]


def test_a_queue_beyond_one_without_messages_is_reached(tmp_path: Path) -> None:
    """Clients pull the queues 0 to readQueueNums - 1."""
    small = SmallStore(tmp_path / "store")
    small.append(queue_id=3)
    with served(small.write()) as port, Client(port) as client:
        assert client.ask(CONFIG, {"topic": "Topic", "lo": "true"}).json["readQueueNums"] == 4
        assert client.ask(MAX, place(3)).ext == {"offset": "1"}


def test_offsets_are_taken_over_and_kept(store: Path, output: Path) -> None:
    """They are read from the store's file once, and then kept in the output's, which a broker can
    read."""
    (store / "config").mkdir()
    (store / CONSUMER_OFFSET_FILE).write_text(BROKERS_FILE)
    expected = {"Orders@group": {"0": 10, "1": 20}, "%RETRY%group@group": {"0": 0}}
    with served(store, output) as port, Client(port) as client:
        assert table(output) == expected
        assert client.ask(UPDATE, place(commitOffset=4)).code == 0
        assert client.ask(UPDATE, place(commitOffset=3)).code == 0
    assert table(output) == {**expected, "Topic@group": {"0": 3}}
    assert (store / CONSUMER_OFFSET_FILE).read_text() == BROKERS_FILE
    (store / CONSUMER_OFFSET_FILE).unlink()
    with served(store, output) as port, Client(port) as client:
        assert client.ask(QUERY, place()).ext == {"offset": "3"}


def test_rocketmqs_own_file_is_read(tmp_path: Path) -> None:
    """The file of golden store broker is written again with the same offsets."""
    store = unpack_golden("broker", tmp_path)
    before = table(store)
    with served(store):
        pass
    assert table(store) == before


def test_a_file_that_is_none_stops_the_start(store: Path) -> None:
    """Offsets are never dropped in silence. A store whose broker runs is not served either."""
    (store / "config").mkdir()
    for text in ("{", "[]", '{"offsetTable":{"a@b":{"0":"x"}}}', '{"offsetTable":{"a@b":[]}}'):
        (store / CONSUMER_OFFSET_FILE).write_text(text)
        with pytest.raises(StoreError, match=r"consumerOffset\.json"), served(store):
            pass
    program = (
        "import sys; from pathlib import Path\n"
        "from reput.store.brokerlock import BrokerLock\n"
        f"with BrokerLock(Path({str(store)!r})): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(OwnershipError, match="`output=DIR`"), served(store):
            pass
        holder.communicate(b"")
    with BrokerLock(store):
        pass


def test_a_slow_sync_keeps_no_commit_from_the_journal(
    store: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would leave the commit in the journal, although the disk has not synced it yet."""
    is_slow, may_end = threading.Event(), threading.Event()
    sync = ConsumerOffsetFile.sync

    def slow(file: ConsumerOffsetFile) -> None:
        is_slow.set()
        assert may_end.wait(60)
        sync(file)

    monkeypatch.setattr(ConsumerOffsetFile, "sync", slow)
    with served(store, output) as port, Client(port) as client:
        assert client.ask(UPDATE, place(commitOffset=1)).code == 0
        assert is_slow.wait(60)
        assert client.ask(UPDATE, place(commitOffset=2)).code == 0
        try:
            await_committed(output, {0: 2})
        finally:
            may_end.set()


def test_commits_do_not_wait_while_the_file_is_replaced(
    store: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would leave them in a journal, although the file is still being written."""
    is_slow, may_end = threading.Event(), threading.Event()
    finish = ConsumerOffsetFile.finish_replacing

    def slow(file: ConsumerOffsetFile, data: bytes) -> None:
        if threading.current_thread().name.startswith("reput-replace"):
            is_slow.set()
            assert may_end.wait(60)
        finish(file, data)

    monkeypatch.setattr(ConsumerOffsetFile, "finish_replacing", slow)
    monkeypatch.setattr(offsetwriter, "REPLACE_SECONDS", 0.1)
    with served(store, output) as port, Client(port) as client:
        assert client.ask(UPDATE, place(commitOffset=1)).code == 0
        assert is_slow.wait(60)
        try:
            for offset in (2, 3):
                assert client.ask(UPDATE, place(commitOffset=offset)).code == 0
                await_committed(output, {0: offset})
            assert table(output) == {}
        finally:
            may_end.set()
        deadline = time.monotonic() + 60
        while table(output) != {"Topic@group": {"0": 3}}:
            assert time.monotonic() < deadline
            client.ask(UPDATE, place(commitOffset=3))
    assert read_committed(output) == {KEY: {0: 3}}


def test_commits_that_could_not_be_written_are_written_later(
    store: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client has to commit them again, and a newer commit of the same queue counts."""
    begun, may_fail = SimpleQueue[Offsets](), threading.Semaphore(0)
    write, failures = ConsumerOffsetFile.write, iter(range(2))

    def failing(file: ConsumerOffsetFile, commits: Offsets) -> None:
        if next(failures, None) is not None:
            begun.put(commits)
            assert may_fail.acquire(timeout=60)
            raise NoSpaceError("no space for the journal")
        write(file, commits)

    monkeypatch.setattr(ConsumerOffsetFile, "write", failing)
    monkeypatch.setattr(offsetwriter, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(offsetwriter, "REPLACE_SECONDS", 3600.0)
    with served(store, output) as port, Client(port) as client:
        assert client.ask(UPDATE, place(0, commitOffset=1)).code == 0
        assert begun.get(timeout=60) == {KEY: {0: 1}}
        assert client.ask(UPDATE, place(1, commitOffset=1)).code == 0
        may_fail.release()
        assert begun.get(timeout=60) == {KEY: {0: 1, 1: 1}}
        assert client.ask(UPDATE, place(1, commitOffset=2)).code == 0
        may_fail.release()
        await_committed(output, {0: 1, 1: 2})


@pytest.mark.parametrize("work", ["write", "begin_replacing", "finish_replacing"])
def test_a_failed_sync_ends_the_server_and_a_full_disk_does_not(
    store: Path, output: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """After a failed fsync nobody knows what is durable: only the next start finds out."""
    errors: list[Exception] = [NoSpaceError("no space"), SyncError("cannot sync")]
    done = getattr(ConsumerOffsetFile, work)

    def failing(file: ConsumerOffsetFile, *arguments: object) -> object:
        if threading.current_thread() is not threading.main_thread() and errors:
            raise errors.pop(0)
        return done(file, *arguments)

    monkeypatch.setattr(ConsumerOffsetFile, work, failing)
    monkeypatch.setattr(offsetwriter, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(offsetwriter, "REPLACE_SECONDS", 0.1)
    with (
        pytest.raises(SyncError, match="cannot sync"),
        served(store, output) as port,
        Client(port) as client,
    ):
        assert client.ask(UPDATE, place(commitOffset=1)).code == 0
        assert client.is_closed()
    assert errors == []
    with served(store, output) as port, Client(port) as client:
        assert client.ask(QUERY, place()).ext == {"offset": "1"}


def test_a_flood_of_groups_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file stays bounded, existing groups can commit, and one line is logged."""
    monkeypatch.setattr(offsets, "MAX_TOPIC_GROUPS", 2)
    with served(store) as port, Client(port) as client:
        for name, code in (("a", 0), ("b", 0), ("c", 2), ("d", 2), ("a", 0)):
            answer = client.ask(UPDATE, place(consumerGroup=name, commitOffset=3))
            assert answer.code == code
        assert client.ask(QUERY, place(consumerGroup="c")).code == NOT_FOUND
        names = {"srcGroup": "a", "destGroup": "e", "topic": "", "offline": "true"}
        assert client.ask(CLONE, names).code == 2
    assert set(read_committed(store) or {}) == {TopicGroup("Topic", name) for name in "ab"}
    assert caplog.text.count("there are offsets of 2 pairs") == 1


def test_offsets_that_find_no_room_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is given another one's offsets in two topics, and there is room in one of them."""
    monkeypatch.setattr(offsets, "MAX_TOPIC_GROUPS", 3)
    small = SmallStore(tmp_path / "store")
    small.append()
    root = small.write()
    shutil.copytree(root / "consumequeue" / "Topic", root / "consumequeue" / "Zoo")
    with served(root) as port, Client(port) as client:
        for name, topic, offset in (("a", "Topic", 3), ("a", "Zoo", 4), ("b", "Topic", 1)):
            commit = place(consumerGroup=name, topic=topic, commitOffset=offset)
            assert client.ask(UPDATE, commit).code == 0
        names = {"srcGroup": "a", "destGroup": "b", "topic": "", "offline": "true"}
        assert client.ask(CLONE, names).code == 2
    committed = read_committed(root) or {}
    assert committed[KEY._replace(group="b")] == {0: 1}
    assert len(committed) == 3


def check_kills(
    store: Path,
    output: Path,
    seed: int,
    rounds: int,
    durable_seconds: float,
    longest_seconds: float = 0.8,
) -> None:
    """Kill a server again and again while a client commits."""
    rng, committed = random.Random(seed), 0
    for _ in range(rounds):
        durable = 0
        with serving(store, "--output", output, exit_code=-signal.SIGKILL) as server:
            with Client(int(server.namesrv.rpartition(":")[2])) as client:
                answer = client.ask(QUERY, place())
                assert int(answer.ext.get("offset", 0)) >= committed - 1
                ends = time.monotonic() + durable_seconds + rng.uniform(0.1, longest_seconds)
                sent: list[tuple[float, int]] = []
                while (now := time.monotonic()) < ends:
                    committed += 1
                    assert client.ask(UPDATE, place(commitOffset=committed)).code == 0
                    sent.append((now, committed))
                killed = time.monotonic()
                server.process.kill()
                durable = max(n for at, n in sent if at < killed - durable_seconds)
            server.process.wait()
        with served(store, output) as port, Client(port) as client:
            found = int(client.ask(QUERY, place()).ext["offset"])
        assert durable <= found <= committed
        committed = found


@pytest.mark.extended
def test_commits_survive_a_kill(store: Path, output: Path, seed: int) -> None:
    """After two kills, all commits older than two seconds are there, however busy the machine
    is."""
    check_kills(store, output, seed, KILLS, 2.0)


@pytest.mark.slow
def test_commits_survive_many_kills(store: Path, output: Path, seed: int) -> None:
    """After each of two hundred kills, all commits older than 200 ms are there."""
    check_kills(store, output, seed, MANY_KILLS, 0.2)


@pytest.mark.slow
def test_commits_survive_kills_on_a_slow_disk(
    store: Path, output: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync takes a second, so that many kills hit a replacement of the file."""
    place = tmp_path / "slow"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import os, time\n"
        "sync = os.fdatasync\n"
        "os.fdatasync = lambda fd: (time.sleep(1), sync(fd))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(place))
    check_kills(store, output, seed, SLOW_KILLS, 0.2, longest_seconds=9.0)
