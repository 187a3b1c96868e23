"""Messages that listeners could not consume, at ``reput serve --overlay`` and at a broker of
RocketMQ: taken back one by one, and delivered when they are due.

Both servers run all the time and are asked in turns by one and the same client, over one connection
for what it sends and one for what it pulls. What ``reput`` acknowledges is on the disk; a broker
acknowledges before (``ASYNC_FLUSH``, its default).
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import logs, measures, reput
from bench.context import Context
from bench.logs import Log
from bench.measures import Figures, Row
from bench.processes import BenchError
from bench.reput import READY_SECONDS
from bench.serving import OURS, THEIRS, TOPIC, System, ask, receive, running_broker, serving
from reput.readers.messagestore import MessageStore
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.frame import Frame, encode

SEND_BACK, DUE_AT_ONCE = "send-back", "due-at-once"
ROW_NAMES = (SEND_BACK, DUE_AT_ONCE)
BODY_SIZE = 300
MESSAGES = 10_000
WINDOW = 64
"""Requests on the way."""
LEVEL, LEVEL_SECONDS = 2, 5.0
GOAL_MS = 500.0
SEND_SECONDS = 20.0
"""Time that the sends of MESSAGES have before all of them are due."""
PULL_SECONDS = 60.0
MILLISECONDS = "ms"


@dataclass(slots=True)
class Puller:
    """Pulls one queue until it has had MESSAGES, in a thread of its own."""

    address: str
    topic: str
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """Time, in seconds since the epoch, and messages of each answer."""
    failure: Exception | None = None

    def run(self) -> None:
        """Pull."""
        try:
            self._pull()
        except Exception as error:
            self.failure = error

    def _pull(self) -> None:
        offset, deadline = 0, time.time() + SEND_SECONDS + PULL_SECONDS
        with _connected(self.address) as connection:
            while offset < MESSAGES:
                ext = {
                    "consumerGroup": "bench", "topic": self.topic, "queueId": 0,
                    "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0,
                    "suspendTimeoutMillis": 1000, "subscription": "*", "subVersion": 0,
                }  # fmt: skip
                connection.sendall(_encoded(RequestCode.PULL_MESSAGE, ext))
                answer = receive(connection)
                now = time.time()
                if answer.code == ResponseCode.SUCCESS:
                    following = int(answer.ext["nextBeginOffset"])
                    self.arrivals.append((now, following - offset))
                    offset = following
                elif now > deadline:
                    raise BenchError(f"{offset:,} of {MESSAGES:,} messages came: {answer.remark}")

    def times(self) -> NDArray[np.float64]:
        """When each message came."""
        if self.failure is not None:
            raise self.failure
        times, counts = zip(*self.arrivals, strict=True)
        return np.repeat(np.array(times), counts)[:MESSAGES]


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), READY_SECONDS)


def _encoded(code: int, ext: Mapping[str, object], body: bytes = b"") -> bytes:
    texts = {name: str(value) for name, value in ext.items()}
    return encode(Frame(code, 1, ext=texts, language="JAVA", body=body))


def _send_all(address: str, requests: list[bytes]) -> tuple[float, NDArray[np.float64]]:
    """Send requests, WINDOW at a time on the way; return the seconds, and when each was sent."""
    sent = np.zeros(len(requests))
    began = time.perf_counter()
    with _connected(address) as connection:
        for number in range(len(requests) + WINDOW):
            if number < len(requests):
                sent[number] = time.time()
                connection.sendall(requests[number])
            if number >= WINDOW:
                answer = receive(connection)
                if answer.code != ResponseCode.SUCCESS:
                    raise BenchError(f"refused: {answer.code} {answer.remark}")
    return time.perf_counter() - began, sent


def measure(context: Context) -> Iterator[Row]:
    """Measure both rows on a small log, which each server has a copy of."""
    with context.directory("delivering") as directory, ExitStack() as resources:
        log, copy = _logs(directory)
        output = directory / "output"
        reput.build(log, output)
        places = _places(log.store, output)
        theirs = resources.enter_context(running_broker(copy, log.file_size, timerWheelEnable=True))
        address, pid = resources.enter_context(serving(log.store, output, "--overlay"))
        systems = {OURS: System(address, address, pid), THEIRS: theirs}
        if SEND_BACK in context.row_names:
            yield _send_back_row(context, systems, places)
        if DUE_AT_ONCE in context.row_names:
            yield _due_row(context, systems)


def _logs(directory: Path) -> tuple[Log, Path]:
    """A log of one queue, and a copy: a broker appends to its own."""
    with logs.log_writer(
        directory / "store", BODY_SIZE, topic_count=1, queue_count=1, file_size=64 << 20
    ) as writer:
        log = writer.grow(MESSAGES * 2 * BODY_SIZE)
    if log.message_count < MESSAGES:
        raise BenchError(f"the log has {log.message_count:,} messages")
    copy = directory / "broker"
    shutil.copytree(log.store, copy)
    return log, copy


def _places(store: Path, output: Path) -> list[int]:
    """The physical offsets of the first MESSAGES."""
    with MessageStore(store, output=output) as opened:
        queue, found = opened.queue(TOPIC, 0), list[int]()
        while len(found) < MESSAGES:
            found += [unit.physical_offset for unit in queue.units(len(found), MESSAGES)]
    return found[:MESSAGES]


def _retries_at(system: System, topic: str) -> str:
    """The address of the broker that has a retry topic's queue."""
    if system.broker != system.namesrv:
        return system.broker
    route = ask(system.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    answer = json.loads(bytes(route.body))
    name = next(queue["brokerName"] for queue in answer["queueDatas"] if queue["perm"] == 6)
    addresses = {one["brokerName"]: one["brokerAddrs"]["0"] for one in answer["brokerDatas"]}
    return str(addresses[name])


def _pulled(
    system: System, requests: Callable[[str], list[bytes]], *, at_base: bool
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Send the requests of a new group, and pull its retry topic meanwhile; return the seconds of
    sending, when each was sent, and when each message came."""
    group = f"bench-{secrets.token_hex(4)}"
    retries = _retries_at(system, f"%RETRY%{group}")
    puller = Puller(retries, f"%RETRY%{group}")
    thread = threading.Thread(target=puller.run, daemon=True)
    with system.watched(MESSAGES):
        thread.start()
        made = requests(group)
        seconds, sent = _send_all(system.broker if at_base else retries, made)
        thread.join()
    return seconds, sent, puller.times()


def _send_back_row(context: Context, systems: Mapping[str, System], places: list[int]) -> Row:
    """Copies are sent back as fast as they are taken, each for LEVEL."""
    late: dict[str, list[float]] = {name: [] for name in systems}

    def requests(group: str) -> list[bytes]:
        ext = {"group": group, "delayLevel": LEVEL, "maxReconsumeTimes": 16}
        return [
            _encoded(RequestCode.CONSUMER_SEND_MSG_BACK, {**ext, "offset": place})
            for place in places
        ]

    def running(name: str) -> Callable[[], float]:
        def run() -> float:
            seconds, sent, came = _pulled(systems[name], requests, at_base=True)
            late[name].append(float(np.percentile((came - sent - LEVEL_SECONDS) * 1000, 99)))
            return seconds

        return run

    seconds = measures.alternate(
        context.rounds, {name: running(name) for name in systems}, context.say
    )
    rates = {name: value.as_rate(MESSAGES, "messages/s") for name, value in seconds.items()}
    return Row(
        name=SEND_BACK,
        title=f"{MESSAGES:,} messages of {BODY_SIZE} bytes are sent back over one connection",
        goal="",
        result=measures.ratio_text(measures.ratios(rates[OURS], rates[THEIRS])),
        met=None,
        figures=rates,
        details={"late_ms_p99": late, **_uses(systems)},
        notes=[
            "what reput acknowledges is on the disk, what the broker acknowledges is not yet",
            "; ".join(
                f"{name} delivered 99% of them up to {np.median(values):,.0f} ms after "
                f"{LEVEL_SECONDS:g} s" for name, values in late.items()
            ),
        ],
    )  # fmt: skip


def _due_row(context: Context, systems: Mapping[str, System]) -> Row:
    """Messages that wait for one and the same moment."""
    spread: dict[str, list[float]] = {name: [] for name in systems}

    def running(name: str) -> Callable[[], float]:
        def run() -> float:
            due = int(time.time() + SEND_SECONDS)
            _, sent, came = _pulled(
                systems[name], lambda group: _timed(group, due * 1000), at_base=False
            )
            if sent[-1] > due - 1:
                raise BenchError(f"{name} took them within {sent[-1] - sent[0]:.0f} s only")
            spread[name].append(MESSAGES / float(came[-1] - came[0]))
            return float(np.percentile(came - due, 99))

        return run

    seconds = measures.alternate(
        context.rounds, {name: running(name) for name in systems}, context.say
    )
    late = {
        name: Figures(MILLISECONDS, tuple(value * 1000 for value in figures.values))
        for name, figures in seconds.items()
    }
    return Row(
        name=DUE_AT_ONCE,
        title=f"{MESSAGES:,} messages are due at one moment; 99% come so much later",
        goal=f"<= {GOAL_MS:g} ms",
        result=f"{late[OURS].median:,.0f} ms, {THEIRS} {late[THEIRS].median:,.0f} ms",
        met=late[OURS].median <= GOAL_MS,
        figures=late,
        details={"messages_per_second": spread, **_uses(systems)},
        notes=[
            "; ".join(
                f"{name}: {np.median(values):,.0f} messages/s from the first to the last"
                for name, values in spread.items()
            )
        ],
    )


def _timed(group: str, due_ms: int) -> list[bytes]:
    topic = f"%RETRY%{group}"
    ext = {
        "a": group, "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": due_ms, "h": 0,
        "j": 1, "k": "false", "l": 16, "m": "false",
    }  # fmt: skip
    wait = f"WAIT\x01true\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    return [
        _encoded(
            RequestCode.SEND_MESSAGE_V2,
            {**ext, "i": f"UNIQ_KEY\x01{number:032X}\x02{wait}"},
            b"x" * BODY_SIZE,
        )
        for number in range(MESSAGES)
    ]


def _uses(systems: Mapping[str, System]) -> dict[str, object]:
    return {
        name: {"cpu_seconds": system.cpu_seconds, "memory_bytes": system.memory_bytes}
        for name, system in systems.items()
    }
