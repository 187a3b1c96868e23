"""Readers asked the same as RocketMQ's own store, over every golden store, by two releases.

Aim: status, next offset, bounds and every message equal. Compared are answers to clients; what the
client's side of a pull adds (texts of tags, inner batches) is in tests/readers. Where RocketMQ is
known to be wrong (formats.md §13), ours is held against a plain rule instead.
"""

from __future__ import annotations

import random
import shutil
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from reput.readers.getmessage import PullLimits
from reput.readers.getranges import GetRangesResult
from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import Message
from reput.readers.messagestore import MessageStore
from reput.store.config import read_store_settings
from reput.store.log import record
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag
from reput.store.queue.consumequeue import BoundaryType
from tests.interop.rocketmq import NEWEST, PARITY, RELEASES, Setting, ask_store
from tests.interop.test_indexes import GROUPS, line
from tests.support.batch_queue import BATCH_UNIT
from tests.support.golden import ALL_GOLDEN_NAMES, log_records, unpack_golden
from tests.support.seeds import choose_seed
from tests.support.wire import PRE_BLANK, UNIT

FRONT, BLANK = "plain-front", "plain-blank"
"""Golden plain without its first log file: with its queues, and with queues that RocketMQ builds
from what is left, which begin with blank units."""
CASES = {
    PARITY: [name for name in (*ALL_GOLDEN_NAMES, FRONT, BLANK) if "-5.5" not in name],
    NEWEST: ["orders-5.5.1", "ext", "lmq", "batch", FRONT, BLANK],
}
"""The stores that each release is asked about; the rest of them differ in their logs alone."""
LIMITS: dict[str, Setting] = {
    "maxTransferBytesOnMessageInMemory": 20_000, "maxTransferCountOnMessageInMemory": 25,
    "maxTransferBytesOnMessageInDisk": 9_000, "maxTransferCountOnMessageInDisk": 12,
    "maxFilterMessageSize": 3_000,
}  # fmt: skip
"""Limits of pulls from ``FRONT``; the other stores have RocketMQ's."""
ABSENT = (("Nowhere", "0"), ("BatchTopic", "99"))
"""Queues without a file, one of each kind; RocketMQ states the min offset -1 of the latter."""
PULLS, TIMES, KEYS, MESSAGES = 400, 300, 300, 50
"""Questions for each store: about 17,000 in all."""
EVER = (0, (1 << 63) - 1)
MAX_RESULTS = 64
EXPRESSIONS = (
    "a > 5",
    "a BETWEEN 3 AND 10 AND b = 'x'",
    "b IN ('x', 'y') OR a IS NULL",
    "TAGS IS NOT NULL AND a < 8",
    "nothing = 1",
)
STATUSES = {
    "FOUND",
    "NO_MATCHED_MESSAGE",
    "NO_MESSAGE_IN_QUEUE",
    "OFFSET_OVERFLOW_BADLY",
    "OFFSET_OVERFLOW_ONE",
    "OFFSET_TOO_SMALL",
}


@dataclass
class Case:
    """One store, what is asked of it, and what RocketMQ answers."""

    name: str
    seed: int
    store: Path
    """For our reader."""
    records: list[Record]
    asked: list[str]
    answers: Future[tuple[list[str], int]]


def questions(rng: random.Random, store: Path, found: Sequence[Record], name: str) -> Iterator[str]:
    """Everything that is asked of one store, in random places."""
    ends = {path.parts[-2:]: queue_end(path) for path in sorted(store.glob("*consumequeue/*/*"))}
    queues = list(ends)
    yield from pull_questions(rng, ends, found, name)
    times = sorted(message.store_timestamp for message in found)
    near = [time + step for time in times for step in (-1, 0, 1)]
    for _ in range(TIMES):
        time = rng.choice((0, times[0] - 1, times[-1] + 1, *rng.choices(near, k=12)))
        yield line("time", *rng.choice(queues), time, rng.choice(("LOWER", "UPPER")))
    for message in rng.choices(found, k=KEYS):
        yield key_question(rng, message)
    for message in rng.choices(found, k=MESSAGES):
        yield line("message", message.physical_offset)
    if found[0].sys_flag & SysFlag.BORN_HOST_V6 == 0:
        # RocketMQ throws at a longer host than its own broker's
        yield "earliest"
    for topic, queue in queues:
        yield line("bounds", topic, queue)
        yield line("earliest", topic, queue)
        yield line("stored", topic, queue, rng.randrange(400))


