"""Real RocketMQ brokers and clients for tests, one JVM per role.

Why: only RocketMQ itself can say whether it accepts the files that this project writes. The Java
side is the Maven project in `harness/`; it speaks a line protocol on stdin and stdout, and each
role is a process of its own, so that a test can kill one and keep the others.

Invariants: everything a JVM writes beside the store goes to a private directory that is removed
with it; no process outlives the test run (a broker stops at the end of its stdin, and every other
call has a time limit); a process is only ever ended by its own id. All JVMs of a test are of one
release: 5.3.3 unless the fixture `release` says otherwise, which runs a test once for each.

Not done here: reading stores, or anything that works without Java.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self, TypedDict, cast

import pytest

from tests.interop import maven, sessions
from tests.interop.harnessjvm import (
    CALL_TIMEOUT_SECONDS,
    NEWEST,
    PARITY,
    RELEASES,
    finish,
    last_words,
    lines_of,
    of_release,
    spawn,
)
from tests.interop.maven import HarnessError

__all__ = ["NEWEST", "PARITY", "HarnessError", "of_release"]

OLD_CLIENT = "4.9.7"
ONE_RELEASE = pytest.mark.parametrize(
    "release", [NEWEST, pytest.param(PARITY, marks=pytest.mark.slow)], indirect=True, scope="module"
)
"""For long tests with the fixture `release`: ``make test`` runs them with the newest one alone."""
READY_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 90.0

Setting = str | int | bool


class SendResult(TypedDict):
    """Counts of what `send` stored, by kind; each counts messages, save `batches`."""

    sent: int
    """All of them, rolled back ones included."""
    visible: int
    """A consumer sees this many in the end: `sent` without `rolled_back`."""
    plain: int
    batched: int
    batches: int
    compressed: int
    delayed: int
    committed: int
    rolled_back: int
    tagged: int
    keyed: int
    bodies_sha256: str
    """A digest of the visible bodies in any order; equals the one of `drain`."""


class QueueBounds(TypedDict):
    """One queue as a consumer sees it."""

    min: int
    max: int
    """Exclusive."""
    count: int
    """Messages that arrived."""


class DrainResult(TypedDict):
    """Every message of a topic, from each queue's first to its last."""

    messages: int
    queues: dict[str, QueueBounds]
    """By queue id."""
    sha256: str
    """A digest of `"%03d-%012d"` (queue id, queue offset) + body, sorted by that key."""
    bodies_sha256: str


class GroupOffsets(TypedDict):
    """One queue of a consumer group, as its broker answers GET_CONSUME_STATS."""

    broker: int
    """The queue's max offset."""
    committed: int
    """0 where nothing is."""


class BootedQueue(TypedDict):
    """One queue as RocketMQ's store sees it."""

    min: int
    max: int
    """Exclusive."""
    max_physic_offset: int


class BootResult(TypedDict):
    """RocketMQ's store describes itself after load, start and full dispatch."""

    min_physical_offset: int
    max_physical_offset: int
    """End of the commit log, exclusive."""
    confirm_offset: int
    topics: dict[str, dict[str, BootedQueue]]
    """By topic, then by queue id."""
    dispatched: int
    """Messages that the store gave its dispatchers: 0 where it found everything built."""
    clean: bool
    """Whether the store removed its abort file when it shut down."""


