"""A server with access rules, over the wire: what is refused, and what changed rules do."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from reput.readers.messagestore import MessageStore
from reput.serving.acl.needs import TABLE
from reput.serving.codes import RequestCode
from reput.serving.config import ClientAuth, ServerConfig
from reput.serving.server import Server
from reput.store.errors import UsageError
from tests.readers.stores import SmallStore
from tests.serving.aclrequests import signed
from tests.support.certificates import make_certificate
from tests.support.golden import log_records, unpack_golden
from tests.support.remoting import Answer, Client, heartbeat, served, served_stores

PULL, QUERY, VIEW, HEART_BEAT, MEMBERS, ROUTE, CLUSTER, TOPICS = 11, 12, 33, 34, 38, 105, 106, 206
NO_PERMISSION, UNKNOWN_TOPIC, RETRY, NOT_FOUND = 16, 17, 20, 22
KEY, SECRET = "subuser01", "subsecret01"
ACCOUNT = f"accounts: [{{accessKey: {KEY}, secretKey: {SECRET}, "
MAY = ACCOUNT + "topicPerms: [Topic=SUB], groupPerms: [group=SUB]}]"
MAY_NOT = ACCOUNT + "topicPerms: [Topic=SUB]}]"


def ask(client: Client, code: int, ext: Mapping[str, object], body: object = b"") -> Answer:
    """A signed request."""
    request = signed(code, {name: str(value) for name, value in ext.items()}, body, KEY, SECRET)
    return client.ask(code, {**request.ext}, bytes(request.body))


def pull(**more: object) -> dict[str, object]:
    fields = {"maxMsgNums": 32, "sysFlag": 2, "suspendTimeoutMillis": 0, "subVersion": 1}
    place = {"consumerGroup": "group", "topic": "Topic", "queueId": 0, "queueOffset": 0}
    return {**place, **fields, **more}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(MAY)
    return path


@pytest.fixture
def places() -> dict[str, int]:
    """Physical offsets of the store's records, filled by ``store``."""
    return {}


@pytest.fixture
def store(tmp_path: Path, places: dict[str, int]) -> Path:
    """A message in a queue; then one that waits in RocketMQ's own topic for the same topic, and
    one that waits for another."""
    small = SmallStore(tmp_path / "store")
    small.append()
    for name in ("Topic", "Secret"):
        waiting = {b"REAL_TOPIC": name.encode(), b"DELAY": b"3"}
        text = b"".join(key + b"\x01" + value + b"\x02" for key, value in waiting.items())
        places[name] = small.log.append(
            topic=b"SCHEDULE_TOPIC_XXXX", queue_id=2, queue_offset=0, properties=text
        )
    small.append()
    return small.write()


@pytest.fixture
def port(store: Path, rules: Path) -> Iterator[int]:
    with served(store, acl=rules) as found:
        yield found