def queue_end(directory: Path) -> int:
    """A queue's max offset, by RocketMQ's files."""
    data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    if directory.parts[-3] == "consumequeue":
        return sum(size > 0 for _, size, _ in UNIT.iter_unpack(data))
    units = [unit for unit in BATCH_UNIT.iter_unpack(data) if unit[1] > 0]
    return int(units[-1][4] + units[-1][5])


def pull_questions(
    rng: random.Random, ends: dict[tuple[str, ...], int], found: Sequence[Record], name: str
) -> Iterator[str]:
    """Pulls with every kind of offset, limit and filter; RocketMQ's limits of memory, then disk."""
    tags = sorted({t.decode() for m in found if (t := m.property_map.get(b"TAGS"))})
    for number in range(PULLS):
        if number % (PULLS // 2) == 0:
            yield line("memory", 0 if number else 40)
        topic, queue = rng.choice([*ends, *ABSENT])
        end = ends.get((topic, queue), 0)
        offset = rng.choice((-1, 0, end - 1, end, end + 1, 1 << 40, rng.randrange(end + 5)))
        offset = rng.choice((offset, rng.randrange(end + 1)))
        count = rng.choice((1, 2, 7, 8, 9, 31, 32, 33, 100, 1000))
        size = rng.choice((0, 101, 5000, 1 << 20, 1 << 30))
        filters = ["-", "tags:*", "tags:" + "||".join(rng.choices((*tags, "None"), k=2))]
        filters.append("sql:" + rng.choice(EXPRESSIONS))
        if name == "ext" and topic in GROUPS:
            filters += [f"group:{group}" for group in GROUPS[topic]] * 3
        yield line("get", topic, queue, offset, count, size, rng.choice(filters))


def key_question(rng: random.Random, message: Record) -> str:
    """By one of a message's keys, or one that it has not."""
    names = message.property_map.get(b"KEYS", b"").decode().split()
    unique = message.property_map.get(b"UNIQ_KEY", b"none").decode()
    key = rng.choice((*names, unique, unique[::-1]))
    begin = message.store_timestamp + rng.randrange(-3000, 3000)
    span = rng.choice((EVER, (begin, begin + rng.randrange(6000))))
    topic = message.topic.decode() + rng.choice(("", "", "", "x"))
    return line("key", topic, key, rng.choice((1, 3, 32, MAX_RESULTS)), *span)


@pytest.fixture(scope="module")
def cases(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Case]]:
    """RocketMQ answers for one store after the other while ours are asked."""
    seed = choose_seed()
    with ThreadPoolExecutor(1) as pool:
        yield {name: ask_rocketmq(name, seed, tmp_path_factory, pool) for name in CASES[release]}


def ask_rocketmq(
    name: str, seed: int, directories: pytest.TempPathFactory, pool: ThreadPoolExecutor
) -> Case:
    """Prepare a store and its copy, and send the questions off."""
    rng = random.Random(f"{seed} {name}")
    golden = "plain" if name in (FRONT, BLANK) else name
    store = unpack_golden(golden, directories.mktemp(name))
    found = log_records(store)
    asked = list(questions(rng, store, found, name))
    if name in (FRONT, BLANK):
        sorted((store / "commitlog").iterdir())[0].unlink()
        found = log_records(store)
        asked = [q for q in asked if not q.startswith("message") or is_in_log(q, found)]
    if name == BLANK:
        for part in ("consumequeue", "index"):
            shutil.rmtree(store / part)
    theirs = store.parent / "theirs"
    shutil.copytree(store, theirs)
    settings: dict[str, Setting] = {"expectConsumerNumUseFilter": 64} if name == "ext" else {}
    if name == FRONT:
        settings = LIMITS
        with (store / "broker.conf").open("a") as conf:
            conf.writelines(f"{key}={value}\n" for key, value in LIMITS.items())
    answers = pool.submit(ask_store, theirs, asked, **settings)
    return Case(name, seed, theirs if name == BLANK else store, found, asked, answers)


def is_in_log(question: str, found: Sequence[Record]) -> bool:
    return int(question.split("\t")[1]) >= found[0].physical_offset


