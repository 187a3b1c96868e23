"""``reput serve`` as a command: how it starts, warns, ends, and what it refuses."""

from __future__ import annotations

import shutil
import signal
import socket
from pathlib import Path

import pytest

from tests.interop.clients import served_by, serving
from tests.readers.stores import SmallStore
from tests.support.certificates import make_certificate
from tests.support.cli import Call
from tests.support.remoting import Client


@pytest.fixture
def store(tmp_path: Path) -> Path:
    small = SmallStore(tmp_path / "store")
    small.append()
    return small.write()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(store: Path, number: int) -> None:
    """With exit code 0, connections or not, and what was committed is written."""
    place = {"consumerGroup": "group", "topic": "Topic", "queueId": 0, "commitOffset": 1}
    with serving(store) as server, Client(int(server.namesrv.rpartition(":")[2])) as client:
        assert client.ask(15, place).code == 0
        server.process.send_signal(number)
        assert server.process.wait(60) == 0
        assert client.is_closed()
    assert '"Topic@group":{0:1' in (store / "config" / "consumerOffset.json").read_text()


@pytest.mark.extended
def test_an_open_address_is_warned_of(store: Path, tmp_path: Path) -> None:
    """Where nobody is asked who they are; where they are, its one line says by which rules, which
    a configuration file may name, too."""
    rules, file = tmp_path / "plain_acl.yml", tmp_path / "reput.toml"
    rules.write_text("accounts: [{accessKey: someone, secretKey: secret1}]")
    file.write_text(f"[serve]\nacl = '{rules}'\n")
    with serving(store, "--insecure", listen="0.0.0.0:0") as server:
        assert "can read every message" in server.stderr
    with serving(store) as server:
        assert "can read every message" not in server.stderr
    address = ("--listen", "0.0.0.0:0")
    with served_by("--config", file, "serve", store, *address) as server:
        assert "can read every message" not in server.stderr
        assert f"access rules of {rules}: accounts: 1;" in server.stderr
        with Client(int(server.namesrv.rpartition(":")[2])) as client:
            assert client.ask(105, {"topic": "Topic"}).code == 16


def test_what_is_refused(store: Path, tmp_path: Path, call: Call) -> None:
    """Wrong calls end with exit code 2 and one line, before anything is written. An address that
    another process may give back is none."""
    linked = tmp_path / "linked"
    linked.symlink_to(store)
    alone, _ = make_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "store").symlink_to(store)
    shutil.copytree(store, tmp_path / "named")
    (tmp_path / "named" / "broker.conf").write_text("brokerName=a/b\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments, words in (
            ([store, "--listen", "here"], "--listen is 'here'; it must be HOST:PORT"),
            ([store, "--listen", "127.0.0.1:99999"], "it must be HOST:PORT"),
            ([store, "--listen", "192.0.2.1:0", "--insecure"], "cannot listen at 192.0.2.1:0"),
            ([store, "--listen", used], f"cannot listen at {used}"),
            ([store, "--tls-required"], "need --tls-cert FILE"),
            ([store, "--tls-client-auth", "require"], "--tls-client-auth needs --tls-client-ca"),
            ([store, "--listen", "0.0.0.0:0"], "with --acl PATH, or allow it, with --insecure"),
            ([store, "--acl", tmp_path / "none"], "cannot use the access rules of"),
            ([store, "--tls-cert", tmp_path / "none"], "cannot use the certificate"),
            ([store, "--tls-cert", alone], f"{alone} holds no certificate with its private key"),
            ([store, "--positions", "elsewhere"], "elsewhere"),
            ([tmp_path / "named" / "broker.conf"], "is not a directory"),
            ([], "give either STORE, which may be repeated, or --stores GLOB"),
            ([store, "--stores", tmp_path / "*"], "give either STORE"),
            ([store, tmp_path / "other" / "store"], "are both the broker store; state another"),
            ([store, linked, "--broker-conf", tmp_path / "x"], "--broker-conf is for one store"),
            ([store, linked, "--listen", "127.0.0.1:65535"], "need ports up to 65536"),
            ([tmp_path / "named"], "state brokerName in its broker.conf"),
        ):
            done = call("serve", *arguments)
            code = 1 if words.startswith("cannot listen") else 2
            assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
            assert words in done.stderr
        for options, words in (
            (["--serve", used], f"cannot listen at {used}"),
            (["--serve", "here"], "--serve is 'here'; it must be HOST:PORT"),
            (["--serve", used, "--once"], "leave --once out"),
            (["--advertise", "here"], "need --serve HOST:PORT"),
            (["--insecure"], "need --serve HOST:PORT"),
            (["--serve", "0.0.0.0:0"], "with --acl PATH, or allow it, with --insecure"),
        ):
            done = call("run", store, "--output", tmp_path / "built", *options)
            code = 1 if words.startswith("cannot listen") else 2
            assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
            assert words in done.stderr
        assert not (tmp_path / "built").exists()


@pytest.mark.extended
def test_what_a_refusal_advises_is_served(store: Path, tmp_path: Path) -> None:
    """Stores of one name, a certificate whose key is in another file, a run that follows."""
    second, linked = tmp_path / "other" / "store", tmp_path / "linked"
    shutil.copytree(store, second)
    linked.symlink_to(second)
    cert, key = make_certificate(tmp_path)
    conf = tmp_path / "own.conf"
    shutil.copy(store / "broker.conf", conf)
    for arguments in (
        (store, linked),
        (store, "--tls-cert", cert, "--tls-key", key, "--tls-required"),
        (store, "--broker-conf", conf),
    ):
        with serving(*arguments):
            pass
    with (second / "broker.conf").open("a") as named:
        named.write("brokerName=another\n")
    with serving(store, second):
        pass
    with served_by("run", store, "--output", tmp_path / "built", "--serve", "127.0.0.1:0"):
        pass


def test_several_stores(tmp_path: Path) -> None:
    """A glob serves each at a port of its own; below DIR each has the output of its name."""
    for name in ("broker-x", "broker-y"):
        small = SmallStore(tmp_path / name)
        small.append()
        small.write()
    (tmp_path / "broker-y" / "broker.conf").write_text("brokerName=named\nbrokerClusterName=east\n")
    output = tmp_path / "queues"
    shutil.copytree(tmp_path / "broker-x" / "consumequeue", output / "broker-x" / "consumequeue")
    shutil.copytree(tmp_path / "broker-y" / "consumequeue", output / "named" / "consumequeue")
    options = ("--stores", tmp_path / "broker-*", "--output", output)
    place = {"consumerGroup": "group", "topic": "Topic", "queueId": 0, "commitOffset": 1}
    with serving(*options) as server:
        with Client(int(server.namesrv.rpartition(":")[2])) as client:
            found = client.ask(106).json
            assert found["clusterAddrTable"] == {
                "DefaultCluster": ["broker-x"], "east": ["named"],
            }  # fmt: skip
            table = found["brokerAddrTable"]
            assert table["broker-x"]["brokerAddrs"]["0"] == server.namesrv
            other = table["named"]["brokerAddrs"]["0"]
        with Client(int(other.rpartition(":")[2])) as client:
            assert client.ask(15, place).code == 0
    assert '"Topic@group":{0:1' in (output / "named" / "config" / "consumerOffset.json").read_text()
    assert "group" not in (output / "broker-x" / "config" / "consumerOffset.json").read_text()
    assert not (tmp_path / "broker-y" / "config").exists()
