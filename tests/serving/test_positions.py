"""Committed offsets: where groups begin, what survives a kill, and RocketMQ's file."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.offsetfile import OFFSET_FILE, SERVE_DIRECTORY, OffsetFile
from serving.positions import FirstPosition
from store import configjson
from store.errors import OwnershipError, UsageError
from store.state.brokerlock import BrokerLock
from tests.interop.clients import serving
from tests.readers.stores import SmallStore
from tests.support.golden import unpack_golden
from tests.support.remoting import Client, heartbeat, served

QUERY, UPDATE, SEARCH, MAX, MIN, EARLIEST, STATS, PROGRESS, CONFIG = (
    14, 15, 29, 30, 31, 32, 202, 208, 351,
)  # fmt: skip
NOT_FOUND = 22
KILLS, MANY_KILLS = 4, 200
DURABLE_SECONDS = 0.2

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


def table(output: Path) -> object:
    document = configjson.read(output / OFFSET_FILE)
    assert isinstance(document, dict)
    return document["offsetTable"]


@pytest.mark.parametrize("first", list(FirstPosition))
def test_where_a_group_begins(store: Path, first: FirstPosition) -> None:
    """A broker would send it to 0; as asked, the client decides."""
    with served(store, first_position=first) as port, Client(port) as client:
        answer = client.ask(QUERY, place())
        assert answer.code == (0 if first is FirstPosition.ROCKETMQ else NOT_FOUND)
        assert answer.ext.get("offset") == ("0" if answer.code == 0 else None)
        assert client.ask(QUERY, place(setZeroIfNotFound="false")).code == NOT_FOUND
        assert client.ask(QUERY, place(7)).code == NOT_FOUND


def test_the_first_end_that_was_answered_stands(tmp_path: Path) -> None:
    """Until the group commits: an orderly client asks twice, and messages arrive in between."""
    small = SmallStore(tmp_path / "store")
    small.append()
    with served(small.write()) as port, Client(port) as client:
        assert client.ask(34, {}, heartbeat("c", "group", "Topic")).code == 0
        assert client.ask(QUERY, place()).code == NOT_FOUND
        assert client.ask(MAX, place()).ext == {"offset": "1"}
        small.append()
        small.append()
        small.write()
        while client.ask(MAX, place()).ext == {"offset": "1"}:
            pass
        assert client.ask(QUERY, place()).ext == {"offset": "1"}
        assert client.ask(QUERY, place(consumerGroup="other")).code == NOT_FOUND
        assert client.ask(UPDATE, place(commitOffset=2)).code == 0
        assert client.ask(QUERY, place()).ext == {"offset": "2"}


def test_questions_about_queues(store: Path) -> None:
    """Bounds, times and tables, as mqadmin and consumers ask for them."""
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


def test_offsets_are_taken_over_and_kept(store: Path, tmp_path: Path) -> None:
    """From the store's file, once; then in the output's, which a broker reads."""
    (store / "config").mkdir()
    (store / OFFSET_FILE).write_text(BROKERS_FILE)
    output = tmp_path / "output"
    shutil.copytree(store / "consumequeue", output / "consumequeue")
    expected = {"Orders@group": {"0": 10, "1": 20}, "%RETRY%group@group": {"0": 0}}
    with served(store, output) as port, Client(port) as client:
        assert table(output) == expected
        assert client.ask(UPDATE, place(commitOffset=4)).code == 0
        assert client.ask(UPDATE, place(commitOffset=3)).code == 0
    assert table(output) == {**expected, "Topic@group": {"0": 3}}
    assert (store / OFFSET_FILE).read_text() == BROKERS_FILE
    (store / OFFSET_FILE).unlink()
    with served(store, output) as port, Client(port) as client:
        assert client.ask(QUERY, place()).ext == {"offset": "3"}


def test_rocketmqs_own_file_is_read(tmp_path: Path) -> None:
    """Golden store broker's: it is written again with the same offsets."""
    store = unpack_golden("broker", tmp_path)
    before = table(store)
    OffsetFile(store).open(store / OFFSET_FILE)
    assert table(store) == before