def require_maven() -> None:
    """Skip the calling test where Java or Maven is missing; on CI that is a failure instead."""
    maven.require_maven("a real RocketMQ broker")


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs once with each release of RocketMQ that reput must agree with."""
    require_maven()
    with of_release(request.param):
        yield request.param


class Broker:
    """A name server and a broker over one store, on free loopback ports; a context manager.

    Leaving the block stops it cleanly, everything dispatched; leaving it by an exception kills it.
    The store gets a `broker.conf` if it has none; one that it has is obeyed.
    """

    def __init__(
        self,
        store: Path,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, Setting] | None = None,
        *,
        heap: str = "512m",
        jvm_options: Sequence[str] = (),
        ready_timeout: float = READY_TIMEOUT_SECONDS,
    ) -> None:
        """`topics`: queue count by name; `settings`: RocketMQ's own names, unknown ones refused."""
        self.store = store
        self.namesrv = ""
        self._arguments = ["broker", str(store), *_pairs(settings or {})]
        self._arguments += ["--", *(f"{name}:{queues}" for name, queues in (topics or {}).items())]
        self._heap = heap
        self._jvm_options = jvm_options
        self._ready_timeout = ready_timeout
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._home = Path()

    @property
    def process(self) -> subprocess.Popen[str]:
        """The broker's JVM, for tests that do something unusual to it."""
        if self._process is None:
            raise RuntimeError("this broker has not been started")
        return self._process

    def start(self) -> Self:
        """Start the process and return once clients can use it; kill it if that takes too long."""
        if self._process is not None:
            raise RuntimeError("this broker has been started already")
        self._process, self._home = spawn(
            self._arguments, heap=self._heap, jvm_options=self._jvm_options, stdin=subprocess.PIPE
        )
        self._lines = lines_of(self._process)
        try:
            self.namesrv = self._expect("READY namesrv=", self._ready_timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop cleanly: all dispatched, abort file gone. Kill it and raise if it does not."""
        process = self.process
        try:
            stdin = cast(IO[str], process.stdin)
            with contextlib.suppress(BrokenPipeError):
                stdin.write("stop\n")
                stdin.close()
            self._expect("STOPPED", STOP_TIMEOUT_SECONDS)
            exit_code = process.wait(STOP_TIMEOUT_SECONDS)
            if exit_code != 0:
                raise self._error(f"broker ended with exit {exit_code}")
        finally:
            self.kill()

    def order(self, *words: object) -> None:
        """Give it an order (BrokerCommand) and wait until it has been carried out.

        Raises HarnessError where RocketMQ refuses.
        """
        stdin = cast(IO[str], self.process.stdin)
        stdin.write("\t".join(map(str, words)) + "\n")
        stdin.flush()
        self._expect("DONE", CALL_TIMEOUT_SECONDS)

    def kill(self) -> None:
        """End the process as a power cut would; the store keeps its abort file. Repeatable."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Stop it, or kill it if the block failed: the failure is the news, not a slow stop."""
        if kind is None and self._process is not None and self._process.poll() is None:
            self.stop()
        else:
            self.kill()

    def _expect(self, prefix: str, timeout: float) -> str:
        """Return what follows `prefix` in the next line, or raise with the process's last words."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._error(f"broker did not say {prefix!r} in {timeout:.0f} s") from None
        if line is None:
            raise self._error(f"broker ended before it said {prefix!r}")
        if not line.startswith(prefix):
            raise self._error(f"broker said {line!r} instead of {prefix!r}")
        return line.removeprefix(prefix)

    def _error(self, problem: str) -> HarnessError:
        return HarnessError(f"{problem}\n{last_words(self._home)}")


def send(
    namesrv: str, topic: str, count: int, seed: int, light_queues: Sequence[str] = ()
) -> SendResult:
    """Send `count` messages of every kind, the same ones for the same seed.

    Half of the plain ones go to some of `light_queues` too. On return all are stored, but committed
    and delayed ones become visible a little later: give `drain` the count to wait for.
    """
    arguments = _send_arguments(namesrv, topic, count, seed, 0, light_queues)
    return cast(SendResult, sessions.ask(arguments))


def start_send(
    namesrv: str,
    topic: str,
    count: int,
    seed: int,
    rate: float = 0,
) -> subprocess.Popen[str]:
    """As `send`, in a JVM of its own and without waiting: the caller ends it with `finish_send`, or
    kills it.

    `rate` is a limit of messages per second, 0 for none.
    """
    process, _ = spawn(_send_arguments(namesrv, topic, count, seed, rate, ()))
    return process


def _send_arguments(
    namesrv: str, topic: str, count: int, seed: int, rate: float, light_queues: Sequence[str]
) -> list[str]:
    return ["send", namesrv, topic, str(count), str(seed), str(rate), *light_queues]


def finish_send(
    process: subprocess.Popen[str], timeout: float = CALL_TIMEOUT_SECONDS
) -> SendResult:
    """Wait for a started send and return its counts."""
    return cast(SendResult, json.loads(finish(process, timeout)))


def drain(
    namesrv: str, topic: str, at_least: int = 0, timeout: float = CALL_TIMEOUT_SECONDS
) -> DrainResult:
    """Read a whole topic as a new consumer; first wait until it holds `at_least` messages."""
    arguments = ["drain", namesrv, topic]
    if at_least:
        arguments += [str(at_least), str(max(1, int(timeout / 2)))]
    return cast(DrainResult, sessions.ask(arguments, timeout))


def commit(
    namesrv: str, topic: str, group: str, counts: Mapping[int, int]
) -> dict[str, GroupOffsets]:
    """Consume ``counts`` messages, by queue id, from the front of queues, and commit, as a member
    of a group; what the broker then says of the group, by ``topic:queue``."""
    wanted = [f"{queue_id}:{count}" for queue_id, count in counts.items()]
    arguments = ["commit", namesrv, topic, group, *wanted]
    return cast(dict[str, GroupOffsets], sessions.ask(arguments))


def mqadmin(namesrv: str, *words: object, client: str = "") -> str:
    """The output of RocketMQ's own administration command, its errors included.

    `client`: another release of it, OLD_CLIENT.
    """
    return str(sessions.ask(["admin", namesrv, *map(str, words)], client=client)["output"])


def java_strings(values: Sequence[bytes]) -> list[tuple[int, int]]:
    """Length and hash of `new String(value, UTF_8)` for each value."""
    pairs = [answer.split() for answer in _answers("strings", *(value.hex() for value in values))]
    return [(int(length), int(code)) for length, code in pairs]


def ask_records(directory: Path, questions: Sequence[str]) -> list[str]:
    """The answers of RocketMQ's CommitLog.checkMessageAndReturnSize (RecordCommand)."""
    return _answers("record", directory, *questions)


def ask_filters(questions: Sequence[str]) -> list[str]:
    """The answers of RocketMQ's filters (FilterCommand)."""
    return _answers("filter", *questions)


def ask_allocation(questions: Sequence[str]) -> list[str]:
    """The answers of RocketMQ's allocation strategies (AllocateCommand)."""
    return _answers("allocate", *questions)


def ask_frames(questions: Sequence[str]) -> list[str]:
    """The answers of RocketMQ's codec of frames (FrameCommand)."""
    return _answers("frame", *questions)


def ask_traces(questions: Sequence[str]) -> list[str]:
    """The bodies that RocketMQ's client sends for events of a trace (TraceCommand)."""
    return [bytes.fromhex(answer).decode() for answer in _answers("trace", *questions)]


def ask_ext(directory: Path, file_size: int, questions: Sequence[str]) -> list[str]:
    """The answers of RocketMQ's ConsumeQueueExt on ``directory/topic/0`` (ExtCommand)."""
    return _answers("ext", directory, file_size, *questions)


def ask_batch(store: Path, file_size: int, questions: Sequence[str]) -> list[int]:
    """The answers of RocketMQ's BatchConsumeQueue topic/0 of a store (BatchCommand)."""
    return [int(answer) for answer in _answers("batch", store, file_size, *questions)]


def write_access_rules(directory: Path, orders: Sequence[str]) -> None:
    """Write ``users`` and ``acls`` below a directory, as a broker keeps them (AuthCommand)."""
    _answers("auth", directory, *orders, "close")


def ask_paths(file_size: int, settings: Sequence[tuple[str, str]]) -> list[list[Path]]:
    """The files that RocketMQ takes for the log's (PathsCommand), for each pair of
    storePathCommitLog and readOnlyCommitLogStorePaths."""
    answers = _answers("paths", file_size, *map("|".join, settings))
    return [[Path(name) for name in answer.split("|") if name] for answer in answers]


def ask_settings(
    directory: Path, names: Sequence[str], files: Sequence[bytes]
) -> list[dict[str, str] | None]:
    """The settings that a broker takes from each property file (SettingsCommand), as words, texts
    as UTF-16 in hexadecimal digits; None where it cannot be loaded."""
    answers = _answers("settings", directory, ",".join(names), *(data.hex() for data in files))
    pairs = ([word.partition(":") for word in answer.split(" ")] for answer in answers)
    return [
        None if answer == "refused" else {name: value for name, _, value in found}
        for answer, found in zip(answers, pairs, strict=True)
    ]


def boot(store: Path, **settings: Setting) -> BootResult:
    """Open a store with RocketMQ's own store class, let it recover and dispatch, and close it.

    The store's `broker.conf` is obeyed, `settings` go above it. Recovery changes the store, so give
    it a copy.
    """
    return cast(BootResult, sessions.ask(["boot", str(store), *_pairs(settings)]))


def ask_store(store: Path, questions: Sequence[str], **settings: Setting) -> tuple[list[str], int]:
    """RocketMQ's store asked as clients ask (AskCommand): the answers, and how many messages it
    dispatched. Opens the store as `boot` does: give it a copy.
    """
    found = sessions.ask(["ask", str(store), *_pairs(settings), "--", *questions])
    return found["answers"], found["dispatched"]


def _answers(*arguments: object) -> list[str]:
    """An answer for each of the questions with which a subcommand's arguments end."""
    return cast(list[str], sessions.ask([*map(str, arguments)])["answers"])


def _pairs(settings: Mapping[str, Setting]) -> list[str]:
    """RocketMQ's spelling of each setting: its booleans are lower case."""
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in settings.items()
    ]
