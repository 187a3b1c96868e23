"""The debts of a base at rest, on the wire: routes, queues and positions at the overlay's port."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput.serving.config import FirstPosition
from tests.support.golden import unpack_golden
from tests.support.processes import became
from tests.support.remoting import Client, served_stores

ROUTE, QUERY, UPDATE, MAX, TOPICS = 105, 14, 15, 30, 206
NOT_FOUND = 22
SECONDS = 30.0


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A stopped broker's store that owes a message of topic Dl, to queue 0, and one of Timer."""
    root = unpack_golden("g533", tmp_path)
    shutil.rmtree(root / "timerlog")
    (root / "timerwheel").unlink()
    (root / "broker.conf").write_text("mappedFileSizeConsumeQueue=20000\nbrokerName=b\n")
    return root


@pytest.fixture
def clients(base: Path) -> Iterator[tuple[Client, Client]]:
    """Clients of the base's broker and of the overlay's."""
    with (
        served_stores([(base, base)], overlay=True, first_position=FirstPosition.AS_ASKED) as ports,
        Client(ports[0]) as at_base,
        Client(ports[1]) as at_overlay,
    ):
        yield at_base, at_overlay


def queues(client: Client, topic: str) -> dict[str, tuple[int, int]]:
    """Readable queues and permission of a topic, by broker."""
    route: Any = client.ask(ROUTE, {"topic": topic}).json
    assert {data["brokerName"] for data in route["brokerDatas"]} >= {
        queue["brokerName"] for queue in route["queueDatas"]
    }
    return {
        queue["brokerName"]: (queue["readQueueNums"], queue["perm"])
        for queue in route["queueDatas"]
    }


def place(topic: str, group: str, **more: object) -> dict[str, object]:
    return {"consumerGroup": group, "topic": topic, "queueId": 0, **more}


def test_routes_name_the_overlay_from_the_start(clients: tuple[Client, Client]) -> None:
    """With one readable queue, whether anything is due or not; other topics are the base's."""
    for client in clients:
        assert queues(client, "Dl")["b-reput"] == (1, 4)
        assert queues(client, "Timer")["b-reput"] == (1, 4)
        assert set(queues(client, "Dl")) == set(queues(client, "Timer")) == {"b", "b-reput"}
        assert set(queues(client, "Orders")) == {"b"}


def test_a_broker_that_goes_on_changes_no_routes(base: Path) -> None:
    """It delivers to as many queues as the base has, and the overlay to one."""
    config = base / "overlay" / "config"
    config.mkdir(parents=True)
    table = {"Dl": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 4}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    with served_stores([(base, base)], overlay=True) as ports, Client(ports[1]) as at_overlay:
        assert queues(at_overlay, "Dl")["b-reput"] == (1, 4)


def test_what_is_owed_comes_to_queue_0(clients: tuple[Client, Client]) -> None:
    _, at_overlay = clients
    where = {"topic": "Dl", "queueId": 0}
    assert became(lambda: at_overlay.ask(MAX, where).ext["offset"] == "1", SECONDS)


def test_positions_of_a_topic_that_is_the_bases(clients: tuple[Client, Client]) -> None:
    """A group that consumes the topic at the base gets all of it that comes to the overlay; another
    one begins as it asks. Retries and dead letters begin at 0 for everybody."""
    at_base, at_overlay = clients
    assert at_base.ask(UPDATE, place("Dl", "old", commitOffset=1)).code == 0
    old = at_overlay.ask(QUERY, place("Dl", "old"))
    assert (old.code, old.ext.get("offset")) == (0, "0")
    assert at_overlay.ask(QUERY, place("Timer", "old")).code == NOT_FOUND
    assert at_overlay.ask(QUERY, place("Dl", "new")).code == NOT_FOUND
    retry = at_overlay.ask(QUERY, place("%RETRY%new", "new"))
    assert (retry.code, retry.ext.get("offset")) == (0, "0")
    assert at_overlay.ask(UPDATE, place("Dl", "new", commitOffset=1)).code == 0
    assert at_overlay.ask(QUERY, place("Dl", "new")).ext.get("offset") == "1"