def test_a_file_that_is_none_stops_the_start(store: Path) -> None:
    """Offsets are never forgotten in silence; nor is a store served whose broker runs."""
    (store / "config").mkdir()
    for text in ("{", "[]", '{"offsetTable":{"a@b":{"0":"x"}}}', '{"offsetTable":{"a@b":[]}}'):
        (store / OFFSET_FILE).write_text(text)
        with pytest.raises(UsageError, match=r"consumerOffset\.json"), served(store):
            pass
    program = (
        "import sys; from store.state.brokerlock import BrokerLock; from pathlib import Path\n"
        f"with BrokerLock(Path({str(store)!r})): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(OwnershipError, match="--output"), served(store):
            pass
        holder.communicate(b"")
    with BrokerLock(store):
        pass


class TestJournal:
    """The file and the journal beside it."""

    @pytest.fixture
    def output(self, tmp_path: Path) -> Iterator[Path]:
        """An output with two commits that only the journal has."""
        file = OffsetFile(tmp_path)
        assert file.open(tmp_path / "nothing") == {}
        file.append({"T@g": {0: 1}})
        file.append({"T@g": {0: 2, 1: 7}})
        file.close()
        yield tmp_path

    @staticmethod
    def opened(output: Path) -> object:
        file = OffsetFile(output)
        try:
            return file.open(output / "nothing")
        finally:
            file.close()

    def test_a_journal_is_applied(self, output: Path) -> None:
        """And written into the file."""
        assert table(output) == {}
        assert self.opened(output) == {"T@g": {0: 2, 1: 7}}
        assert table(output) == {"T@g": {"0": 2, "1": 7}}

    def test_a_torn_line_ends_it(self, output: Path) -> None:
        """At every byte: what was before it counts."""
        journal = output / SERVE_DIRECTORY / "offsets.journal"
        data = journal.read_bytes()
        lines = data.splitlines(keepends=True)
        states: list[object] = [{}, {}, {"T@g": {0: 1}}, {"T@g": {0: 2, 1: 7}}]
        before = (output / OFFSET_FILE).read_bytes()
        for length in range(len(data)):
            (output / OFFSET_FILE).write_bytes(before)
            journal.write_bytes(data[:length])
            whole = sum(
                # the last byte of a line is its end, which is not part of it
                sum(map(len, lines[: n + 1])) <= length + 1
                for n in range(len(lines))
            )
            assert self.opened(output) == states[whole], length

    def test_a_journal_of_another_file_is_not_applied(self, output: Path) -> None:
        """A broker ran on the output meanwhile: its offsets count."""
        (output / OFFSET_FILE).write_text(BROKERS_FILE)
        assert self.opened(output) == {"Orders@group": {0: 10, 1: 20}, "%RETRY%group@group": {0: 0}}

    def test_a_kill_at_any_step_loses_nothing(self, tmp_path: Path) -> None:
        """Every write, rename and sync of three rounds: what was durable is there afterwards."""
        program = (
            "import sys; from pathlib import Path; from serving.offsetfile import OffsetFile\n"
            "file = OffsetFile(Path(sys.argv[1])); held = file.open(Path('/nonexistent'))\n"
            "for n in range(1, 4):\n"
            "    file.append({'T@g': {0: n}}); held = {'T@g': {0: n}}; print(n, flush=True)\n"
            "    if n == 2: file.replace(held, 1)\n"
        )
        step, code = 0, -signal.SIGKILL
        while code == -signal.SIGKILL:
            step += 1
            output = tmp_path / str(step)
            output.mkdir()
            done = subprocess.run(
                [sys.executable, "-c", program, str(output)], capture_output=True, text=True,
                env={"REPUT_FAILPOINTS": f"*:{step}=kill", "PYTHONPATH": ":".join(sys.path)},
                check=False,
            )  # fmt: skip
            code = done.returncode
            durable = len(done.stdout.split())
            found = json.loads(json.dumps(self.opened(output))).get("T@g", {}).get("0", 0)
            assert found in (durable, durable + 1), f"step {step}"
        assert code == 0, done.stderr
        assert step > 15


def check_kills(store: Path, output: Path, seed: int, rounds: int) -> None:
    """Kill a server again and again while a client commits."""
    rng, committed = random.Random(seed), 0
    shutil.copytree(store / "consumequeue", output / "consumequeue")
    for _ in range(rounds):
        durable = 0
        with serving(store, "--output", output, exit_code=-signal.SIGKILL) as server:
            with Client(int(server.namesrv.rpartition(":")[2])) as client:
                answer = client.ask(QUERY, place())
                assert int(answer.ext.get("offset", 0)) >= committed - 1
                ends = time.monotonic() + rng.uniform(0.3, 1.0)
                sent: list[tuple[float, int]] = []
                while (now := time.monotonic()) < ends:
                    committed += 1
                    assert client.ask(UPDATE, place(commitOffset=committed)).code == 0
                    sent.append((now, committed))
                killed = time.monotonic()
                server.process.kill()
                durable = max(n for at, n in sent if at < killed - DURABLE_SECONDS)
            server.process.wait()
        with served(store, output) as port, Client(port) as client:
            found = int(client.ask(QUERY, place()).ext["offset"])
        assert durable <= found <= committed
        committed = found


def test_commits_survive_a_kill(store: Path, tmp_path: Path, seed: int) -> None:
    """Those older than 200 ms; a few kills, and with make test-slow many."""
    check_kills(store, tmp_path / "output", seed, KILLS)


@pytest.mark.slow
def test_commits_survive_many_kills(store: Path, tmp_path: Path, seed: int) -> None:
    """Two hundred."""
    check_kills(store, tmp_path / "output", seed, MANY_KILLS)
