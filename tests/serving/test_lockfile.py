"""Queue locks over a restart of the server: which member may lock what, and what the disk does."""

from __future__ import annotations

import json
import logging
import random
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from reput.serving import lockfile
from reput.serving.locks import RESTORED_SECONDS, Locks
from reput.store import fsops
from tests.interop.clients import WAIT_SECONDS, serving
from tests.support.processes import became
from tests.support.remoting import Client, heartbeat, served

LOCK, UNLOCK, HEART_BEAT, UNREGISTER = 41, 42, 34, 35
FILE = Path("reput") / "serve" / "locks.json"
QUEUES = range(4)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output without queues: locks need none."""
    (tmp_path / "output" / "consumequeue").mkdir(parents=True)
    return tmp_path / "output"


def body(client_id: str, *queue_ids: int) -> dict[str, object]:
    queues = [{"brokerName": "b", "queueId": n, "topic": "Topic_1"} for n in queue_ids]
    return {"consumerGroup": "g", "clientId": client_id, "mqSet": queues}


def locked(client: Client, client_id: str, *queue_ids: int) -> list[int]:
    """The queues that a client gets of those that it asks for."""
    found = client.ask(LOCK, {}, body(client_id, *queue_ids)).json["lockOKMQSet"]
    return sorted(queue["queueId"] for queue in found)


def written(output: Path) -> dict[str, dict[str, dict[str, list[int]]]]:
    """The file; empty while there is none."""
    try:
        return dict(json.loads((output / FILE).read_text()))
    except FileNotFoundError:
        return {}


def test_a_member_keeps_its_queues_over_a_restart(store: Path, output: Path, seed: int) -> None:
    """A member that comes first after it, before the others are known, gets no queue of another,
    and its own at once. What was unlocked is free."""
    drawn = random.Random(seed)
    owners = {queue_id: drawn.choice("ab") for queue_id in QUEUES}
    print(f"{owners=}")
    of = {name: [n for n in QUEUES if owners[n] == name] for name in "ab"}
    with served(store, output) as port, Client(port) as first, Client(port) as second:
        for client, name in ((first, "a"), (second, "b")):
            assert locked(client, name, *of[name]) == of[name]
    with served(store, output) as port, Client(port) as client:
        for name in drawn.sample("ab", 2):
            assert locked(client, name, *QUEUES) == of[name]
        assert locked(client, "new", *QUEUES) == []
        client.ask(UNLOCK, {}, body("a", *QUEUES))
        assert locked(client, "new", *QUEUES) == of["a"]
    with served(store, output) as port, Client(port) as client:
        assert locked(client, "a", *QUEUES) == []
        assert locked(client, "new", *QUEUES) == of["a"]
        assert locked(client, "b", *QUEUES) == of["b"]


def test_a_single_member_does_not_wait(store: Path, output: Path) -> None:
    """Nobody has to be waited for in a group without locks."""
    for name in ("a", "b"):
        with served(store, output) as port, Client(port) as client:
            assert locked(client, name, *QUEUES) == [*QUEUES]
            client.ask(UNLOCK, {}, body(name, *QUEUES))


def test_locks_survive_a_kill(store: Path, output: Path) -> None:
    """The locks in the file hold after a kill, too."""
    with (
        serving(store, "--output", output, exit_code=-9) as server,
        Client(int(server.namesrv.rpartition(":")[2])) as client,
    ):
        assert locked(client, "a", 1, 2) == [1, 2]
        assert became(lambda: written(output) == {"g": {"a": {"Topic_1": [1, 2]}}}, WAIT_SECONDS)
        server.process.kill()
        server.process.wait()
    with served(store, output) as port, Client(port) as client:
        assert locked(client, "b", *QUEUES) == [0, 3]


def test_a_lock_that_is_taken_again_is_written(
    store: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that leaves and comes back has its locks in the file again, although no owner has
    changed."""
    monkeypatch.setattr(lockfile, "REPLACE_SECONDS", 0.01)
    with served(store, output) as port, Client(port) as client:
        assert locked(client, "a", 1) == [1]
        assert client.ask(HEART_BEAT, {}, heartbeat("a", "g", "Topic_1")).code == 0
        assert client.ask(UNREGISTER, {"clientID": "a", "consumerGroup": "g"}).code == 0
        assert locked(client, "b", 2) == [2]
        assert became(lambda: written(output) == {"g": {"b": {"Topic_1": [2]}}}, WAIT_SECONDS)
        assert locked(client, "a", 1) == [1]
        both = {"g": {"b": {"Topic_1": [2]}, "a": {"Topic_1": [1]}}}
        assert became(lambda: written(output) == both, WAIT_SECONDS)


