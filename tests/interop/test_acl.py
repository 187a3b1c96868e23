"""RocketMQ's own consumers sign their requests, and ``reput serve --acl`` checks them.

The store is golden store broker: 6,000 orders in four queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.interop.clients import Consumer, Server, serving
from tests.interop.maven import HarnessError
from tests.interop.rocketmq import OLD_CLIENT, require_maven
from tests.support.certificates import make_certificate
from tests.support.golden import log_records, unpack_golden

TOPIC, GROUP, KEY, SECRET = "Orders", "billing", "billing-app", "billing-secret"
RULES = f"""
accounts:
- accessKey: {KEY}
  secretKey: {SECRET}
  topicPerms: [{TOPIC}=SUB]
  groupPerms: [{GROUP}=SUB]
"""
KINDS = ("concurrent", "orderly", "subscribe", "pull")
WAIT_SECONDS = 60.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One for each test, so that every group begins anew."""
    require_maven()
    return unpack_golden("broker", tmp_path)


@pytest.fixture
def server(store: Path, tmp_path: Path) -> Iterator[Server]:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    with serving(store, "--acl", rules) as found:
        yield found


def clients_in_turn(cases: Sequence[tuple[object, ...]]) -> list[object]:
    """Each case with the client of 5.3.3 and with OLD_CLIENT: ``make test`` runs it with one of
    them, and the next case with the other one."""
    return [
        pytest.param(*case, client, marks=[pytest.mark.slow] * ((number + bool(client)) % 2))
        for number, case in enumerate(cases)
        for client in ("", OLD_CLIENT)
    ]


def credentials(key: str = KEY, secret: str = SECRET) -> dict[str, str]:
    return {"reput.accessKey": key, "reput.secretKey": secret}


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "client"), clients_in_turn([(kind,) for kind in KINDS]))
def test_a_consumer_that_signs(store: Path, server: Server, kind: str, client: str) -> None:
    """It gets every message, and nothing that it asks for on the way is refused."""
    count = sum(message.topic == TOPIC.encode() for message in log_records(store))
    with Consumer(
        server.namesrv, kind, TOPIC, GROUP, client=client, properties=credentials()
    ) as consumer:
        found = consumer.take(count)
        found += consumer.stop()
    assert len({(m.queue_id, m.queue_offset) for m in found}) == len(found) == count
    assert "refused" not in server.stderr


@pytest.mark.extended
@pytest.mark.parametrize("client", ["", OLD_CLIENT])
def test_a_filter_that_the_server_checks(store: Path, server: Server, client: str) -> None:
    """A consumer with an SQL92 filter asks at its start whether the server understands it."""
    wanted = sum(message.property_map.get(b"KEYS") == b"key1" for message in log_records(store))
    with Consumer(
        server.namesrv, "concurrent", TOPIC, GROUP, filter="sql:KEYS='key1'", client=client,
        properties=credentials(),
    ) as consumer:  # fmt: skip
        assert len(consumer.take(wanted)) == wanted > 0
    assert "refused" not in server.stderr


@pytest.mark.extended
@pytest.mark.parametrize(
    ("properties", "topic", "group", "words", "client"),
    clients_in_turn(
        [
            (credentials(secret="another-secret"), TOPIC, GROUP, "the signature of AccessKey"),
            (credentials(key="another-app"), TOPIC, GROUP, "AccessKey 'another-app' is unknown"),
            ({}, TOPIC, GROUP, "is not signed: it has no AccessKey"),
            (credentials(), "Audit", GROUP, "lacks SUB on topic 'Audit', for request 105"),
            (credentials(), TOPIC, "audit", "lacks SUB on group 'audit', for request 34"),
        ]
    ),
)
def test_a_consumer_that_may_not(
    server: Server, properties: dict[str, str], topic: str, group: str, words: str, client: str
) -> None:
    """It gets nothing, and the server says why."""
    with Consumer(
        server.namesrv, "concurrent", topic, group, client=client, properties=properties
    ) as consumer:
        server.wait_until(lambda: words in server.stderr, WAIT_SECONDS)
        assert consumer.kill() == []


@pytest.mark.parametrize("client", ["", OLD_CLIENT])
def test_a_client_certificate(store: Path, tmp_path: Path, client: str) -> None:
    """A consumer shows its certificate where the server asks for one, and is refused without."""
    cert, key = make_certificate(tmp_path)
    properties = {
        "tls.enable": "true", "tls.test.mode.enable": "false", "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(cert),
    }  # fmt: skip
    shown = {"tls.client.certPath": str(cert), "tls.client.keyPath": str(key)}
    options = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
    with serving(store, *options) as server:
        given = {"client": client, "properties": {**properties, **shown}}
        with Consumer(server.namesrv, "concurrent", TOPIC, GROUP, **given) as consumer:
            assert len(consumer.take(1)) == 1
        given["properties"] = properties
        with (
            pytest.raises(HarnessError),
            Consumer(server.namesrv, "concurrent", TOPIC, "without", **given),
        ):
            pass
        assert "connection of 127.0.0.1 refused: it ended before" in server.stderr
