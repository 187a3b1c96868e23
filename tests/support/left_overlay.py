"""An overlay with something of every kind in it, as a server of ours has left it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reput.store.log.record import Record
from tests.readers.stores import SmallStore
from tests.support.golden import log_records
from tests.support.processes import became
from tests.support.remoting import Client, heartbeat, served_stores

GROUP, RETRIES, DEAD = "group", "%RETRY%group", "%DLQ%group"
BEAT, SEND_BACK, COMMIT, MAX, SEND_V2 = 34, 36, 15, 30, 310
SECONDS = 30.0
LEVELS = " ".join(["1s", *["1h"] * 17])
"""Delay levels of the base: what waits for another one than 1 is still there afterwards."""


@dataclass(frozen=True, slots=True)
class LeftOverlay:
    """The output; each tuple has the attempts and the body of the messages of one kind."""

    output: Path
    waiting: tuple[tuple[int, bytes], ...]
    delivered: tuple[tuple[int, bytes], ...]
    dead: tuple[tuple[int, bytes], ...]

    @property
    def root(self) -> Path:
        """The overlay."""
        return self.output / "overlay"

    @property
    def records(self) -> list[Record]:
        """Every record of its log."""
        return log_records(self.root)


def base(root: Path, count: int) -> SmallStore:
    """A store of ``count`` messages, each with its number as key, body and attempts."""
    small = SmallStore(root)
    for number in range(count):
        key = b"UNIQ_KEY\x01%032X\x02TAGS\x01a\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02" % number
        small.append(properties=key, body=b"message %d" % number, reconsume_times=number % 3)
    small.write()
    with (small.root / "broker.conf").open("a") as conf:
        conf.write(f"brokerName=base\nmessageDelayLevel={LEVELS}\n")
    return small


def left_overlay(directory: Path) -> LeftOverlay:
    """Serve a base of twelve messages, of which a group fails four of each kind; two messages that
    a client sent are alike in everything."""
    small, output = base(directory / "store", 12), directory / "output"
    (output / "overlay").mkdir(parents=True)
    (output / "consumequeue").symlink_to(small.root / "consumequeue")
    (output / "overlay" / "broker.conf").write_text("mappedFileSizeCommitLog=65536\n")
    starts = [start for start, _ in small.log.spans]
    with (
        served_stores([(small.root, output)], overlay=True) as ports,
        Client(ports[0]) as client,
        Client(ports[1]) as twin,
    ):
        client.ask(BEAT, None, heartbeat("me", GROUP, "Topic"))
        for number, start in enumerate(starts):
            level = (1, 4, -1)[number % 3]
            assert client.ask(SEND_BACK, sent_back(start, number, level)).code == 0
        queue = {"consumerGroup": GROUP, "topic": RETRIES, "queueId": 0}
        assert became(lambda: twin.ask(MAX, queue).ext == {"offset": "4"}, SECONDS)
        # the group has consumed the first, and has failed with the second once more
        first, second, *_ = _retries(output)
        twin.ask(BEAT, None, heartbeat("me", GROUP, RETRIES))
        assert first.queue_offset == 0
        assert twin.ask(COMMIT, {**queue, "commitOffset": 1}).code == 0
        number = int(second.body.split()[1])
        again = sent_back(second.physical_offset, number, 4)
        assert twin.ask(SEND_BACK, again).code == 0
        for _ in range(2):
            assert twin.ask(SEND_V2, sent("UNIQ_KEY\x01ALIKE\x02"), b"alike").code == 0
        assert became(lambda: len(_retries(output)) == 6, SECONDS)
    retries = _retries(output)[2:]
    waiting = [(number % 3 + 1, b"message %d" % number) for number in range(1, 12, 3)]
    waiting.append((second.reconsume_times + 1, second.body))
    return LeftOverlay(
        output,
        tuple(waiting),
        tuple((one.reconsume_times, one.body) for one in retries),
        tuple((number % 3 + 1, b"message %d" % number) for number in range(2, 12, 3)),
    )


def _retries(output: Path) -> list[Record]:
    records = log_records(output / "overlay")
    return [one for one in records if one.topic == RETRIES.encode()]


def sent_back(offset: int, number: int, level: int) -> dict[str, object]:
    """The request of a listener that could not consume a message."""
    fields = {"originTopic": "Topic", "originMsgId": f"{number:032X}", "delayLevel": level}
    return {"group": GROUP, "offset": offset, "maxReconsumeTimes": 16, **fields}


def sent(properties: str) -> dict[str, object]:
    """The request of a client that sends a message to the retry topic itself."""
    fields = {"a": "producers", "b": RETRIES, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 7, "h": 3}
    return {**fields, "i": properties, "j": 1, "k": "false", "m": "false", "l": 16}