def test_locks_of_before_the_start_end() -> None:
    """A client consumes for 30 s after it had its lock, so that a lock which nobody renews ends
    then; a renewed one does not."""
    now = [1000.0]
    held = Locks(lambda: now[0])
    held.restore({"g": {"a": {"T": [0, 1]}, "b": {"T": [2]}}, "h": {"c": {"T": [0]}}})
    every = [("T", n) for n in range(3)]
    now[0] += RESTORED_SECONDS - 1
    assert held.lock("g", "new", every) == []
    assert held.lock("g", "b", [("T", 2)]) == [("T", 2)]
    now[0] += 1
    assert held.lock("g", "new", every) == every[:2]
    assert held.owners() == {"g": {"b": {"T": [2]}, "new": {"T": [0, 1]}}}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"g":{"a":{"T":["0"]}}}', '{"g":{"a":[1]}}', "\xff", "[" * 100_000]
)
def test_a_file_that_is_none(
    store: Path, output: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, locks are given, and the file is written anew."""
    (output / FILE).parent.mkdir(parents=True)
    (output / FILE).write_bytes(text.encode("latin-1"))
    with served(store, output) as port, Client(port) as client:
        assert locked(client, "a", 3) == [3]
    assert caplog.text.count("cannot be used, and is written anew") == 1
    assert written(output) == {"g": {"a": {"Topic_1": [3]}}}


def test_a_disk_that_refuses_keeps_no_lock_from_anybody(
    store: Path, output: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says so once, and the locks are written when they can be, although none changes."""
    caplog.set_level(logging.ERROR, "reput")
    (output / FILE / "in the way").mkdir(parents=True)
    tried, replace = SimpleQueue[bytes](), fsops.replace_file

    def noted(path: Path, data: bytes) -> None:
        try:
            replace(path, data)
        finally:
            if path == output / FILE:
                tried.put(data)

    monkeypatch.setattr(fsops, "replace_file", noted)
    with served(store, output) as port, Client(port) as client:
        assert locked(client, "a", 3) == [3]
        assert json.loads(tried.get(timeout=60)) == {"g": {"a": {"Topic_1": [3]}}}
        assert locked(client, "b", 2, 3) == [2]
        owners = {"g": {"a": {"Topic_1": [3]}, "b": {"Topic_1": [2]}}}
        assert became(lambda: json.loads(tried.get(timeout=60)) == owners, 60)
        (output / FILE / "in the way").rmdir()
        (output / FILE).rmdir()
        assert became(lambda: written(output) == owners, 60)
    assert caplog.text.count("queue locks are not kept over a restart now") == 1


def test_an_owner_that_comes_during_a_write_is_written_too(
    store: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would lose its lock; nothing else asks for a write."""
    begun, may_end, replace = threading.Event(), threading.Event(), fsops.replace_file

    def slow(path: Path, data: bytes) -> None:
        if path == output / FILE and not begun.is_set():
            begun.set()
            assert may_end.wait(60)
        replace(path, data)

    monkeypatch.setattr(fsops, "replace_file", slow)
    monkeypatch.setattr(lockfile, "REPLACE_SECONDS", 0.0)
    with served(store, output) as port, Client(port) as client:
        assert locked(client, "a", 1) == [1]
        assert begun.wait(60)
        assert locked(client, "b", 2) == [2]
        may_end.set()
        owners = {"g": {"a": {"Topic_1": [1]}, "b": {"Topic_1": [2]}}}
        assert became(lambda: written(output) == owners, 60)
