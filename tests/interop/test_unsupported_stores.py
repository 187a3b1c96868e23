"""Stores that real brokers make of the kinds that are not read: each is recognised as what it is.

Not compared: what lies in them. RocketMQ 5.3.3 cannot keep its light queues in RocksDB alone.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import UsageError
from tests.interop import rocketmq

pytestmark = pytest.mark.usefixtures("release")
TOPIC = "Unsupported"
MESSAGES = 20


def refusal(store: Path, conf: str | None = None) -> str:
    """The one line with which the store is refused, with a broker.conf if one is given."""
    if conf is not None:
        (store / "broker.conf").write_text(conf)
    with pytest.raises(UsageError) as caught:
        read_store_settings(store)
    return str(caught.value)


@pytest.mark.parametrize("release", [rocketmq.PARITY], indirect=True)
def test_a_broker_with_dledger_and_topics_in_rocksdb_and_queues_written_twice(
    tmp_path: Path,
) -> None:
    """By its settings; without them by its directories, until the settings say that one of them
    counts no more; at last by its log's bytes alone. RocketMQ 5.5.1 does not start with all
    of them at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = tmp_path / "store"
    settings: dict[str, rocketmq.Setting] = {
        "enableDLegerCommitLog": True, "dLegerGroup": "g", "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{port}",
        "configManagerVersion": "v2", "rocksdbCQDoubleWriteEnable": True,
    }  # fmt: skip
    with rocketmq.Broker(store, {TOPIC: 1}, settings) as broker:
        rocketmq.send(broker.namesrv, TOPIC, MESSAGES, seed=5)
    assert list((store / "consumequeue" / TOPIC / "0").iterdir())
    assert "enableDLegerCommitLog in" in refusal(store)
    assert f"{store / 'dledger-n0'} is a DLedger log" in refusal(store, "")
    conf = "enableDLegerCommitLog=false\n"
    assert f"{store / 'consumequeue'} is a RocksDB store" in refusal(store, conf)
    conf += "rocksdbCQDoubleWriteEnable=true\n"
    assert f"{store / 'config' / 'rdb'} is a RocksDB store" in refusal(store, conf)
    (store / "dledger-n0" / "data").rename(store / "commitlog")
    first = store / "commitlog" / f"{0:020d}"
    conf += "configManagerVersion=v1\n"
    assert f"{first} begins with a DLedger entry at physical offset 0" in refusal(store, conf)


@pytest.mark.extended
def test_a_broker_with_queues_in_rocksdb(tmp_path: Path) -> None:
    """By its settings, and by its directories without them."""
    store = tmp_path / "store"
    with rocketmq.Broker(store, {TOPIC: 1}, {"storeType": "defaultRocksDB"}):
        pass
    assert "storeType in" in refusal(store)
    assert f"{store / 'consumequeue'} is a RocksDB store" in refusal(store, "")


@pytest.mark.parametrize("release", [rocketmq.NEWEST], indirect=True)
def test_a_broker_with_light_queues_in_rocksdb_alone(tmp_path: Path) -> None:
    """RocketMQ 5.5 writes no file of a light queue then, and all files of the others."""
    store = tmp_path / "store"
    settings: dict[str, rocketmq.Setting] = {
        "enableMultiDispatch": True, "enableLmq": True, "rocksdbCQDoubleWriteEnable": True,
        "combineCQUseRocksdbForLmq": True,
    }  # fmt: skip
    with rocketmq.Broker(store, {TOPIC: 1}, settings) as broker:
        rocketmq.send(broker.namesrv, TOPIC, MESSAGES, seed=6, light_queues=["%LMQ%a"])
    queues = {path.name for path in (store / "consumequeue").iterdir() if any(path.glob("0/0*"))}
    assert TOPIC in queues
    assert "%LMQ%a" not in queues
    assert "combineCQUseRocksdbForLmq in" in refusal(store)
