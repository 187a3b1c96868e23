"""A message on its way from a broker of RocketMQ to Java push listeners: one of ``reput run
--serve`` on the broker's log, and one of the broker itself.

The listeners hear of the same messages at the same time, in one JVM, which also sends them.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from bench import measures
from bench.context import Context
from bench.live import RATE_SHARE, WARM_UP_SECONDS
from bench.measures import Figures, Row
from bench.processes import BenchError, cpu_seconds
from bench.reput import READY_SECONDS, run_command
from bench.serving import BODY_SIZE, OURS, THEIRS, TOPIC, ask, running_broker, served_by
from reput.serving.codes import RequestCode, ResponseCode

NAME = "serve-fresh"
RATE = 1_000
GOAL_MS = (20.0, 60.0)
CLIENTS = "clients"
FILE_SIZE = 1 << 30
LIMIT_SECONDS = 180.0
LOOK_SECONDS = 0.05
SYSTEMS = {OURS: "served", THEIRS: "broker"}
"""Name of each listener's server in what the clients answer."""


def measure(context: Context) -> Iterator[Row]:
    """Send at a steady rate, and time the way of each message to both listeners."""
    context.say(f"{NAME}: {context.live_seconds} s")
    with context.directory(NAME) as directory, ExitStack() as resources:
        store = directory / "store"
        # while machines warm up, a broker refuses what has waited for a fifth of a second
        broker = resources.enter_context(
            running_broker(store, FILE_SIZE, brokerFastFailureEnable=False)
        )
        _create_log(broker.namesrv)
        command = run_command(store, directory / "output", "--serve", "127.0.0.1:0")
        address, pid = resources.enter_context(served_by(command))
        _await_route(address)
        clients = resources.enter_context(_clients(broker.namesrv, address))
        pids = {OURS: pid, THEIRS: broker.pid, CLIENTS: clients.pid}
        # the virtual machines compile themselves first, and the listeners share out the queues
        clients.send(WARM_UP_SECONDS)
        before, began = {name: cpu_seconds(of) for name, of in pids.items()}, time.monotonic()
        answer = clients.send(context.live_seconds)
        seconds = time.monotonic() - began
        cores = {name: (cpu_seconds(of) - before[name]) / seconds for name, of in pids.items()}
    yield row(answer, cores, context.live_seconds)


def row(answer: Mapping[str, Any], cores: Mapping[str, float], seconds: float) -> Row:
    """Return the row of what the clients answered. Raises BenchError where messages are missing, or
    the rate was not reached."""
    figures: dict[str, Figures] = {}
    for name, key in SYSTEMS.items():
        waits = np.array(answer[key], np.float64)
        if (missing := int((waits < 0).sum())) or answer["rate"] < RATE_SHARE * RATE:
            raise BenchError(
                f"{missing:,} of {len(waits):,} messages did not come from {name}, at "
                f"{answer['rate']:,.0f} messages/s"
            )
        weights = np.ones(len(waits), np.int64)
        for share, word in ((0.50, "p50"), (0.99, "p99")):
            value = measures.percentile(waits, weights, share)
            figures[f"{name} {word}"] = Figures("ms", (value,))
    for name, used in cores.items():
        figures[f"{name} CPU"] = Figures("% of a core", (100 * used,))
    p50, p99 = (figures[f"{OURS} {word}"].median for word in ("p50", "p99"))
    broker = [figures[f"{THEIRS} {word}"].median for word in ("p50", "p99")]
    return Row(
        name=NAME,
        title=f"a broker's append to a Java push listener, {RATE:,} messages/s of {BODY_SIZE} "
        "bytes, through run --serve beside the broker's own",
        goal=f"p50 <= {GOAL_MS[0]:g} ms, p99 <= {GOAL_MS[1]:g} ms",
        result=f"p50 {p50:.1f} ms, p99 {p99:.1f} ms; {THEIRS} p50 {broker[0]:.1f} ms, p99 "
        f"{broker[1]:.1f} ms",
        met=p50 <= GOAL_MS[0] and p99 <= GOAL_MS[1],
        figures=figures,
        details={"rate_reached": answer["rate"], "seconds": seconds},
        notes=[
            f"{seconds:g} s after the first {WARM_UP_SECONDS:g}; a message's store time is whole "
            "milliseconds, so that each time is up to one too long"
        ],
    )  # fmt: skip


def _create_log(namesrv: str) -> None:
    """Have the broker store a few messages: a log without any is not served yet."""
    # imported here, because other rows do without pytest
    from tests.interop.rocketmq import finish_send, start_send  # noqa: PLC0415

    finish_send(start_send(namesrv, TOPIC, 32, seed=1))


def _await_route(address: str) -> None:
    """Wait until the topic is served: a client that asks before asks again only after 20 s."""
    deadline = time.monotonic() + READY_SECONDS
    ext = {"topic": TOPIC}
    while ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, ext).code != ResponseCode.SUCCESS:
        if time.monotonic() > deadline:
            raise BenchError(f"{TOPIC} is not served")
        time.sleep(LOOK_SECONDS)


class _Clients:
    """The running JVM of the producer and of both listeners."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        # imported here, because other rows do without pytest
        from tests.interop.harnessjvm import lines_of  # noqa: PLC0415

        self.pid = process.pid
        self._stdin = cast(IO[str], process.stdin)
        self._home = home
        self._lines = lines_of(process)

    def send(self, seconds: float) -> dict[str, Any]:
        """Send for so long, and return what the listeners heard."""
        self._stdin.write(f"{seconds}\n")
        self._stdin.flush()
        return cast(dict[str, Any], json.loads(self.line(seconds + LIMIT_SECONDS)))

    def line(self, timeout: float) -> str:
        """Return the next line. Raises BenchError where none comes."""
        from tests.interop.harnessjvm import next_line  # noqa: PLC0415
        from tests.interop.maven import HarnessError  # noqa: PLC0415

        try:
            return next_line(self._lines, timeout, CLIENTS, self._home)
        except HarnessError as error:
            raise BenchError(str(error)) from error


@contextmanager
def _clients(namesrv: str, served: str) -> Iterator[_Clients]:
    # imported here, because other rows do without pytest
    from tests.interop.harnessjvm import spawn  # noqa: PLC0415

    arguments = ["fresh", namesrv, served, TOPIC, str(RATE), str(BODY_SIZE)]
    # on a busy machine a late heartbeat must not end the connection of the messages
    properties = {"com.rocketmq.remoting.client.closeSocketIfTimeout": "false"}
    process, home = spawn(
        arguments, heap="512m", jvm_options=("-XX:+UseG1GC",), stdin=subprocess.PIPE,
        properties=properties,
    )  # fmt: skip
    try:
        clients = _Clients(process, home)
        if clients.line(READY_SECONDS) != "READY":
            raise BenchError("the clients are not ready")
        yield clients
    finally:
        process.kill()
        process.wait()
