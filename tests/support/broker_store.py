"""A store as a broker leaves it, made byte by byte: a log, and the consume queues of its messages.

Nothing of the project's code writes it; tests then take units or files away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support import wire

FILE_SIZE = 64 << 10
QUEUE_FILE_SIZE = 400
PREPARED, ROLLBACK = 0x4, 0xC


@dataclass
class BrokerStore:
    """Messages in queues; ``write`` makes the files."""

    root: Path
    log: wire.PlainLog = field(default_factory=lambda: wire.PlainLog(FILE_SIZE))
    queues: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    """Physical offset and end of each message of a queue."""

    def put(self, topic: str, queue_id: int, count: int = 1, body: bytes = b"body") -> None:
        """Append messages to a queue."""
        messages = self.queues.setdefault((topic, queue_id), [])
        for _ in range(count):
            self.log.append(
                topic=topic.encode(), queue_id=queue_id, queue_offset=len(messages), body=body
            )
            messages.append(self.log.spans[-1])

    def put_half(self, sys_flag: int) -> None:
        """Append a message that goes into no queue."""
        self.log.append(topic=b"Half", sys_flag=sys_flag)

    def write(self) -> Path:
        """Write the log, its settings and all queues."""
        self.log.write(self.root / "commitlog")
        conf = (
            f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue={QUEUE_FILE_SIZE}\n"
            "brokerName=made\n"
        )
        wire.write_over(self.root / "broker.conf", conf.encode())
        for (topic, queue_id), spans in self.queues.items():
            units = b"".join(wire.UNIT.pack(start, end - start, 0) for start, end in spans)
            directory = self.root / "consumequeue" / topic / str(queue_id)
            directory.mkdir(parents=True, exist_ok=True)
            for at in range(0, len(units), QUEUE_FILE_SIZE):
                data = units[at : at + QUEUE_FILE_SIZE].ljust(QUEUE_FILE_SIZE, b"\0")
                wire.write_over(directory / wire.file_name(at), data)
        return self.root

    def zero_last(self, topic: str, queue_id: int, count: int, output: Path | None = None) -> int:
        """Zero the last units of a queue, as a power cut may leave it; return the bytes of the
        messages that have none now."""
        spans = self.queues[topic, queue_id]
        directory = (output or self.root) / "consumequeue" / topic / str(queue_id)
        for number in range(len(spans) - count, len(spans)):
            at = number * wire.UNIT.size
            path = directory / wire.file_name(at - at % QUEUE_FILE_SIZE)
            with path.open("r+b") as file:
                file.seek(at % QUEUE_FILE_SIZE)
                file.write(bytes(wire.UNIT.size))
        return sum(end - start for start, end in spans[len(spans) - count :])


def four_queues(root: Path, rounds: int = 60) -> BrokerStore:
    """Two topics of two queues that get messages in turn, an idle topic before them, and messages
    that go into no queue after them."""
    made = BrokerStore(root)
    made.put("Idle", 0, 3)
    for number in range(rounds):
        for topic in ("Orders", "Payments"):
            for queue_id in (0, 1):
                made.put(topic, queue_id, body=b"x" * (number % 7))
    made.put_half(PREPARED)
    made.put_half(ROLLBACK)
    return made