class Reader:
    """Ours, which answers in RocketMQ's words."""

    def __init__(self, root: Path) -> None:
        on_disk = replace(PullLimits.of(read_store_settings(root)), in_memory_bytes=0)
        self._stores = {40: MessageStore(root), 0: MessageStore(root, limits=on_disk)}
        self._store = self._stores[40]

    def answer(self, question: str) -> object:
        """A text, or for a query the messages by key and those by unique key."""
        words = question.split("\t")
        store = self._store
        match words:
            case "memory", percent:
                self._store = self._stores[int(percent)]
                return percent
            case "bounds", topic, queue:
                return " ".join(map(str, store.queue(topic, int(queue)).bounds()))
            case "time", topic, queue, time, boundary:
                side = BoundaryType[boundary]
                return str(store.queue(topic, int(queue)).offset_by_time(int(time), side))
            case "stored", topic, queue, offset:
                return str(store.queue(topic, int(queue)).store_time(int(offset)))
            case ("earliest",):
                return str(store.log.earliest_time())
            case "earliest", topic, queue:
                return str(store.queue(topic, int(queue)).earliest_time())
            case "message", offset:
                return self._message(int(offset))
            case "get", topic, queue, offset, count, size, wish:
                place = (topic, int(queue), int(offset), int(count))
                wanted = self._filter(topic, wish)
                pulled = store.queue(*place[:2]).get_message(
                    *place[2:], max_bytes=int(size), message_filter=wanted
                )
                sent = store.queue(*place[:2]).get_ranges(
                    *place[2:], max_bytes=int(size), message_filter=wanted
                )
                bounds = (pulled.next_begin_offset, pulled.min_offset, pulled.max_offset)
                assert (sent.status, sent.next_begin_offset) == (pulled.status, bounds[0])
                assert (sent.min_offset, sent.max_offset) == bounds[1:]
                assert identities(sent) == list(map(identity, pulled.found))
                places = zip(pulled.queue_offsets, pulled.found, strict=True)
                found = ",".join(f"{place}:{identity(message)}" for place, message in places)
                return " ".join(map(str, (pulled.status, *bounds, found)))
            case "key", topic, key, count, begin, end:
                span = {"begin_ms": int(begin), "end_ms": int(end)}
                found = store.index.query(topic, key, max_count=int(count), **span)
                kinds = [found.with_key(topic, key, is_unique=kind) for kind in (False, True)]
                return [[identity(message) for message in kind] for kind in kinds]
        raise ValueError(question)

    def _message(self, offset: int) -> str:
        found = self._store.log.message_at(offset)
        assert found is not None
        assert self._store.log.message_by_id(found.offset_message_id) == found
        properties = "".join(f"{k}={v}\n" for k, v in sorted(found.properties.items()))
        checks = (zlib.crc32(found.body()), zlib.crc32(properties.encode()))
        return " ".join(map(str, (found.offset_message_id, *checks)))

    def _filter(self, topic: str, words: str) -> MessageFilter | None:
        kind, _, expression = words.partition(":")
        if kind == "group":
            found = self._store.consumer_filter(topic, expression)
            assert found is not None
            return found
        if kind == "sql":
            return MessageFilter.by_sql(expression)
        return MessageFilter.by_tags(expression) if kind == "tags" else None


def identities(sent: GetRangesResult) -> list[str]:
    """The same of records as they are in the log."""
    found, data = [], bytes(sent.data)
    while data:
        # each record begins with its size, and has its own position
        size, offset = int.from_bytes(data[:4], "big"), int.from_bytes(data[28:36], "big")
        found.append(f"{offset}:{size}:{zlib.crc32(data[:size])}")
        data = data[size:]
    return found


def identity(message: Message) -> str:
    """As the harness writes one: every byte of the record, made again from what was decoded."""
    data = record.encode(message.record)
    return f"{message.physical_offset}:{message.size}:{zlib.crc32(data)}"


def without_count(answer: str) -> str:
    """A pull's answer without how many messages RocketMQ's units ruled out."""
    words = answer.split(" ")
    return " ".join((*words[:4], words[5]))


def upper_of_batches(case: Case, question: str, answer: str) -> str:
    """The plain rule for the last message at or before a time, in a batch queue.

    RocketMQ's own search is unreliable there (formats.md §7 and §13 no. 7).
    """
    _, topic, queue, time, _ = question.split("\t")
    found = [r for r in case.records if r.topic.decode() == topic and r.queue_id == int(queue)]
    count = bisect_right([r.store_timestamp for r in found], int(time))
    return str(found[max(0, count - 1)].queue_offset) if found else answer


