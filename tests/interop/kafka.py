"""A real Kafka 4.2 broker for tests: one node in KRaft mode, and everything that it holds.

Invariants: bound to 127.0.0.1 on free ports, which it keeps over a restart; everything it writes is
in a directory of its own; it is only ever ended by its own process id.
"""

from __future__ import annotations

import collections
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from tests.interop import maven
from tests.interop.maven import HarnessError

PROJECT = Path(__file__).parent / "kafkabroker"
CLUSTER_ID = "cmVwdXQtdGVzdHMtMDAwMQ"
READY_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 60.0
STARTS_FAST = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_STARTED = "Kafka Server started"
_LOG = "-Dorg.slf4j.simpleLogger"


def require_kafka() -> None:
    """Skip the calling test where Java or Maven is missing; on CI that is a failure instead."""
    maven.require_maven("a real Kafka broker")


class Kafka:
    """One broker; ``stop`` and ``kill`` leave its data for the next ``start``."""

    def __init__(self, home: Path, jvm_options: Sequence[str] = STARTS_FAST) -> None:
        self._home = home
        self._jvm_options = jvm_options
        self._properties = home / "server.properties"
        self._process: subprocess.Popen[str] | None = None
        self._said: collections.deque[str] = collections.deque(maxlen=maven.ERROR_TAIL_LINES)
        self._lines: queue.Queue[str | None] = queue.Queue()
        places = [f"127.0.0.1:{port}" for port in _free_ports(4)]
        self.bootstrap, controller, self.proxied, self.proxy = places
        """Clients of ``proxy``, where a test may pass them on to ``proxied``, are told no other
        address."""
        self._format(controller)

    def _format(self, controller: str) -> None:
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},PROXIED://{self.proxied},"
            f"CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},PROXIED://{self.proxy}",
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "PROXIED", "CONTROLLER")
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self._home / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            # golden stores are older than Kafka's week
            "log.retention.ms": -1,
            "auto.create.topics.enable": "false",
            # compaction looks for work often
            "log.cleaner.backoff.ms": 500,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text(lines)
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self._properties)]
        done = subprocess.run(
            [*self._java(), "kafka.tools.StorageTool", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=READY_TIMEOUT_SECONDS,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(f"kafka's storage was not formatted\n{maven.tail(done.stdout)}")

    def _java(self) -> list[str]:
        return [
            "java", *self._jvm_options, "-XX:-UsePerfData",
            f"{_LOG}.logFile=System.out", f"{_LOG}.defaultLogLevel=warn",
            f"{_LOG}.log.kafka.server.KafkaRaftServer=info",
            f"-Djava.io.tmpdir={self._home}",
            "-cp", f"{maven.build(PROJECT)}{os.sep}lib{os.sep}*",
        ]  # fmt: skip

    def start(self) -> None:
        """Return once clients can use it; kill it and raise if that takes too long."""
        self._lines = queue.Queue()
        self._process = subprocess.Popen(
            # it ends with these tests, also where they are killed
            ["setpriv", "--pdeathsig", "KILL", *self._java(), "kafka.Kafka", str(self._properties)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        try:
            while True:
                line = self._lines.get(timeout=READY_TIMEOUT_SECONDS)
                if line is None:
                    raise HarnessError("kafka ended\n" + "\n".join(self._said))
                if _STARTED in line:
                    return
        except queue.Empty:
            self.kill()
            raise HarnessError("kafka did not start\n" + "\n".join(self._said)) from None

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.append(line.rstrip("\n"))
            self._lines.put(line)
        self._lines.put(None)

    def stop(self) -> None:
        """End it as an operator would."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_SECONDS)
            finally:
                self.kill()

    def kill(self) -> None:
        """End it as a power cut would. Repeatable."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def consumer(self) -> Iterator[KafkaConsumer]:
        """One that sees what is committed, from the beginning, and keeps no position."""
        options = {
            "bootstrap_servers": self.bootstrap,
            "group_id": None,
            "enable_auto_commit": False,
            "isolation_level": "read_committed",
            "auto_offset_reset": "earliest",
            "check_crcs": False,
        }
        with closing(KafkaConsumer(**options)) as opened:
            yield opened

    def read(self, topic: str) -> dict[int, list[ConsumerRecord]]:
        """Everything committed in a topic, by partition in Kafka's order."""
        with self.consumer() as consumer:
            numbers = consumer.partitions_for_topic(topic)
            if not numbers:
                return {}
            partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
            found: dict[int, list[ConsumerRecord]] = {part.partition: [] for part in partitions}
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(part) < ends[part] for part in partitions):
                for part, records in consumer.poll(timeout_ms=1000).items():
                    found[part.partition].extend(records)
            return found

    def topics(self) -> set[str]:
        """Names of all topics that are not Kafka's own."""
        with self.consumer() as consumer:
            return {name for name in consumer.topics() if not name.startswith("__")}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()
