"""Open transactions of a base at rest, on the wire: checks, answers, and who may give them."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput.serving.connection import Connection
from reput.serving.groups import Groups
from reput.serving.transactions import Transactions, check_body, check_fields
from reput.store.log import record
from reput.store.log.record import Record
from tests.overlay.test_checks import Ends
from tests.overlay.test_debts import plain_lock
from tests.readers.stores import SmallStore
from tests.serving.aclrequests import signed
from tests.support.delivering import HALF_TOPIC
from tests.support.golden import GOLDEN_DIRECTORY, log_records, tree, unpack_golden
from tests.support.processes import became, holder
from tests.support.remoting import Answer, Client, served_stores

SEND, MAX, BEAT, LEAVE, END, CHECK, ROUTE = 310, 30, 34, 35, 37, 39, 105
ERROR, NO_PERMISSION, NO_TOPIC = 1, 16, 17
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "tpg"
SECONDS = 30.0
ONE_WAY = 2
PLACES = {36893: 19, 37335: 20}
"""The halves that are asked about: physical offset -> queue offset."""
SETTINGS = "transactionTimeOut=100\ntransactionCheckInterval=300\nbrokerName=b\n"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A stopped broker's store with two open transactions."""
    root = unpack_golden("g533", tmp_path)
    (root / "broker.conf").write_text(f"mappedFileSizeConsumeQueue=20000\n{SETTINGS}")
    return root


@pytest.fixture
def output(base: Path, tmp_path: Path) -> Path:
    (tmp_path / "output").mkdir()
    (tmp_path / "output/consumequeue").symlink_to(base / "consumequeue")
    return tmp_path / "output"


def serving(base: Path, output: Path, **options: Any) -> AbstractContextManager[tuple[int, ...]]:
    return served_stores([(base, output)], overlay=True, **options)


@pytest.fixture
def client(base: Path, output: Path) -> Iterator[Client]:
    with serving(base, output) as ports, Client(ports[0]) as client:
        yield client


def producing(*groups: str) -> dict[str, object]:
    """The heartbeat of a client that has producers of these groups."""
    data = [{"groupName": group} for group in groups]
    return {"clientID": "producer@1", "consumerDataSet": [], "producerDataSet": data}


def answer(position: int, outcome: int, **more: object) -> dict[str, object]:
    fields = {"commitLogOffset": position, "tranStateTableOffset": PLACES.get(position, 0)}
    return {"producerGroup": GROUP, **fields, "commitOrRollback": outcome, **more}


def check(client: Client) -> Answer:
    """The next request of the server that is a check."""
    while True:
        found = client.receive()
        if found.code == CHECK and not found.header["flag"] & 1:
            return found


def ends(output: Path) -> list[tuple[str, int]]:
    return [
        (one.topic.decode(), one.prepared_transaction_offset)
        for one in log_records(output / "overlay")
        if one.topic in (b"Tx", b"RMQ_SYS_TRANS_OP_HALF_TOPIC", b"TRANS_CHECK_MAX_TIME_TOPIC")
    ]


def test_a_producer_is_asked_and_answers(base: Path, output: Path, client: Client) -> None:
    """Any connection brings the answer; a consumer finds the message in queue 0."""
    before = tree(base)
    with Client(client.port) as other, Client(client.port) as reader:
        assert client.ask(BEAT, {}, producing("x", GROUP)).code == 0
        asked = [check(client) for _ in PLACES]
        assert {int(one.ext["commitLogOffset"]) for one in asked} == PLACES.keys()
        assert {one.header["flag"] for one in asked} == {ONE_WAY}
        other.send(END, answer(36893, COMMIT, topic=HALF_TOPIC.decode()), flag=ONE_WAY)
        other.send(END, answer(37335, UNKNOWN, topic=HALF_TOPIC.decode()), flag=ONE_WAY)
        assert int(check(client).ext["commitLogOffset"]) == 37335
        other.send(END, answer(37335, ROLLBACK, topic="Tx"), flag=ONE_WAY)
        assert became(lambda: len(ends(output)) == 2, SECONDS)
        # again, and the other way round
        for outcome in (COMMIT, ROLLBACK):
            for position in PLACES:
                assert other.ask(END, answer(position, outcome)).code == 0
        route: Any = reader.ask(ROUTE, {"topic": "Tx"}).json
        assert {"b", "b-reput"} == {one["brokerName"] for one in route["queueDatas"]}
        (at_overlay,) = (
            one["brokerAddrs"]["0"] for one in route["brokerDatas"] if "reput" in one["brokerName"]
        )
        with Client(int(at_overlay.rpartition(":")[2])) as overlay:
            where = {"topic": "Tx", "queueId": 0}
            assert became(lambda: overlay.ask(MAX, where).ext["offset"] == "1", SECONDS)
    assert sorted(ends(output)) == [("RMQ_SYS_TRANS_OP_HALF_TOPIC", -37336), ("Tx", -36894)]
    assert tree(base) == before