def test_no_request_passes_unsigned(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """No code, known or not, is open; the log says so once for each."""
    codes = {*RequestCode, *TABLE, 9999}
    with Client(port) as client:
        for code in (*codes, *codes):
            answer = client.ask(code, pull(), heartbeat("c", "group", "Topic"))
            assert answer.code == NO_PERMISSION
            assert answer.header["remark"] == f"request {code} is not signed: it has no AccessKey"
    refused = [text for text in caplog.messages if "refused" in text]
    assert len(refused) == len(codes)
    assert all(text.startswith("request of 127.0.0.1 refused: ") for text in refused)


def test_a_consumer_with_its_rights(port: int) -> None:
    """It is served what it may have, in the name server and at the broker, and nothing else."""
    with Client(port) as client:
        beat = heartbeat("c", "group", "Topic", "%RETRY%group")
        assert ask(client, HEART_BEAT, {}, beat).code == 0
        assert ask(client, MEMBERS, {"consumerGroup": "group"}).json["consumerIdList"] == ["c"]
        assert ask(client, ROUTE, {"topic": "Topic"}).code == 0
        assert ask(client, CLUSTER, {}).code == 0
        assert ask(client, ROUTE, {"topic": "TBW102"}).code == UNKNOWN_TOPIC
        assert ask(client, PULL, pull()).code == 0
        for code, ext, body, lack in (
            (PULL, pull(topic="Other"), b"", "SUB on topic 'Other'"),
            (PULL, pull(consumerGroup="other"), b"", "SUB on group 'other'"),
            (HEART_BEAT, {}, heartbeat("c", "other", "Topic"), "SUB on group 'other'"),
            (HEART_BEAT, {}, heartbeat("c", "group", "Other"), "SUB on topic 'Other'"),
            (ROUTE, {"topic": "Other"}, b"", "SUB on topic 'Other'"),
            (TOPICS, {}, b"", "the rights of an administrator"),
        ):
            answer = ask(client, code, ext, body)
            remark = f"AccessKey '{KEY}' lacks {lack}, for request {code}"
            assert (answer.code, answer.header["remark"]) == (NO_PERMISSION, remark)
        assert ask(client, MEMBERS, {"consumerGroup": "group"}).json["consumerIdList"] == ["c"]


def test_a_record_is_its_topics(port: int, places: dict[str, int]) -> None:
    """A waiting record is that of the topic for which it waits; where no record is, only an
    administrator is told so."""
    with Client(port) as client:
        assert ask(client, VIEW, {"offset": 0}).code == 0
        assert ask(client, VIEW, {"offset": places["Topic"]}).code == 0
        for offset in (places["Secret"], 1, 1 << 40):
            answer = ask(client, VIEW, {"offset": offset, "topic": "Topic"})
            assert answer.code == NO_PERMISSION


def test_a_record_is_judged_by_its_own_store(tmp_path: Path, rules: Path) -> None:
    """Three stores have records of different topics at one place of their logs."""
    stores = [SmallStore(tmp_path / f"store-{n}", n.encode()) for n in ("Other", "Topic", "Secret")]
    for small in stores:
        small.append()
    places = [(root, root) for root in (small.write() for small in stores)]
    answers = []
    with served_stores(places, acl=rules) as ports:
        for port in ports:
            with Client(port) as client:
                answers.append(ask(client, VIEW, {"offset": 0}).code)
    assert answers == [NO_PERMISSION, 0, NO_PERMISSION]


def java_hash(text: str) -> int:
    """``String.hashCode`` of ASCII, as an unsigned number."""
    found = 0
    for char in text:
        found = (31 * found + ord(char)) % (1 << 32)
    return found


def key_with_hash(prefix: str, wanted: int) -> str:
    """A key that gives the prefix and itself this hash."""
    rest = (wanted - java_hash(prefix + "@" * 7)) % (1 << 32)
    return "".join(chr(ord("@") + rest // 31**place % 31) for place in reversed(range(7)))


def test_a_query_by_key_stays_in_its_topic(tmp_path: Path) -> None:
    """The index finds hashes, and whoever may read one topic can choose a key with the hash of
    another topic's key."""
    root = unpack_golden("plain", tmp_path)
    stored = next(message for message in log_records(root) if b"KEYS" in message.property_map)
    topic, key = stored.topic.decode(), stored.property_map[b"KEYS"].decode().split()[0]
    own = next(name for name in ("Topic_0", "Topic_1") if name != topic)
    chosen = key_with_hash(f"{own}#", java_hash(f"{topic}#{key}"))
    with MessageStore(root) as store:
        (found, *_) = store.index.query(own, chosen).messages
        assert found.topic == topic
    times = {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    with served(root) as port, Client(port) as client:
        assert client.ask(QUERY, {"topic": topic, "key": key, **times}).code == 0
        answer = client.ask(QUERY, {"topic": own, "key": chosen, **times})
        assert (answer.code, answer.body) == (NOT_FOUND, b"")


def test_changed_rules_end_waiting_pulls(store: Path, rules: Path) -> None:
    """The client pulls again at once, whichever store it is connected to, and is refused by the new
    rules."""
    other = SmallStore(store.with_name("other"))
    for _ in range(2):
        other.append()
    waiting = pull(queueOffset=2, suspendTimeoutMillis=15000)
    stores = [(root, root) for root in (store, other.write())]
    with (
        served_stores(stores, acl=rules) as ports,
        Client(ports[0]) as one,
        Client(ports[1]) as two,
    ):
        asked = []
        for client in (one, two):
            assert ask(client, HEART_BEAT, {}, heartbeat("c", "group", "Topic")).code == 0
            request = signed(PULL, {k: str(v) for k, v in waiting.items()}, b"", KEY, SECRET)
            asked.append((client, client.send(PULL, {**request.ext})))
            # requests of one connection are taken in their order: the pull waits
            assert ask(client, ROUTE, {"topic": "Topic"}).code == 0
        new = rules.with_suffix(".new")
        new.write_text(MAY_NOT)
        new.replace(rules)
        for client, opaque in asked:
            answer = client.receive()
            assert (answer.opaque, answer.code) == (opaque, RETRY)
            assert answer.ext["nextBeginOffset"] == "2"
            assert ask(client, PULL, waiting).code == NO_PERMISSION
            assert ask(client, ROUTE, {"topic": "Topic"}).code == 0


def test_protection_is_said_in_words(rules: Path) -> None:
    """A server beyond loopback needs rules, or the word."""
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.com"):
        with pytest.raises(UsageError, match="`acl=PATH`, or allow it, with `is_insecure=`"):
            Server(ServerConfig(host, 0))
        ServerConfig(host, 0, acl=rules).check_protection()
        ServerConfig(host, 0, is_insecure=True).check_protection()
    with pytest.raises(UsageError, match="give either `acl=PATH` or `is_insecure=`"):
        Server(ServerConfig("127.0.0.1", 0, acl=rules, is_insecure=True))
    for host in ("127.0.0.1", "::1", "localhost"):
        ServerConfig(host, 0).check_protection()


@pytest.mark.parametrize("auth", [None, *ClientAuth])
def test_client_certificates(store: Path, tmp_path: Path, auth: ClientAuth | None) -> None:
    """Clients come with the right certificate, another one, none, and without TLS."""
    cert, key = make_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    pairs = {"right": (cert, key), "other": make_certificate(tmp_path / "other"), "none": None}
    passing = set()
    options = {"tls_cert": cert, "tls_key": key, "tls_client_ca": cert, "tls_client_auth": auth}
    with served(store, **options) as port:
        for name, pair in pairs.items():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if pair is not None:
                context.load_cert_chain(*pair)
            try:
                with Client(port, context) as client:
                    assert client.ask(ROUTE, {"topic": "Topic"}).code == 0
                passing.add(name)
            except OSError:
                pass
        with Client(port) as client:
            client.send(ROUTE, {"topic": "Topic"})
            try:
                assert client.receive().code == 0
                passing.add("plain")
            except ConnectionError:
                pass
    assert passing == {
        ClientAuth.NONE: {"right", "other", "none", "plain"},
        ClientAuth.OPTIONAL: {"right", "none", "plain"},
    }.get(auth or ClientAuth.REQUIRE, {"right"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls_client_auth": ClientAuth.REQUIRE}, "`tls_client_auth=` needs `tls_client_ca=FILE`"),
        ({"tls_client_ca": "cert"}, "and `tls_client_ca=` need `tls_cert=FILE`"),
        ({"tls_cert": "cert", "tls_key": "key", "tls_client_ca": "none"},
         "cannot use the authorities' certificates"),
        ({"tls_cert": "cert", "tls_key": "key", "tls_client_ca": "key"},
         "cannot use the authorities' certificates"),
    ],
)  # fmt: skip
def test_client_certificates_that_cannot_be_checked(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    """The start is refused."""
    make_certificate(tmp_path)
    given = {name: tmp_path / x if name != "tls_client_auth" else x for name, x in options.items()}
    with pytest.raises(UsageError) as caught:
        Server(ServerConfig("127.0.0.1", 0, **given))  # type: ignore[arg-type]
    assert words in str(caught.value)
