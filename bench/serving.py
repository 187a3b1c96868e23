"""``reput serve`` beside a RocketMQ broker on the same log: pulls, a push consumer, long polling,
and groups with many members and queues.

Both servers run all the time and are asked in turns by one and the same client. The broker has
queues of its own of the same log files.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench import logs, measures, reput, rocketmq
from bench.context import Context
from bench.logs import GIB, Log
from bench.measures import Figures, Row
from bench.processes import (
    BenchError,
    Child,
    LineProcess,
    PeakUse,
    child,
    cpu_seconds,
    line_process,
    python_command,
)
from bench.reput import READY_SECONDS
from reput.checkpoints.watermark import WatermarkFile
from reput.readers.messagestore import MessageStore
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.frame import LENGTH_SIZE, Frame, decode, encode
from reput.store.files import BROKER_CONF_FILE, STATE_DIRECTORY

BODY_SIZE = 300
LOG_SHARE = 1 / 16
"""Share of the main log's size: half a GiB of 8."""
TOPIC, QUEUES = "Topic_000", 8
FULL_SHARE = 0.9
"""Frames must be this full at least, on average."""
FEW, MANY = 32, 1000
"""Messages of one answer: what RocketMQ's clients ask for and brokers give, and a setting of both
here."""
LIMITS = {
    "maxTransferCountOnMessageInMemory": MANY,
    "maxTransferBytesOnMessageInMemory": 4 << 20,
}
PULL_32, PULL_1000, PUSH = "serve-pull-32", "serve-pull-1000", "serve-push"
SPEED_ROWS = (PULL_32, PULL_1000, PUSH)
OURS, THEIRS = "reput", "RocketMQ"
AS_IT_COMES = "RocketMQ, 32 a frame"
GOALS = {PULL_32: 1.3, PULL_1000: 3.0, PUSH: 1.0}
RATE_UNIT = "k messages/s"
PULL_SECONDS = 300.0
PUSH_SECONDS = 600.0
LOOK_SECONDS = 0.05

WAKE, HELD, BALANCE = "serve-wake", "serve-held", "serve-balance"
WAKES = 1000
WAKE_GOAL_MS = (10.0, 20.0)
HELD_PULLS = 200
HELD_GOAL = 0.02
MEMBERS = 100
MANY_TOPICS, QUEUES_OF_EACH = 50, 200
BALANCE_GOAL_SECONDS = 10.0
BALANCE_GOAL_BYTES = GIB