@dataclass
class BlankQueue:
    """A queue that begins with blank units though its log begins at 0, by the plain rules.

    RocketMQ takes the blanks for messages once it was restarted (formats.md §13 no. 6).
    """

    blanks: int
    times: list[int]
    """Store times of its messages."""

    def answer(self, question: str, answer: str) -> str:
        """The right answer where RocketMQ said ``answer``."""
        kind, _, _, *words = question.split("\t")
        end = self.blanks + len(self.times)
        if kind == "bounds":
            return f"{self.blanks} {end}"
        if kind == "earliest":
            return str(self.times[0])
        if kind == "time":
            is_lower = words[1] == "LOWER"
            before = (bisect_left if is_lower else bisect_right)(self.times, int(words[0]))
            return str(self.blanks + (before if is_lower else max(0, before - 1)))
        if kind == "get" and 0 <= int(words[0]) < self.blanks:
            return f"OFFSET_TOO_SMALL {self.blanks} {self.blanks} {end} "
        if kind == "get":
            status, next_offset, _, _, found = answer.split(" ")
            if status == "OFFSET_TOO_SMALL":
                next_offset = str(self.blanks)
            return f"{status} {next_offset} {self.blanks} {end} {found}"
        return answer


def blank_queues(case: Case) -> dict[tuple[str, str], BlankQueue]:
    """By topic and queue id; from RocketMQ's own files."""
    found: dict[tuple[str, str], BlankQueue] = {}
    if case.records[0].physical_offset:
        return found
    times = {message.physical_offset: message.store_timestamp for message in case.records}
    for directory in case.store.glob("consumequeue/*/*"):
        data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        units = list(UNIT.iter_unpack(data))
        if blanks := units.count(UNIT.unpack(PRE_BLANK)):
            stored = [times[offset] for offset, size, _ in units[blanks:] if size]
            found[directory.parent.name, directory.name] = BlankQueue(blanks, stored)
    return found


def filtered(case: Case, question: str, answer: str, name: bytes) -> list[str]:
    """The messages of a query's answer that RocketMQ's client keeps: those with the key's text.

    A message that has a key twice is in the index, and comes, twice; with ours once.
    """
    _, topic, key, *_ = question.split("\t")
    by_offset = {r.physical_offset: r for r in case.records}
    kept = {}
    for message in filter(None, answer.split(" ")[2].split(",")):
        found = by_offset[int(message.partition(":")[0])]
        has = found.property_map.get(name, b"").decode()
        keys = has.split(" ") if name == b"KEYS" else [has]
        if found.topic.decode() == topic and key in keys:
            kept[message] = found
    return list(kept)


def expected(
    case: Case, blank: dict[tuple[str, str], BlankQueue], question: str, answer: str
) -> object:
    """Our reader must say this where RocketMQ said ``answer``."""
    kind, *words = question.split("\t")
    if kind == "key":
        return [filtered(case, question, answer, name) for name in (b"KEYS", b"UNIQ_KEY")]
    if kind == "get":
        answer = without_count(answer)
    if kind == "time" and words[0] == "BatchTopic" and words[-1] == "UPPER":
        return upper_of_batches(case, question, answer)
    queue = blank.get((words[0], words[1])) if len(words) > 1 else None
    return queue.answer(question, answer) if queue else answer


@pytest.mark.extended
@pytest.mark.parametrize(
    ("release", "name"),
    [(release, name) for release in RELEASES for name in CASES[release]],
    indirect=["release"],
    scope="module",
)
def test_readers_answer_as_rocketmq(cases: dict[str, Case], name: str) -> None:
    """Every question of a store; of the killed one RocketMQ builds all indexes again first."""
    case = cases[name]
    print(f"seed={case.seed}")
    answers, dispatched = case.answers.result()
    assert dispatched == (len(case.records) if name in (BLANK, "killed") else 0)
    reader, blank = Reader(case.store), blank_queues(case)
    assert bool(blank) == (name == "lmq")
    corrected = 0
    for question, answer in zip(case.asked, answers, strict=True):
        right = expected(case, blank, question, answer)
        assert reader.answer(question) == right, question
        corrected += question.startswith(("time", "bounds")) and right != answer
    assert bool(corrected) == (name in ("lmq", "batch"))
    statuses = {answer.split(" ")[0] for answer in answers}
    assert statuses >= STATUSES
