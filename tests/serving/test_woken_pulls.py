"""Pulls that waited and are woken, many of them in several turns of the server."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from typing import Any

import pytest

from reput.readers.getranges import RangeReader
from reput.readers.queuereader import QueueReader
from reput.serving import admission, holds, pulling
from reput.serving.connection import Connection
from reput.serving.frame import Codec, Frame, encode
from tests.serving.test_pulling import FOUND, MOVED, PULL, Live, held, live, pull
from tests.support.faults import UNREADABLE
from tests.support.remoting import Client, served

__all__ = ["live"]

RESET_OFFSET, QUERY, UPDATE = 222, 14, 15
WAITING = 16


def test_a_pull_that_ends_while_others_are_woken_is_answered_once(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More pulls wait than are woken at once. As the first of them is, their group is reset, which
    answers all that still wait; those are not woken after it."""
    reset = {"topic": "Topic", "group": "group", "timestamp": 0, "isForce": True}
    query = {"consumerGroup": "g", "topic": "Topic", "queueId": 0}
    get_ranges, is_waiting = RangeReader.get_ranges, False
    monkeypatch.setattr(pulling, "WOKEN_AT_ONCE", 1)
    with served(live.small.root) as port, Client(port) as client, Client(port) as admin:

        def looked(*arguments: Any, **more: Any) -> Any:
            nonlocal is_waiting
            if is_waiting:
                is_waiting = False
                admin.send(RESET_OFFSET, reset)
            return get_ranges(*arguments, **more)

        monkeypatch.setattr(RangeReader, "get_ranges", looked)
        # a group without an offset is not known
        known = {"consumerGroup": "group", "topic": "Topic", "queueId": 0, "commitOffset": 1}
        assert client.ask(UPDATE, known).code == 0
        sent = [client.send(PULL, pull(1, sysFlag=6)) for _ in range(WAITING)]
        # requests are answered in their order: all wait
        assert client.ask(QUERY, query).code == 22
        is_waiting = True
        live.append()
        assert admin.receive().code == 0
        last = client.send(QUERY, query)
        answers = []
        while not answers or answers[-1].opaque != last:
            answers.append(client.receive())
    codes = Counter(answer.code for answer in answers[:-1])
    assert sorted(answer.opaque for answer in answers) == [*sent, last]
    assert codes.keys() == {FOUND, MOVED}, codes


def test_a_client_that_reads_again_learns_of_what_came_meanwhile(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its waiting pull gets no message while answers lie unread, and needs no later one to be
    answered."""
    has_paused, pause = threading.Event(), Connection.pause_writing

    def paused(connection: Connection) -> None:
        pause(connection)
        has_paused.set()

    monkeypatch.setattr(Connection, "pause_writing", paused)
    monkeypatch.setattr(admission, "MAX_SUSPEND_MS", 1 << 40)
    for _ in range(32):
        live.small.append(queue_id=1, body=bytes(3000))
    live.append(queue_id=2)
    waiting = pull(1, sysFlag=6, suspendTimeoutMillis=1 << 39)
    with served(live.small.root) as port, Client(port) as slow, Client(port) as other:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sent = [slow.send(PULL, waiting)]
        # more than the sockets take
        sent += [slow.send(PULL, pull(0, queueId=1)) for _ in range(300)]
        assert has_paused.wait(60)
        opaque = other.send(PULL, waiting)
        assert other.ask(14, {"consumerGroup": "g", "topic": "Topic", "queueId": 0}).code == 22
        live.append()
        # pulls of a queue are woken in their order
        assert (answer := other.receive()).opaque == opaque and answer.code == FOUND
        answers = [slow.receive() for _ in sent]
    assert sorted(answer.opaque for answer in answers) == sent
    assert {answer.code for answer in answers} == {FOUND}


@pytest.mark.parametrize("codec", Codec)
def test_a_pull_that_waited_is_answered_in_its_encoding(live: Live, codec: Codec) -> None:
    """A client that encodes headers in RocketMQ's binary form may know no other."""
    fields = {name: str(value) for name, value in pull(1, sysFlag=6).items()}
    with served(live.small.root) as port, Client(port) as client:
        client.socket.sendall(encode(Frame(PULL, 7, ext=fields, codec=codec)))
        # requests are answered in their order: the pull waits
        assert client.ask(14, {"consumerGroup": "g", "topic": "Topic", "queueId": 0}).code == 22
        live.append(tags_code=65, properties=b"TAGS\x01A\x02")
        client.socket.settimeout(60)
        head = client.socket.recv(8, socket.MSG_WAITALL)
    assert head[4] == codec


@pytest.mark.parametrize("error", UNREADABLE)
def test_a_pull_that_fails_as_it_begins_to_wait_waits_no_longer(
    live: Live, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It looks once more once it is registered; who was answered with an error keeps no place."""
    monkeypatch.setattr(holds, "MAX_HOLDS", 1)
    get_ranges, fails = QueueReader.get_ranges, iter([False, True])

    def looked(*arguments: Any, **more: Any) -> Any:
        if next(fails, False):
            raise error
        return get_ranges(*arguments, **more)

    with served(live.small.root) as port, Client(port) as client:
        monkeypatch.setattr(QueueReader, "get_ranges", looked)
        answer = client.ask(PULL, pull(1, sysFlag=6))
        assert (
            answer.code,
            error.args[-1] in answer.header["remark"],
        ) == (1, True)
        assert held(client, pull(1, sysFlag=6)) == [True]
