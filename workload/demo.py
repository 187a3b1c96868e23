"""The demo: an appender writes a live log, the dispatcher follows it and serves its queues, a
consumer drains them, and every message is checked.

It uses two processes, as in production: the appender plays the broker and holds its store; the
dispatcher follows that store's log and writes to an output of its own. The consumer is a thread
here, and comes over the wire.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.serving.config import ServerConfig
from reput.serving.embedded import EmbeddedServer
from reput.serving.stores import BrokerIdentity
from reput.store import fsops
from reput.store.config import read_store_settings
from reput.store.datadirectories import check_target
from reput.store.errors import StoreError
from reput.store.files import COMMIT_LOG_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import tags_code
from reput.store.log.status import Outcome
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE, QueueKey
from reput.store.queue.kinds import QueueKind
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from reput.streaming.progress import Progress
from reput.workload.consumer import DemoConsumer
from reput.workload.messages import MessageBatch, Workload

LOG_FILE_SIZE = 64 << 20
CHECK_BATCH = 4096


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The settings of the appended messages."""

    topics: int
    queues: int
    rate: int
    """Messages/s."""
    body_size: int
    seconds: int
    seed: int = 1


@dataclass(frozen=True, slots=True)
class CheckedQueue:
    """One queue that was read back and whose every message is the one appended at its place."""

    topic: str
    queue_id: int
    message_count: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """A demo whose every message was found twice, in the queues and by the consumer."""

    queues: list[CheckedQueue]
    consumed: list[int]
    """Messages that the consumer got, of each topic: each once and in its order."""
    progress: Progress


def run_demo(
    plan: DemoPlan, directory: Path, stop: threading.Event, show: Callable[[Progress], None]
) -> DemoResult:
    """Append, follow, consume and check. Raises StoreError naming the first wrong message, and
    UsageError for a directory in which a store has its data."""
    check_target(directory)
    store, output = directory / "store", directory / "output"
    fsops.make_directories(store / COMMIT_LOG_DIRECTORY, directory)
    command = [
        sys.executable, "-P", "-m", "reput", "produce", str(store), "--json",
        "--topics", str(plan.topics), "--queues", str(plan.queues), "--rate", str(plan.rate),
        "--size", str(plan.body_size), "--seconds", str(plan.seconds), "--seed", str(plan.seed),
        "--commitlog-file-size", str(LOG_FILE_SIZE),
    ]  # fmt: skip
    ended = threading.Event()
    appended: list[int] = []
    workload = Workload(plan.topics, plan.queues, plan.body_size, plan.seed)
    consumer = DemoConsumer(workload)
    config = DispatcherConfig(store=store, output=output)
    server = EmbeddedServer(
        ServerConfig("127.0.0.1", 0),
        BrokerIdentity.of(config.given_settings()),
        output,
        consumer.begin,
    )
    # its log lines do not belong on the terminal that shows this process's progress
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as producer,
        server,
    ):
        try:

            def follow(progress: Progress) -> None:
                show(progress)
                if producer.poll() is None:
                    return
                if not appended and producer.stdout is not None:
                    if producer.returncode:
                        errors.seek(0)
                        raise StoreError(
                            f"the appender ended with {producer.returncode}: {errors.read()}"
                        )
                    appended.append(json.loads(producer.stdout.read())["end_offset"])
                if progress.end_offset >= appended[0] or stop.is_set():
                    ended.set()

            progress = run_dispatcher(config, ended, follow, on_visible=server.end_moved)
            consumed = consumer.finish(progress.counts.messages)
        finally:
            producer.terminate()
    queues = check_queues(workload, config, progress.counts.messages)
    return DemoResult(queues, consumed, progress)


def check_queues(
    workload: Workload, config: DispatcherConfig, message_count: int
) -> list[CheckedQueue]:
    """Read every queue back and compare every message with the one that the workload expects
    there."""
    settings = read_store_settings(config.store)
    log = CommitLog(settings.commit_log_directories)
    checked = []
    for topic_id, topic in enumerate(workload.topics):
        for queue_id in range(workload.queue_count):
            key = QueueKey(topic.decode(), queue_id)
            files = QueueKind.CONSUME.open(config.output, key, settings)
            unit_count = files.find_end(None) // CQ_STORE_UNIT_SIZE
            length = workload.queue_length(topic_id, queue_id, message_count)
            if unit_count != length:
                raise StoreError(
                    f"{key.topic} queue {queue_id} has {unit_count} of {length} messages"
                )
            for first in range(0, length, CHECK_BATCH):
                count = min(CHECK_BATCH, length - first)
                expected = workload.queue_slice(topic_id, queue_id, first, count)
                _check_slice(log, key, first, files.read(first, count), expected)
            checked.append(CheckedQueue(key.topic, queue_id, length))
    log.close()
    return checked


def _check_slice(
    log: CommitLog, key: QueueKey, first: int, units: NDArray[np.void], expected: MessageBatch
) -> None:
    for index, unit in enumerate(units):
        offset, size = int(unit["offset"]), int(unit["size"])
        message = log.record_at(offset, size, verify_crc=True)
        low, high = expected.body_bounds[index : index + 2]
        body = expected.bodies[low:high].tobytes()
        low, high = expected.property_bounds[index : index + 2]
        block = expected.properties[low:high].tobytes()
        appended = (key.topic.encode(), key.queue_id, first + index, body, block)
        if isinstance(message, Outcome) or appended != (
            message.topic, message.queue_id, message.queue_offset, message.body, message.properties,
        ) or int(unit["tags_code"]) != tags_code(message):  # fmt: skip
            raise StoreError(
                f"{key.topic} queue {key.queue_id} position {first + index} does not hold the "
                f"message that was appended: physical offset {offset}"
            )
