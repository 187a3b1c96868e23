"""Makes the golden stores of RocketMQ 5.5: ``python -m tests.golden.make``, with Java and Maven.

Real brokers and a real client write them; no byte comes from this project. Each run makes other
bytes (times, message ids), so the archives in this folder are kept and not made again by tests.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from tests.interop.rocketmq import Broker, Setting, drain, of_release, send

SMALL_FILES: dict[str, Setting] = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 1000,
    "mappedFileSizeConsumeQueueExt": 4096,
    "mapperFileSizeBatchConsumeQueue": 920,
    "maxHashSlotNum": 100,
    "maxIndexNum": 500,
    "messageIndexEnable": True,
    "enableAcceleratedRecovery": True,
    # the checkpoint follows such a flush alone, and these brokers do not live for its minute
    "flushConsumeQueueThoroughInterval": 1000,
}
EVERY_QUEUE: dict[str, Setting] = {
    "enableConsumeQueueExt": True,
    "enableCalcFilterBitMap": True,
    "enablePropertyFilter": True,
    "enableMultiDispatch": True,
    "enableLmq": True,
}
LIGHT_QUEUES = ("%LMQ%a", "%LMQ%b", "%LMQ%客户")
MESSAGES = 250


def write_orders(store: Path) -> None:
    """Two topics with messages of every kind."""
    with Broker(store, {"Orders": 3, "Audit": 1}, SMALL_FILES) as broker:
        for topic in ("Orders", "Audit"):
            sent = send(broker.namesrv, topic, MESSAGES, seed=55)
            drain(broker.namesrv, topic, sent["visible"])


def write_queues(store: Path) -> None:
    """A topic with bit maps and light queues, and one with batch queues."""
    with Broker(store, {"Trade": 2}, SMALL_FILES | EVERY_QUEUE) as broker:
        broker.order("topic", "Lots:2", "BatchCQ")
        broker.order("filter", "Trade", "rich", "amount > 50000")
        broker.order("filter", "Trade", "small", "amount IS NULL AND TAGS = 'TagA'")
        sent = send(broker.namesrv, "Trade", MESSAGES, seed=56, light_queues=LIGHT_QUEUES)
        drain(broker.namesrv, "Trade", sent["visible"])
        send(broker.namesrv, "Lots", MESSAGES, seed=57)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for release in ("5.5.0", "5.5.1"):
            for kind, write in (("orders", write_orders), ("queues", write_queues)):
                store = Path(directory) / f"{kind}-{release}"
                with of_release(release):
                    write(store)
                archive = Path(__file__).parent / f"{store.name}.tar.gz"
                with tarfile.open(archive, "w:gz") as out:
                    out.add(store, store.name, filter=anonymous)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
