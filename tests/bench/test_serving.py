"""The serving rows: clients that count what they get, groups that are shared, what is no time."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import group_worker, pull_worker, serving
from bench.context import Context
from bench.group_worker import Member, is_balanced
from bench.logs import Log
from bench.measures import Figures
from bench.processes import BenchError, line_process, python_command
from bench.serving import AS_IT_COMES, FEW, MANY, OURS, PULL_32, PULL_1000, THEIRS, System
from reput.readers.allocation import MessageQueue
from reput.readers.messagestore import MessageStore
from reput.serving.codes import RequestCode
from tests.support.derived_output import DerivedOutput
from tests.support.plain_queues import plain_queue
from tests.support.remoting import Client, served

TOPIC, QUEUES = "Topic_1", 4
LOG = Log(Path("store"), 300, 3200, 1_000_000, (1_000_000,), 1 << 20)


@pytest.mark.parametrize("count", [8, 1000])
def test_the_puller_counts_every_message(golden: Callable[[str], Path], count: int) -> None:
    """Messages, bytes and frames of all queues, held against a plain read of them."""
    store = golden("plain")
    queues = [
        [found.record for found in plain_queue(store, store / "consumequeue" / TOPIC / str(number))]
        for number in range(QUEUES)
    ]
    with served(store) as port:
        answer = asyncio.run(pull_worker.drain(f"127.0.0.1:{port}", TOPIC, QUEUES, count))
    assert answer["messages"] == sum(map(len, queues)) > 0
    assert answer["bytes"] == sum(record.total_size for queue in queues for record in queue)
    # the server gives up to 32 whatever is asked
    assert answer["frames"] >= sum(-(-len(queue) // min(count, FEW)) for queue in queues)
    assert answer["seconds"] > 0


def test_the_puller_takes_no_other_answer(golden: Callable[[str], Path]) -> None:
    """An unknown topic is not an empty one."""
    with served(golden("plain")) as port, pytest.raises(ConnectionError, match="Nowhere"):
        asyncio.run(pull_worker.drain(f"127.0.0.1:{port}", "Nowhere", 1, FEW))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": LOG.message_count - 1}, "the puller got 3,199 of 3,200 messages"),
        ({"bytes": LOG.end_offset + 1}, "1,000,001 of 1,000,000 bytes"),
        ({"frames": 200}, "200 frames are too many"),
    ],
)
def test_a_pass_that_lost_messages_or_has_small_frames_is_no_time(
    change: dict[str, int], words: str
) -> None:
    """Whichever server gave them."""
    answer: dict[str, Any] = {"messages": LOG.message_count, "bytes": LOG.end_offset, "frames": 101}
    assert serving.check_pulled(answer, LOG, FEW) == answer
    with pytest.raises(BenchError, match=words):
        serving.check_pulled(answer | change, LOG, FEW)


@pytest.mark.parametrize("name", [PULL_32, PULL_1000])
def test_large_frames_are_compared_with_a_broker_as_it_comes(name: str) -> None:
    """The goal of the row counts against what a broker gives by itself."""
    systems = {key: System("namesrv", key, 0, [2.0, 4.0], 3 << 20) for key in (OURS, THEIRS)}
    figures = {
        OURS: Figures("k messages/s", (8.0, 9.0)), THEIRS: Figures("k messages/s", (4.0, 3.0)),
    }  # fmt: skip
    count = FEW
    if name == PULL_1000:
        count, figures[AS_IT_COMES] = MANY, Figures("k messages/s", (2.0, 3.0))
    answers: dict[str, list[dict[str, Any]]] = {f"{key} {count}": [{}] for key in (OURS, THEIRS)}
    context = Context(Path("data"), frozenset({name}))
    row = serving._pull_row(context, LOG, systems, name, count, figures, answers)
    expected = {PULL_32: "2.50x (2.00 to 3.00)", PULL_1000: "3.50x (3.00 to 4.00)"}
    assert row.result == expected[name]
    assert row.met is True
    assert row.notes[0] == (
        "reput used 3.0 s of CPU for a million messages and 3 MiB; "
        "RocketMQ used 3.0 s of CPU for a million messages and 3 MiB"
    )
    assert any("2.50x (2.00 to 3.00) of it" in note for note in row.notes) == (name == PULL_1000)


def test_what_a_server_uses_is_noted() -> None:
    """CPU seconds for a million messages, and memory."""
    system = System("", "", os.getpid())
    with system.watched(10):
        sum(range(3_000_000))
    assert system.cpu_seconds[0] > 0
    assert system.memory_bytes > 1 << 20


def members(*reading: list[int]) -> list[Member]:
    """Members that know of each other, by the queues that each reads."""
    found = []
    for number, ids in enumerate(reading):
        member = Member(f"client@{number}", [TOPIC])
        member.known_members[TOPIC] = len(reading)
        member.reading.update(MessageQueue(TOPIC, "b", queue_id) for queue_id in ids)
        found.append(member)
    return found


def test_a_group_is_balanced_when_each_queue_has_one_reader() -> None:
    """A queue without a reader, one with two, and a member that another does not know are not."""
    assert is_balanced(members([0, 1], [2, 3]), [TOPIC], QUEUES)
    assert not is_balanced(members([0, 1], [2]), [TOPIC], QUEUES)
    assert not is_balanced(members([0, 1, 2], [2, 3]), [TOPIC], QUEUES)
    assert not is_balanced(members([0, 1, 2], [2]), [TOPIC], QUEUES)
    ignorant = members([0, 1], [2, 3])
    ignorant[1].known_members[TOPIC] = 1
    assert not is_balanced(ignorant, [TOPIC], QUEUES)


def test_the_members_share_the_queues_of_a_server(golden: Callable[[str], Path]) -> None:
    """Three of them, two topics; the server then knows all three."""
    request = {"topics": [TOPIC, "Topic_2"], "members": 3, "queues": 2 * QUEUES}
    with served(golden("plain")) as port:
        command = python_command("-m", "bench.group_worker")
        with line_process(command, "the members") as worker, Client(port) as client:
            worker.answer(60)
            balanced = worker.ask(json.dumps({**request, "address": f"127.0.0.1:{port}"}), 60)
            answer = client.ask(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group_worker.GROUP}
            )
    # each asks for routes, members, offsets and a first pull
    assert balanced["requests"] >= 3 * (1 + 2 + 2) + 2 * 2 * QUEUES
    assert len(answer.json["consumerIdList"]) == 3


def test_every_move_of_the_watermark_ends_a_waiting_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is a process of its own."""
    monkeypatch.setattr(serving, "TOPIC", TOPIC)
    output = DerivedOutput.unpack("plain", tmp_path)
    output.start()
    with MessageStore(output.store, output=output.root) as opened:
        found = opened.queue(TOPIC, 0).unit_columns(0, 6)
    assert found is not None
    ends = (found[0].physical_offsets + found[0].sizes).tolist()
    waits = list(serving._wakes(output.store, output.root, ends))
    assert len(waits) == len(ends) - 1
    assert all(0 < wait < 60_000 for wait in waits)


def test_a_server_that_does_not_start_is_no_row(tmp_path: Path) -> None:
    """Its last words are in the error."""
    file = tmp_path / "file"
    file.touch()
    with (
        pytest.raises(BenchError, match=r"(?s)reput does not listen.*file is not a dir"),
        serving.serving(file, tmp_path / "output"),
    ):
        pass