@contextmanager
def serving(store: Path, output: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Run ``reput serve`` in the block; yield its HOST:PORT and process id."""
    place = ("--output", str(output), "--listen", "127.0.0.1:0")
    with served_by(python_command("-m", "reput", "serve", str(store), *place, *options)) as server:
        yield server


@contextmanager
def served_by(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run a command of ``reput`` that serves in the block; yield its HOST:PORT and process id."""
    with child(command, silent=True) as running:
        yield _address(running), running.process.pid


def _address(running: Child) -> str:
    """Wait until the server says where it listens."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and running.process.poll() is None:
        # the child writes at the file's position, which must stay
        said = os.pread(running.errors.fileno(), 1 << 16, 0).decode(errors="replace")
        if match := re.search(r"serving .* at (\S+:[0-9]+)\b", said):
            return match[1]
        time.sleep(LOOK_SECONDS)
    raise BenchError(f"reput does not listen\n{running.last_words()}")


@dataclass(slots=True)
class System:
    """One server, and what it used while it was measured."""

    namesrv: str
    broker: str
    """Address of its broker."""
    pid: int
    cpu_seconds: list[float] = field(default_factory=list)
    """CPU seconds of the server for a million messages, one value a pass."""
    memory_bytes: int = 0

    @contextmanager
    def watched(self, messages: int) -> Iterator[None]:
        """Add what the server uses during the block, in which it sends this many messages."""
        before = cpu_seconds(self.pid)
        yield
        self.cpu_seconds.append((cpu_seconds(self.pid) - before) / messages * 1e6)
        self.memory_bytes = max(self.memory_bytes, psutil.Process(self.pid).memory_info().rss)


@contextmanager
def broker(log: Log, view: Path) -> Iterator[System]:
    """Run a broker of RocketMQ, with its name server, on a view of the log."""
    logs.link_view(log, view)
    with rocketmq.unchanged(log), running_broker(view, log.file_size) as system:
        logs.check_queues(view, log)
        yield system


@contextmanager
def running_broker(store: Path, file_size: int, **settings: bool) -> Iterator[System]:
    """Run a broker of RocketMQ, with its name server, on a store whose log's files have
    ``file_size`` bytes; ``settings`` are the broker's."""
    # imported here, because other rows do without pytest
    from tests.interop.rocketmq import Broker  # noqa: PLC0415

    given = {
        **LIMITS, "mappedFileSizeCommitLog": file_size, "messageIndexEnable": False,
        "timerWheelEnable": False, "fileReservedTime": 876000, "cleanFileForciblyEnable": False,
        **settings,
    }  # fmt: skip
    running = Broker(store, {TOPIC: QUEUES}, given, heap="2g", jvm_options=rocketmq.JVM_OPTIONS)
    with running:
        route = ask(running.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        (data,) = json.loads(bytes(route.body))["brokerDatas"]
        yield System(running.namesrv, data["brokerAddrs"]["0"], running.process.pid)


def ask(address: str, code: int, ext: Mapping[str, object]) -> Frame:
    """Return a server's answer to one request, over a connection of its own."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), READY_SECONDS) as connection:
        _send(connection, code, ext)
        return receive(connection)


def _send(connection: socket.socket, code: int, ext: Mapping[str, object]) -> None:
    texts = {name: str(value) for name, value in ext.items()}
    connection.sendall(encode(Frame(code, 1, ext=texts, language="JAVA")))


def receive(connection: socket.socket) -> Frame:
    data, length = b"", LENGTH_SIZE
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise BenchError("the server closed the connection")
        data += part
        if len(data) == LENGTH_SIZE:
            length += int.from_bytes(data, "big")
    return decode(data)


def measure_speed(context: Context) -> Iterator[Row]:
    """Measure raw pulls and a Java push consumer, of both servers in turns."""
    with context.directory("serving") as directory, ExitStack() as resources:
        log = _log(context, directory / "store")
        output = directory / "output"
        reput.build(log, output)
        logs.warm(log)
        systems = {THEIRS: resources.enter_context(broker(log, directory / "broker"))}
        address, pid = resources.enter_context(serving(log.store, output))
        systems[OURS] = System(address, address, pid)
        if context.row_names & {PULL_32, PULL_1000}:
            yield from _pull_rows(context, log, systems)
        if PUSH in context.row_names:
            yield _push_row(context, log, systems)


def _log(context: Context, store: Path) -> Log:
    """Write a log of one topic, whose settings allow for large answers."""
    with logs.log_writer(store, BODY_SIZE, topic_count=1, queue_count=QUEUES) as writer:
        log = writer.grow(int(context.gib * LOG_SHARE * GIB))
    lines = (f"{name}={value}\n" for name, value in LIMITS.items())
    (store / BROKER_CONF_FILE).write_text("".join(lines))
    context.say(f"log: {log.title}")
    return log


def _pull_rows(context: Context, log: Log, systems: Mapping[str, System]) -> Iterator[Row]:
    answers: dict[str, list[dict[str, Any]]] = {}
    with line_process(python_command("-m", "bench.pull_worker"), "the puller") as puller:
        puller.answer(READY_SECONDS)
        runs = {
            f"{name}, {count} a frame": _pulling(puller, log, system, count, answers)
            for count in (FEW, MANY)
            for name, system in systems.items()
        }
        for run in runs.values():
            run()
        answers.clear()
        seconds = measures.alternate(context.rounds, runs, context.say)
    rates = {
        key: value.as_rate(log.message_count / 1e3, RATE_UNIT) for key, value in seconds.items()
    }
    for name, count in ((PULL_32, FEW), (PULL_1000, MANY)):
        figures = {key: rates[f"{key}, {count} a frame"] for key in (OURS, THEIRS)}
        if name == PULL_1000:
            figures[AS_IT_COMES] = rates[f"{THEIRS}, {FEW} a frame"]
        if name in context.row_names:
            yield _pull_row(context, log, systems, name, count, figures, answers)


def _pulling(
    puller: LineProcess,
    log: Log,
    system: System,
    count: int,
    answers: dict[str, list[dict[str, Any]]],
) -> Callable[[], float]:
    """Return a pass over all queues whose answer is stored in ``answers``."""
    request = {
        "address": system.broker, "topic": TOPIC, "queues": QUEUES, "max_msg_nums": count,
    }  # fmt: skip

    def run() -> float:
        with system.watched(log.message_count):
            answer = puller.ask(json.dumps(request), PULL_SECONDS)
        answers.setdefault(f"{system.broker} {count}", []).append(check_pulled(answer, log, count))
        return float(answer["seconds"])

    return run


def check_pulled(answer: dict[str, Any], log: Log, count: int) -> dict[str, Any]:
    """Return the answer of a pass, or raise BenchError unless it has every message, in frames that
    are nearly full."""
    if (answer["messages"], answer["bytes"]) != (log.message_count, log.end_offset):
        raise BenchError(
            f"the puller got {answer['messages']:,} of {log.message_count:,} messages, "
            f"{answer['bytes']:,} of {log.end_offset:,} bytes"
        )
    # a frame also ends where a file of the queue or of the log does
    if answer["frames"] * FULL_SHARE * count > log.message_count:
        raise BenchError(f"{answer['frames']:,} frames are too many for {count} messages in each")
    return answer


def _pull_row(
    context: Context,
    log: Log,
    systems: Mapping[str, System],
    name: str,
    count: int,
    figures: dict[str, Figures],
    answers: Mapping[str, list[dict[str, Any]]],
) -> Row:
    goal, other = GOALS[name], figures.get(AS_IT_COMES, figures[THEIRS])
    times = measures.ratios(figures[OURS], other)
    row = Row(
        name=name,
        title=f"a raw client pulls {QUEUES} queues, {BODY_SIZE} bytes, {count:,} messages a frame",
        goal=f">= {goal:g}x RocketMQ" + (" as it comes" if AS_IT_COMES in figures else ""),
        result=measures.ratio_text(times),
        met=context.judged(times.median >= goal),
        figures=figures,
        details={
            "log": log.title,
            "passes": {key: answers[f"{system.broker} {count}"] for key, system in systems.items()},
            **_uses(systems),
        },
        notes=[_uses_text(systems)],
    )
    if AS_IT_COMES in figures:
        same = measures.ratio_text(measures.ratios(figures[OURS], figures[THEIRS]))
        row.notes.append(
            f"a broker gives up to {FEW} messages a frame whatever is asked; set to {MANY:,} like "
            f"reput here, it is the figure {THEIRS}, and reput {same} of it"
        )
    return row


def _push_row(context: Context, log: Log, systems: Mapping[str, System]) -> Row:
    # imported here, because other rows do without pytest
    from tests.interop.harnessjvm import finish, spawn  # noqa: PLC0415

    def pushing(system: System) -> Callable[[], float]:
        def run() -> float:
            arguments = ["push", system.namesrv, TOPIC, f"push-{secrets.token_hex(4)}"]
            with system.watched(log.message_count):
                process, _ = spawn(
                    [*arguments, str(log.message_count)], heap="1g", jvm_options=("-XX:+UseG1GC",)
                )
                answer = json.loads(finish(process, PUSH_SECONDS + READY_SECONDS))
            if answer["messages"] != log.message_count or answer["seconds"] <= 0:
                raise BenchError(f"the consumer got {answer} of {log.message_count:,} messages")
            return float(answer["seconds"])

        return run

    runs = {name: pushing(system) for name, system in systems.items()}
    seconds = measures.alternate(context.rounds, runs, context.say)
    rates = {
        key: value.as_rate(log.message_count / 1e3, RATE_UNIT) for key, value in seconds.items()
    }
    times = measures.ratios(rates[OURS], rates[THEIRS])
    return Row(
        name=PUSH,
        title=f"a Java push consumer that only counts, {QUEUES} queues",
        goal=f">= {GOALS[PUSH]:g}x RocketMQ",
        result=measures.ratio_text(times),
        met=context.judged(times.median >= GOALS[PUSH]),
        figures={name: rates[name] for name in (OURS, THEIRS)},
        details={"log": log.title, **_uses(systems)},
        notes=[_uses_text(systems)],
    )


def _uses(systems: Mapping[str, System]) -> dict[str, Any]:
    return {
        name: {"cpu_seconds": system.cpu_seconds, "memory_bytes": system.memory_bytes}
        for name, system in systems.items()
    }


def _uses_text(systems: Mapping[str, System]) -> str:
    return "; ".join(
        f"{name} used {np.median(system.cpu_seconds):.1f} s of CPU for a million messages and "
        f"{system.memory_bytes / (1 << 20):,.0f} MiB"
        for name, system in systems.items()
    )


def measure_wake(context: Context) -> Iterator[Row]:
    """Move the watermark by a message, again and again, and wait for the pull that it ends."""
    with context.directory(WAKE) as directory:
        with logs.log_writer(
            directory / "store", BODY_SIZE, topic_count=1, queue_count=1
        ) as writer:
            log = writer.grow(1)
        output = directory / "output"
        reput.build(log, output)
        with MessageStore(log.store, output=output) as opened:
            part = opened.queue(TOPIC, 0).unit_columns(0, WAKES + 1)
        if part is None or len(part[0]) <= WAKES:
            raise BenchError(f"the queue has fewer than {WAKES} messages")
        units = part[0]
        ends = (units.physical_offsets + units.sizes).tolist()
        waits = np.array(list(_wakes(log.store, output, ends)))
    p50, p99 = (measures.percentile(waits, np.ones(len(waits), np.int64), s) for s in (0.5, 0.99))
    yield Row(
        name=WAKE,
        title="a waiting pull is answered after the watermark moves",
        goal=f"p50 <= {WAKE_GOAL_MS[0]:g} ms, p99 <= {WAKE_GOAL_MS[1]:g} ms",
        result=f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
        met=p50 <= WAKE_GOAL_MS[0] and p99 <= WAKE_GOAL_MS[1],
        figures={"p50": Figures("ms", (p50,)), "p99": Figures("ms", (p99,))},
        notes=[f"{len(waits):,} messages; the watermark's own write and sync are in the time"],
    )


def _wakes(store: Path, output: Path, ends: list[int]) -> Iterator[float]:
    """Yield the milliseconds from before each move of the watermark until the answer is there."""
    rng = np.random.default_rng(1)
    state = WatermarkFile(output / STATE_DIRECTORY)
    current = state.current
    if current is None:
        raise BenchError(f"{output} has no watermark")
    seen = replace(current, last_record_offset=-1, last_record_crc=0)
    state.advance(replace(seen, end_offset=ends[0]))
    with serving(store, output) as (address, _):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), READY_SECONDS) as connection:
            for offset, end in enumerate(ends[1:], 1):
                _send(connection, RequestCode.PULL_MESSAGE, _waiting_pull(offset))
                # the watermark moves at any moment between two looks of the server
                time.sleep(rng.uniform(0.002, 0.02))
                began = time.perf_counter()
                state.advance(replace(seen, end_offset=end))
                answer = receive(connection)
                wait_seconds = time.perf_counter() - began
                if answer.code != ResponseCode.SUCCESS:
                    raise BenchError(f"the pull from {offset} ended with {answer.code}")
                yield 1000 * wait_seconds
    state.close()


def _waiting_pull(offset: int) -> dict[str, object]:
    return {
        "consumerGroup": "bench", "topic": TOPIC, "queueId": 0, "queueOffset": offset,
        "maxMsgNums": FEW, "sysFlag": 6, "commitOffset": 0, "subscription": "*", "subVersion": 0,
        "suspendTimeoutMillis": 15_000,
    }  # fmt: skip


def measure_groups(context: Context) -> Iterator[Row]:
    """Measure a group with many members and queues, and a server that only holds pulls."""
    if BALANCE in context.row_names:
        yield _balance_row(context)
    if HELD in context.row_names:
        yield _held_row(context)


@dataclass(frozen=True, slots=True)
class Balanced:
    """A group whose members have shared the queues, and its server."""

    seconds: float
    requests: int
    pid: int
    """Process id of the server."""
    cpu_seconds: float
    memory_bytes: int


@contextmanager
def _group(context: Context, topics: int, queues: int, members: int) -> Iterator[Balanced]:
    """Serve topics with this many queues each, and yield once the members of a group share them."""
    with context.directory(f"group-{topics}-{queues}") as directory:
        with logs.log_writer(
            directory / "store", BODY_SIZE, topic_count=topics, queue_count=queues
        ) as writer:
            log = writer.grow(1)
        reput.build(log, directory / "output")
        command = python_command("-m", "bench.group_worker")
        with (
            serving(log.store, directory / "output") as (address, pid),
            line_process(command, "the members") as worker,
        ):
            worker.answer(READY_SECONDS)
            names = [f"Topic_{number:03d}" for number in range(topics)]
            request = {
                "address": address, "topics": names, "members": members, "queues": topics * queues,
            }  # fmt: skip
            before = cpu_seconds(pid)
            with PeakUse(pid) as peak:
                answer = worker.ask(json.dumps(request), READY_SECONDS)
            used = cpu_seconds(pid) - before
            yield Balanced(answer["seconds"], answer["requests"], pid, used, peak.memory_bytes)


def _balance_row(context: Context) -> Row:
    queues = MANY_TOPICS * QUEUES_OF_EACH
    with _group(context, MANY_TOPICS, QUEUES_OF_EACH, MEMBERS) as group:
        pass
    mib = group.memory_bytes / (1 << 20)
    return Row(
        name=BALANCE,
        title=f"{MEMBERS} members share {queues:,} queues of {MANY_TOPICS} topics, from the first "
        "connection until each queue is pulled by one of them",
        goal=f"<= {BALANCE_GOAL_SECONDS:g} s, <= {BALANCE_GOAL_BYTES / GIB:g} GiB",
        result=f"{group.seconds:.1f} s, {mib:,.0f} MiB",
        met=group.seconds <= BALANCE_GOAL_SECONDS and group.memory_bytes <= BALANCE_GOAL_BYTES,
        figures={
            OURS: Figures("s", (group.seconds,)), "memory": Figures("MiB", (mib,)),
        },
        notes=[
            f"{group.requests:,} requests; the server used {group.cpu_seconds:.1f} s of CPU beside "
            "the members' process"
        ],
    )  # fmt: skip


def _held_row(context: Context) -> Row:
    with _group(context, 1, HELD_PULLS, 10) as group:
        before = cpu_seconds(group.pid)
        time.sleep(context.idle_seconds)
        cpu = (cpu_seconds(group.pid) - before) / context.idle_seconds
    return Row(
        name=HELD,
        title=f"a server that holds {HELD_PULLS} pulls",
        goal=f"< {HELD_GOAL:.0%} of a core",
        result=f"{cpu:.1%} of a core",
        met=cpu < HELD_GOAL,
        figures={OURS: Figures("% of a core", (100 * cpu,))},
        details={"seconds": context.idle_seconds},
    )