def test_only_connected_producers_are_asked(output: Path, client: Client) -> None:
    """In turn; one that leaves, or whose connection ends, is not asked any more."""
    with Client(client.port) as second:
        for one in (client, second):
            one.ask(BEAT, {}, producing(GROUP))
        for one in (client, second, client, second):
            check(one)
        assert second.ask(LEAVE, {"clientID": "producer@1", "producerGroup": GROUP}).code == 0
        assert [check(client).code for _ in range(3)] == [CHECK] * 3
        with pytest.raises(TimeoutError):
            second.receive(1.0)
    client.ask(LEAVE, {"clientID": "producer@1", "producerGroup": GROUP})
    with Client(client.port) as third:
        third.ask(BEAT, {}, producing("another"))
        with pytest.raises(TimeoutError):
            third.receive(1.0)
        third.ask(BEAT, {}, producing(GROUP))
        check(third)
    with Client(client.port) as fourth:
        fourth.ask(BEAT, {}, producing(GROUP))
        assert [check(fourth).code for _ in range(3)] == [CHECK] * 3
    assert ends(output) == []


def test_a_producer_that_does_not_read_is_not_asked(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one of its group is, instead of it."""
    with Client(client.port) as second:
        for one in (client, second):
            one.ask(BEAT, {}, producing(GROUP))
        check(second)
        place = second.socket.getsockname()
        takes = property(lambda connection: connection.peer_address != place)
        monkeypatch.setattr(Connection, "is_writable", takes)
        assert [check(client).code for _ in range(8)] == [CHECK] * 8
        last, asked = second.send(MAX, {"topic": "Tx", "queueId": 0}), 0
        while (found := second.receive()).opaque != last or not found.header["flag"] & 1:
            asked += found.code == CHECK
        # one may have been sent before
        assert asked <= 1


def test_answers_that_are_none(output: Path, client: Client) -> None:
    for wrong in (
        answer(36893, COMMIT, producerGroup="other"), answer(36893, COMMIT, topic="Dl"),
        answer(36893, COMMIT, tranStateTableOffset=18), answer(5, COMMIT), answer(36893, 4),
        answer(36893, COMMIT, commitLogOffset="x"),
    ):  # fmt: skip
        assert client.ask(END, wrong).code == ERROR
    assert client.ask(END, answer(36893, UNKNOWN)).code == 0
    assert ends(output) == []


def test_the_record_that_the_producer_sent_may_be_named(output: Path, client: Client) -> None:
    """It answers late what it was never asked; the broker had appended another record since."""
    first = answer(36061, COMMIT, tranStateTableOffset=17, topic="Tx")
    assert client.ask(END, first).code == 0
    assert client.ask(END, answer(36893, ROLLBACK)).code == 0
    assert ends(output) == [("Tx", -36062)]
    (committed,) = (r for r in log_records(output / "overlay") if r.topic == b"Tx")
    assert committed.flag == 5


def test_a_start_asks_again_about_what_is_open(base: Path, output: Path) -> None:
    for position, outcome in ((36893, COMMIT), (37335, ROLLBACK)):
        with serving(base, output) as (port, _), Client(port) as client:
            client.ask(BEAT, {}, producing(GROUP))
            while int(check(client).ext["commitLogOffset"]) != position:
                pass
            assert client.ask(END, answer(position, outcome)).code == 0
    with serving(base, output) as (port, _), Client(port) as client:
        client.ask(BEAT, {}, producing(GROUP))
        with pytest.raises(TimeoutError):
            client.receive(2.0)
    assert len(ends(output)) == 2


def test_a_broker_that_runs_again_asks_itself(base: Path, output: Path) -> None:
    with serving(base, output) as (port, _), Client(port) as client:
        client.ask(BEAT, {}, producing(GROUP))
        check(client)
        with holder(lambda: plain_lock(base / "lock")):
            assert client.ask(END, answer(36893, COMMIT)).code == 0
            with pytest.raises(TimeoutError):
                while True:
                    client.receive(1.5)
    assert ends(output) == []


def test_without_a_producer_nothing_is_given_up(base: Path, output: Path) -> None:
    """However long it takes; then it is asked as if the server had just started."""
    with (base / "broker.conf").open("a") as conf:
        conf.write("transactionCheckMax=1\n")
    with serving(base, output) as (port, _), Client(port) as client:
        client.ask(BEAT, {}, producing("another"))
        with pytest.raises(TimeoutError):
            client.receive(3.0)
        assert ends(output) == []
        client.ask(BEAT, {}, producing(GROUP))
        assert {int(check(client).ext["commitLogOffset"]) for _ in PLACES} == PLACES.keys()


def test_routes_lead_producers_to_the_base(base: Path, output: Path) -> None:
    """It is the base that asks, although it declares no topics here and has no message of this one.
    Producers of 4.9 begin with a topic of their own, which has no queues."""
    for path in (base / "config").glob("topics.json*"):
        path.unlink()
    shutil.rmtree(base / "consumequeue/Tx")

    def brokers(port: int, topic: str) -> tuple[set[str], set[str]]:
        with Client(port) as client:
            route = client.ask(ROUTE, {"topic": topic}).json
        datas, queues = route["brokerDatas"], route["queueDatas"]
        return {one["brokerName"] for one in datas}, {one["brokerName"] for one in queues}

    with serving(base, output) as ports:
        for port in ports:
            assert brokers(port, "Tx") == ({"b", "b-reput"}, {"b-reput"})
            assert brokers(port, "TBW102") == ({"b", "b-reput"}, set())
    with served_stores([(base, output)]) as (port,), Client(port) as client:
        assert client.ask(ROUTE, {"topic": "TBW102"}).code == NO_TOPIC


def test_what_nobody_ends_is_given_up(base: Path, output: Path) -> None:
    with (base / "broker.conf").open("a") as conf:
        conf.write("transactionCheckMax=2\n")
    with serving(base, output) as (port, _), Client(port) as client:
        client.ask(BEAT, {}, producing(GROUP))
        asked = [int(check(client).ext["commitLogOffset"]) for _ in range(4)]
        assert became(lambda: len(ends(output)) == 2, SECONDS)
        with pytest.raises(TimeoutError):
            client.receive(1.0)
    assert sorted(asked) == [36893, 36893, 37335, 37335]
    assert {topic for topic, _ in ends(output)} == {"TRANS_CHECK_MAX_TIME_TOPIC"}


def test_new_transactions_are_refused(base: Path, output: Path) -> None:
    """Nobody would ask how they end; neither by a send to a topic, nor to a retry topic."""
    with serving(base, output) as (at_base, at_overlay):
        text = "TRAN_MSG\1true\2PGROUP\1tpg\2UNIQ_KEY\1k\2"
        fields = {"a": "p", "c": "TBW102", "d": 4, "e": 0, "f": 4, "g": 7, "h": 3, "i": text}
        with Client(at_overlay) as client:
            sent = client.ask(SEND, {**fields, "b": "Tx"}, b"body")
            assert (sent.code, sent.header["remark"]) == (
                NO_PERMISSION, "the topic[Tx] sending message is forbidden",
            )  # fmt: skip
            retry = {**fields, "b": "%RETRY%g"}
            for more in ({"j": 1}, {"i": text + "DELAY\0012\2"}):
                sent = client.ask(SEND, {**retry, **more}, b"body")
                assert sent.code == NO_PERMISSION
                assert "transaction" in sent.header["remark"]
        with Client(at_base) as client:
            assert client.ask(SEND, {**fields, "b": "Tx"}, b"body").code != 0
    assert ends(output) == []


def test_accounts_answer_for_topics_that_they_publish(base: Path, output: Path) -> None:
    """The half's own topic counts, although it lies in another one. Who may not publish it, or may
    no more, is not asked, since a check has the message. The store is the second of two."""
    first = SmallStore(base.parent / "first")
    first.append()
    stores = [(first.write(), first.root), (base, output)]
    rules = base.parent / "plain_acl.yml"
    rules.write_text(
        "accounts:\n"
        "- {accessKey: publisher, secretKey: publisher1, topicPerms: [Tx=PUB]}\n"
        "- {accessKey: subscriber, secretKey: subscriber1, topicPerms: [Tx=SUB, Dl=PUB]}\n"
    )
    with served_stores(stores, overlay=True, acl=rules) as ports, Client(ports[1]) as client:
        for key in ("subscriber", "publisher", "subscriber"):
            beat = signed(BEAT, {}, producing(GROUP), key, f"{key}1")
            assert client.ask(BEAT, {**beat.ext}, bytes(beat.body)).code == 0
            if key == "publisher":
                check(client)
            else:
                with pytest.raises(TimeoutError):
                    client.receive(1.0)

        def ask(key: str) -> int:
            ext = {name: str(value) for name, value in answer(36893, COMMIT).items()}
            return client.ask(END, {**signed(END, ext, b"", key, f"{key}1").ext}).code

        assert ask("subscriber") == NO_PERMISSION
        assert client.ask(END, answer(36893, COMMIT)).code == NO_PERMISSION
        assert ends(output) == []
        assert ask("publisher") == 0
    assert ends(output) == [("Tx", -36894)]


class _Producer:
    """A connection, as far as it is asked about transactions."""

    def __init__(self, *, is_open: bool = True, is_writable: bool = True) -> None:
        self.is_open, self.is_writable = is_open, is_writable
        self.asked: list[dict[str, str]] = []

    def notify(self, _code: int, fields: dict[str, str], _body: bytes) -> None:
        self.asked.append(fields)


def test_only_a_producer_that_listens_is_asked() -> None:
    """A check counts once it is sent: not to one whose connection has ended, that takes nothing of
    what it is sent, or that was silent for two minutes, as long as a broker keeps it."""
    found: list[int] = []

    async def ask(silent_seconds: float) -> None:
        open_ones: Any = Ends(None).open
        asking = Transactions("b", open_ones, Groups(lambda *_: None))
        now = asyncio.get_running_loop().time()
        fine, others = _Producer(), [_Producer(is_open=False), _Producer(is_writable=False)]
        connections: Any = {**dict.fromkeys(others, now), fine: now - silent_seconds}
        assert asking._ask_one("p", connections, 1 << 40) is bool(fine.asked)
        assert [one.asked for one in others] == [[], []]
        found.append(len(fine.asked))

    for seconds in (0.0, 119.0, 121.0):
        asyncio.run(ask(seconds))
    assert found == [1, 1, 0]


@pytest.mark.parametrize("name", ["g533", "g551"])
def test_checks_are_a_brokers(name: str, tmp_path: Path) -> None:
    """All fields of a real broker's checks on the tapped wire, and what the tap kept of bodies. A
    broker sets WAIT=false after it made the text of the half, and its first check still has the
    flag, which the half that it appended has lost."""
    halves = {
        r.physical_offset: r for r in log_records(unpack_golden(name, tmp_path))
        if r.topic == HALF_TOPIC
    }  # fmt: skip
    wire = gzip.decompress((GOLDEN_DIRECTORY / f"{name}.wire.jsonl.gz").read_bytes())
    theirs = [one for one in map(json.loads, wire.splitlines()) if one.get("code") == CHECK]
    assert len(theirs) >= 8
    for one in theirs:
        half = halves[int(one["extFields"]["commitLogOffset"])]
        assert check_fields(half, one["extFields"]["bname"]) == one["extFields"]
        text = half.properties.replace(b"WAIT\1true", b"WAIT\1false")
        flag = int.from_bytes(bytes.fromhex(one["_hex"])[16:20], "big")
        assert flag in (0, 5)
        body = check_body(replace(half, properties=text, flag=flag))
        assert (len(body), body[:60].hex()) == (one["_bl"], one["_hex"])
        decoded = record.decode(body, half.physical_offset, 1 << 40)
        assert isinstance(decoded, Record)
        assert (decoded.topic, decoded.properties) == (b"Tx", text)


@pytest.mark.parametrize("length", [127, 128, 300])
def test_a_check_holds_a_topic_of_any_length(length: int) -> None:
    """A half has a short one, so that its own magic is that of topics up to 127 bytes (formats.md,
    section 2)."""
    topic = b"T" * length
    half = Record(
        topic=HALF_TOPIC, queue_id=0, body=b"x", physical_offset=7,
        property_map={b"REAL_TOPIC": topic, b"REAL_QID": b"3"},
    )  # fmt: skip
    decoded = record.decode(check_body(half), 7, 1 << 40)
    assert isinstance(decoded, Record)
    assert (decoded.topic, decoded.queue_id, decoded.body) == (topic, 3, b"x")
