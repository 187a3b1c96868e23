"""A server in the dispatcher's process: commits wake it, and its failures do not harm the
dispatcher."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reput.serving import admission
from reput.serving.config import ServerConfig
from reput.serving.connection import Connection
from reput.serving.embedded import EmbeddedServer
from reput.serving.stores import BrokerIdentity
from reput.store import fsops
from reput.store.brokerlock import BrokerLock
from reput.store.config import StoreSettings, read_store_settings
from reput.store.state.built import settings_of
from reput.store.state.consumeroffset import ConsumerOffsetFile
from reput.store.state.watermark import read_watermark
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records, unpack_golden
from tests.support.remoting import Client

FOUND, PULL, COMMIT, MAX_OFFSET = 0, 11, 15, 30
EVENT_SECONDS = 120.0
PLACE: dict[str, object] = {"consumerGroup": "group", "topic": "Topic_1", "queueId": 0}


class Served:
    """A dispatcher's output, and the server in the same process."""

    def __init__(self, settings: StoreSettings, output: Path, port: int = 0) -> None:
        self.settings = settings
        self.ready: queue.Queue[int] = queue.Queue()
        config = ServerConfig("127.0.0.1", port)
        identity = BrokerIdentity.of(settings)
        self.server = EmbeddedServer(config, identity, output, self.ready.put)

    def port(self) -> int:
        return self.ready.get(timeout=EVENT_SECONDS)


@pytest.fixture
def output(tmp_path: Path) -> DerivedOutput:
    return DerivedOutput.unpack("plain", tmp_path)


@pytest.fixture
def served(output: DerivedOutput) -> Served:
    return Served(settings_of(output.root, read_store_settings(output.store)), output.root)


def half_of(output: DerivedOutput) -> int:
    """A record's start in the middle of the log."""
    found = log_records(output.store)
    return found[len(found) // 2].physical_offset


def held_pull(client: Client) -> tuple[int, str]:
    """A pull that waits at the end of a queue: its number, and that end."""
    end = client.ask(MAX_OFFSET, PLACE).ext["offset"]
    wanted = {"queueOffset": end, "maxMsgNums": 32, "sysFlag": 6, "subscription": "*"}
    opaque = client.send(PULL, {**PLACE, **wanted, "suspendTimeoutMillis": 1 << 40})
    # requests are answered in their order: the pull waits
    assert client.ask(MAX_OFFSET, PLACE).ext["offset"] == end
    return opaque, end


def test_a_commit_wakes_a_waiting_pull(
    output: DerivedOutput,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No file is polled, and the pull's deadline is far away. The end waits for the server's."""
    monkeypatch.setattr(admission, "MAX_SUSPEND_MS", 1 << 40)
    with served.server:
        output.start(part=lambda _: half_of(output), on_visible=served.server.end_moved)
        with Client(served.port()) as client:
            opaque, end = held_pull(client)
            output.start(on_visible=served.server.end_moved)
            answer = client.receive(timeout=EVENT_SECONDS)
    assert "abandoned" not in caplog.text
    assert (answer.code, answer.opaque) == (FOUND, opaque)
    first = next(
        m for m in log_records(output.store)
        if (m.topic, m.queue_id, m.queue_offset) == (b"Topic_1", 0, int(end))
    )  # fmt: skip
    assert int.from_bytes(answer.body[28:36], "big") == first.physical_offset


def test_a_pull_for_which_there_was_no_memory_is_looked_at_again(
    output: DerivedOutput, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next commit, whichever queues that names."""
    is_spent, has_looked = threading.Event(), threading.Event()

    def is_memory_spent(_connection: Connection) -> bool:
        if is_spent.is_set():
            has_looked.set()
        return is_spent.is_set()

    monkeypatch.setattr(Connection, "is_memory_spent", property(is_memory_spent))
    monkeypatch.setattr(admission, "MAX_SUSPEND_MS", 1 << 40)
    with served.server:
        output.start(part=lambda _: half_of(output), on_visible=served.server.end_moved)
        with Client(served.port()) as client:
            opaque, _ = held_pull(client)
            is_spent.set()
            output.start(on_visible=served.server.end_moved)
            assert has_looked.wait(EVENT_SECONDS)
            # the server has seen all of these commits before it answers again and again
            for _ in range(5):
                client.ask(MAX_OFFSET, PLACE)
            is_spent.clear()
            served.server.end_moved(served.settings, ())
            answer = client.receive(timeout=30)
    assert (answer.code, answer.opaque) == (FOUND, opaque)


def test_a_failure_does_not_stop_dispatch(
    output: DerivedOutput,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failed sync of the journal ends the server with one log line; the output is complete."""
    with served.server:
        output.start(part=lambda _: half_of(output), on_visible=served.server.end_moved)
        with Client(served.port()) as client, monkeypatch.context() as patch:
            patch.setattr(fsops, "_failpoints", fsops._Failpoints("sync:1=EIO"))
            assert client.ask(COMMIT, {**PLACE, "commitOffset": 3}).code == 0
            assert client.is_closed()
        output.start(on_visible=served.server.end_moved)
    check_complete(output, caplog)


def test_a_server_that_cannot_start_does_not_stop_dispatch(
    output: DerivedOutput, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Another server has the output's offsets."""
    output.root.mkdir()
    with ConsumerOffsetFile(output.root), served.server:
        output.start(on_visible=served.server.end_moved)
    check_complete(output, caplog)
    assert "written by another process" in caplog.text


def test_a_run_without_a_watermark_gives_its_port_back(output: DerivedOutput) -> None:
    """It ends before anything is served; the same process may serve there afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    served = Served(read_store_settings(output.store), output.root, port)
    with served.server, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def check_complete(output: DerivedOutput, caplog: pytest.LogCaptureFixture) -> None:
    """Check that everything was dispatched, and that one line reports the server's end."""
    found = read_watermark(output.state)
    last = log_records(output.store)[-1]
    assert found is not None
    assert found.end_offset == last.physical_offset + last.total_size
    assert output.verify().differences == ()
    told = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert len(told) == 1
    assert told[0].startswith("serving has ended, dispatching goes on: ")


def test_the_dispatchers_lock_is_kept(tmp_path: Path) -> None:
    """The server must not open the lock's file, since closing it would release this process's
    lock."""
    store = unpack_golden("plain", tmp_path)
    served = Served(read_store_settings(store), store)
    program = (
        "from pathlib import Path; from reput.store.brokerlock import broker_pid\n"
        f"print(broker_pid(Path({str(store)!r})) is not None)"
    )
    with BrokerLock(store), served.server:
        served.server.end_moved(served.settings, None)
        served.port()
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert done.stdout == "True\n"
