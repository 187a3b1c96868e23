"""Logs that no broker of today writes: RocketMQ and reput build the same from them.

Aim: RocketMQ's own reput over a copy of the log decides, for queue offsets that jump, repeat and go
backwards, and for records as RocketMQ 4 wrote them.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.state.built import settings_of
from reput.store.state.storecheckpoint import StoreCheckpoint
from reput.upkeep.compare import compare_stores
from reput.upkeep.verify.run import verify
from tests.interop.rocketmq import NEWEST, PARITY, HarnessError, boot
from tests.streaming.test_golden import dispatch
from tests.streaming.test_golden_indexes import check_equal
from tests.support.golden import difference, tree
from tests.support.wire import UNIT, PlainLog

pytestmark = pytest.mark.usefixtures("spark", "release")

LOG_FILE_SIZE = 65536
SETTINGS = {
    "mappedFileSizeCommitLog": LOG_FILE_SIZE,
    "mappedFileSizeConsumeQueue": 400,
    "mappedFileSizeConsumeQueueExt": 49152,
    "mapperFileSizeBatchConsumeQueue": 4600,
    "maxHashSlotNum": 100,
    "maxIndexNum": 500,
}
MESSAGES = 900
STORED = 1_700_000_000_000
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
TOPICS = ("A", "B", "订单")
QUEUES = 3
FAR = 100_000
"""A queue offset beyond every other."""
LIGHT_QUEUES = ("%LMQ%a", "%LMQ%b", "Side")


@pytest.fixture
def index_tags(release: str) -> bool | None:
    """5.5 indexes tags, and the output of a log alone has to be told."""
    return release == NEWEST or None


def properties(values: Mapping[str, object], *, separator_at_end: bool = True) -> bytes:
    text = "\x02".join(f"{name}\x01{value}" for name, value in values.items())
    return (text + "\x02" * (separator_at_end and bool(values))).encode()


def make_store(root: Path, log: PlainLog, **settings: bool) -> Path:
    log.write(root / "commitlog")
    switches = {name: str(value).lower() for name, value in settings.items()}
    conf = "".join(f"{name}={value}\n" for name, value in {**SETTINGS, **switches}.items())
    (root / "broker.conf").write_text(conf)
    return root


class UnevenOffsets:
    """Queue offsets, by queue: mostly counting up, else a jump, a repeat, a step back, or 0."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last: dict[object, int] = {}
        self.moves: Counter[str] = Counter()

    def next(self, queue: object) -> int:
        last = self._last.get(queue)
        if last is None:
            offset = self._rng.choice((0, 0, 3, 20, 47))
        else:
            move = self._rng.choices(("up", "jump", "same", "back", "zero"), (20, 2, 1, 2, 1))[0]
            self.moves[move] += 1
            offset = {
                "up": last + 1,
                "jump": last + self._rng.randrange(2, 60),
                "same": last,
                "back": max(0, last - self._rng.randrange(1, 40)),
                "zero": 0,
            }[move]
        self._last[queue] = offset
        return offset


Members = dict[tuple[str, int], list[int]]
"""By (topic, queue id), the physical offsets of the messages that name the queue, or some of them.
"""


def uneven_log(rng: random.Random, *, light: bool) -> tuple[PlainLog, Members]:
    """The last message of each queue gets a unit: where one that is dropped meets a full last file,
    RocketMQ has made an empty one after it, and then cannot load its own store."""
    log, offsets, members = PlainLog(LOG_FILE_SIZE), UnevenOffsets(rng), Members()
    last_of_each = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]
    for index in range(MESSAGES):
        last = index >= MESSAGES - len(last_of_each)
        topic, queue_id = (
            last_of_each[index - MESSAGES] if last else (rng.choice(TOPICS), rng.randrange(QUEUES))
        )
        values: dict[str, object] = {"KEYS": f"k{rng.randrange(200)}", "UNIQ_KEY": f"u{index}"}
        if rng.randrange(3):
            values["TAGS"] = f"Tag{rng.randrange(5)}"
        queues = [(topic, queue_id)]
        if light and (last or rng.randrange(2)):
            names = rng.sample(LIGHT_QUEUES, 3 if last else rng.randrange(1, 4))
            queues += [(name, 0 if name.startswith("%LMQ%") else queue_id) for name in names]
        numbers = [FAR + index if last else offsets.next(queue) for queue in queues]
        if len(queues) > 1:
            values["INNER_MULTI_DISPATCH"] = ",".join(name for name, _ in queues[1:])
            values["INNER_MULTI_QUEUE_OFFSET"] = ",".join(map(str, numbers[1:]))
        offset = log.append(
            topic=topic.encode(),
            body=rng.randbytes(rng.randrange(200)),
            properties=properties(values),
            queue_id=queue_id,
            queue_offset=numbers[0],
            store_timestamp=STORED + index * 7,
        )
        for queue in queues:
            members.setdefault(queue, []).append(offset)
    assert len(log.image) > 2 * LOG_FILE_SIZE
    assert min(offsets.moves[move] for move in ("jump", "same", "back", "zero")) > 10
    return log, members


def left_out(members: Members, store: Path) -> Members:
    """Return the members that have no unit in a store's queues."""
    found = Members()
    for (topic, queue_id), offsets in members.items():
        files = sorted((store / "consumequeue" / topic / str(queue_id)).iterdir())
        data = b"".join(path.read_bytes() for path in files)
        units = {unit[0] for unit in UNIT.iter_unpack(data) if 0 < unit[1] < 2147483647}
        missing = [offset for offset in offsets if offset not in units]
        if missing:
            found[topic, queue_id] = missing
    return found


def listed(output: Path) -> Members:
    """Return the members that the ledger lists without a unit."""
    found = Members()
    for line in (output / "reput" / "quarantine.jsonl").open():
        entry = json.loads(line)
        if entry["reason"] == "queue_offset_seen_before":
            key = entry["topic"], entry["queue_id"]
            found.setdefault(key, []).append(entry["physical_offset"])
        else:
            assert entry["reason"] == "queue_offset_gap"
    return found


@pytest.mark.extended
@pytest.mark.parametrize(
    "settings",
    [{}, {"enableConsumeQueueExt": True}, {"enableMultiDispatch": True, "enableLmq": True}],
    ids=["plain", "ext", "light queues"],
)
def test_uneven_queue_offsets(
    tmp_path: Path, seed: int, settings: dict[str, bool], index_tags: bool | None
) -> None:
    """Every tree is RocketMQ's, in one batch, in many, and replayed; each message that RocketMQ
    leaves out of a queue is in the ledger with that queue, and no other is."""
    log, members = uneven_log(random.Random(seed), light="enableLmq" in settings)
    store = make_store(tmp_path / "store", log, **settings)
    theirs = make_store(tmp_path / "theirs", log, **settings)
    assert boot(theirs)["dispatched"] == MESSAGES
    assert (theirs / "consumequeue_ext").is_dir() == ("enableConsumeQueueExt" in settings)
    missing = left_out(members, theirs)
    assert len(missing) > len(members) / 2
    for name, max_bytes, replay_from in (
        ("whole", 1 << 30, None),
        ("pieces", 100_000, None),
        ("pieces", 1 << 30, "earliest"),
    ):
        output = tmp_path / name
        dispatch(
            store,
            output,
            max_bytes_per_trigger=max_bytes,
            replay_from=replay_from,
            index_tags=index_tags,
        )
        check_equal(output, theirs, index=True)
        assert listed(output) == missing


def test_messages_of_batch_topics_go_into_no_light_queue(tmp_path: Path, seed: int) -> None:
    """A batch queue puts its messages nowhere else; lists of theirs that cannot be used are
    nobody's loss."""
    rng, log, batch_topic = random.Random(seed), PlainLog(LOG_FILE_SIZE), TOPICS[1]
    next_offsets = Counter[tuple[str, int]]()
    for index in range(300):
        topic, queue_id = rng.choice(TOPICS), rng.randrange(QUEUES)
        values: dict[str, object] = {"KEYS": f"k{index}"}
        if topic == batch_topic and not rng.randrange(4):
            values |= {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "none"}
        elif rng.randrange(3):
            names = rng.sample(LIGHT_QUEUES, rng.randrange(1, 4))
            light = [(name, 0 if name.startswith("%LMQ%") else queue_id) for name in names]
            values["INNER_MULTI_DISPATCH"] = ",".join(names)
            values["INNER_MULTI_QUEUE_OFFSET"] = ",".join(str(next_offsets[key]) for key in light)
            if topic != batch_topic:
                next_offsets.update(light)
        log.append(
            topic=topic.encode(),
            properties=properties(values),
            queue_id=queue_id,
            queue_offset=next_offsets[topic, queue_id],
            store_timestamp=STORED + index,
        )
        next_offsets[topic, queue_id] += 1
    ours, theirs = (
        make_store(tmp_path / name, log, enableMultiDispatch=True, enableLmq=True)
        for name in ("ours", "theirs")
    )
    for store in (ours, theirs):
        (store / "config").mkdir()
        table = {batch_topic: {"topicName": batch_topic, "attributes": {"queue.type": "BatchCQ"}}}
        (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    assert boot(theirs)["dispatched"] == 300
    assert (theirs / "batchconsumequeue" / batch_topic).is_dir()
    assert {path.name for path in (theirs / "consumequeue").iterdir()} == {
        *TOPICS, *LIGHT_QUEUES
    } - {batch_topic}  # fmt: skip
    progress = dispatch(ours, ours)
    check_equal(ours, theirs, index=True)
    assert progress.counts.quarantined_bytes == 0
    found = verify(read_store_settings(theirs), theirs)
    assert found.differences == ()
    assert found.units > 300


@pytest.mark.extended
def test_a_drop_at_a_full_file_leaves_no_empty_file(tmp_path: Path, release: str) -> None:
    """The one known difference: RocketMQ makes the next file before it drops the message, and an
    empty last file keeps 5.3.3 from loading the store; 5.5.1 loads it. Ours both load, as it is."""
    log = PlainLog(LOG_FILE_SIZE)
    full = SETTINGS["mappedFileSizeConsumeQueue"] // UNIT.size
    for queue_id, queue_offset in [*((0, index) for index in range(full)), (0, 5), (1, 0)]:
        log.append(queue_id=queue_id, queue_offset=queue_offset)
    ours, theirs = make_store(tmp_path / "ours", log), make_store(tmp_path / "theirs", log)
    if release == PARITY:
        with pytest.raises(HarnessError, match="newPosition < 0"):
            boot(theirs)
    else:
        assert boot(theirs)["clean"]
    dispatch(ours, ours)
    empty = "Topic/0/00000000000000000400"
    assert difference(ours / "consumequeue", theirs / "consumequeue") == [empty]
    assert not any((theirs / "consumequeue" / empty).read_bytes())
    assert listed(ours) == {("Topic", 0): [log.spans[full][0]]}
    before = tree(ours / "consumequeue")
    assert boot(ours)["dispatched"] == 0
    assert tree(ours / "consumequeue") == before
    # a store that has such a file is as good as one without
    for sides in ((ours, theirs), (theirs, ours)):
        assert compare_stores(*sides, ["consumequeue"]).is_equal
    assert verify(read_store_settings(theirs), theirs).differences == ()
    log.append(queue_id=0, queue_offset=full)
    for store in (ours, theirs):
        log.write(store / "commitlog")
        dispatch(store, store, adopt=store is theirs)
    assert difference(ours / "consumequeue", theirs / "consumequeue") == []
    assert boot(theirs)["dispatched"] == 0


def cut_log(rest: Sequence[tuple[str, int]], tags: str = "T") -> PlainLog:
    """200 messages in all queues, then one in each of ``rest``, with ``tags``; all of one size, so
    that one may stand where another one stood, if their tags are."""
    log, next_offsets = PlainLog(LOG_FILE_SIZE), Counter[tuple[str, int]]()
    head = [(topic, queue_id) for topic in "AB" for queue_id in range(QUEUES)] * 34
    for index, (topic, queue_id) in enumerate([*head[:200], *rest]):
        log.append(
            topic=topic.encode(),
            properties=properties({"KEYS": f"k{index:04}", "TAGS": tags if index >= 200 else "T"}),
            queue_id=queue_id,
            queue_offset=next_offsets[topic, queue_id],
            store_timestamp=STORED + index,
        )
        next_offsets[topic, queue_id] += 1
    return log


LOSSES = [
    (planned, count, tags)
    for planned in (False, True)
    for count, tags in ((60, "T"), (20, "T"), (61, "T"), (60, "Longer"))
]
CHOSEN = 3
"""Losses that make test tries with 5.3.3; 5.5.1 gets one of them."""


@pytest.mark.extended
def test_units_of_messages_that_the_log_has_lost(
    tmp_path: Path, seed: int, release: str, index_tags: bool | None
) -> None:
    """Some of the losses, chosen by the seed."""
    chosen = random.Random(seed).sample(LOSSES, CHOSEN if release == PARITY else 1)
    for number, loss in enumerate(chosen):
        check_loss(tmp_path / str(number), seed, *loss, index_tags=index_tags)


@pytest.mark.slow
def test_units_of_messages_that_the_log_has_lost_in_every_way(
    tmp_path: Path, seed: int, index_tags: bool | None
) -> None:
    """All of them, with both releases."""
    for number, loss in enumerate(LOSSES):
        check_loss(tmp_path / str(number), seed, *loss, index_tags=index_tags)


def check_loss(
    directory: Path, seed: int, planned: bool, count: int, tags: str, *, index_tags: bool | None
) -> None:
    """A power cut after a batch's units were durable and before the watermark was; it also takes
    the end of the log, where the broker then stores ``count`` messages for other queues. RocketMQ
    recovers what it builds itself: none of the lost ones' units comes back. ``planned``: Spark
    knows of the batch."""
    print(f"planned={planned} count={count} tags={tags}")
    rng = random.Random(seed)
    lost = cut_log([("B", rng.randrange(QUEUES)) for _ in range(60)])
    log = cut_log([("A", rng.randrange(QUEUES)) for _ in range(count)], tags)
    ours, theirs = (
        make_store(directory / "ours", cut_log([])),
        make_store(directory / "theirs", log),
    )
    dispatch(ours, ours, index_tags=index_tags)
    before = shutil.copytree(ours / "reput", directory / "before")
    lost.write(ours / "commitlog")
    dispatch(ours, ours, index_tags=index_tags)
    spark = ours / "reput" / "spark"
    if planned:
        commits = [path for path in (spark / "commits").iterdir() if path.name.isdecimal()]
        max(commits, key=lambda path: int(path.name)).unlink()
        shutil.rmtree(before / "spark")
        spark.rename(before / "spark")
    shutil.rmtree(ours / "reput")
    before.rename(ours / "reput")
    (ours / "reput" / "abort").touch()
    log.write(ours / "commitlog")
    dispatch(ours, ours, index_tags=index_tags)
    found = boot(theirs)
    check_equal(ours, theirs, index=True)
    assert verify(settings_of(ours, read_store_settings(ours)), ours).differences == ()
    again = boot(ours)
    assert again["dispatched"] == 0
    assert again["topics"] == found["topics"]


def old_log(rng: random.Random) -> PlainLog:
    """A log as RocketMQ 4 wrote it: half messages and rollbacks in their own topic, without a queue
    offset, and (4.9.1 to 5.1.4) no separator after the last property."""
    log, next_offsets = PlainLog(LOG_FILE_SIZE), Counter[tuple[str, int]]()
    half: list[tuple[str, int, int]] = []
    for index in range(MESSAGES):
        topic, queue_id, kind = rng.choice("AB"), rng.randrange(2), rng.choice((0, 0, 0, PREPARED))
        prepared = 0
        values: dict[str, object] = {"KEYS": f"k{rng.randrange(200)} k{index}"}
        if half and not rng.randrange(4):
            topic, queue_id, prepared = half.pop(rng.randrange(len(half)))
            kind = rng.choice((COMMIT, COMMIT, ROLLBACK))
        elif not kind and not rng.randrange(4):
            topic, queue_id = "SCHEDULE_TOPIC_XXXX", rng.randrange(18)
            values |= {"DELAY": queue_id + 1, "REAL_TOPIC": "A", "REAL_QID": 0}
        if rng.randrange(3):
            values["UNIQ_KEY"] = f"u{index}"
        if rng.randrange(3):
            values["TAGS"] = f"Tag{rng.randrange(5)}"
        if not rng.randrange(9):
            values = {}
        in_queue = kind in (0, COMMIT) or index == MESSAGES - 1
        kind = kind if in_queue == (kind in (0, COMMIT)) else 0
        offset = log.append(
            topic=topic.encode(),
            body=rng.randbytes(rng.randrange(200)),
            properties=properties(values, separator_at_end=rng.random() < 0.3),
            queue_id=queue_id,
            queue_offset=next_offsets[topic, queue_id] if in_queue else 0,
            sys_flag=kind,
            prepared_transaction_offset=prepared,
            store_timestamp=STORED + index * 7,
        )
        next_offsets[topic, queue_id] += in_queue
        if kind == PREPARED:
            half.append((topic, queue_id, offset))
    return log


def test_logs_of_rocketmq_4(tmp_path: Path, seed: int, index_tags: bool | None) -> None:
    """With a checkpoint of three longs and no more; RocketMQ takes it as we do, then starts on what
    we built, as it is."""
    log = old_log(random.Random(seed))
    ours, theirs = make_store(tmp_path / "ours", log), make_store(tmp_path / "theirs", log)
    for store in (ours, theirs):
        times = (STORED, STORED + 7, STORED - 7)
        (store / "checkpoint").write_bytes(struct.pack(">qqq", *times))
    assert boot(theirs)["dispatched"] == MESSAGES
    dispatch(ours, ours, index_tags=index_tags)
    check_equal(ours, theirs, index=True)
    before = {part: tree(ours / part) for part in ("commitlog", "consumequeue", "index")}
    found = boot(ours)
    assert found["dispatched"] == 0
    assert found["max_physical_offset"] == log.end
    assert found["clean"]
    assert before == {part: tree(ours / part) for part in before}


@pytest.mark.extended
def test_the_index_time_where_the_clock_stepped_back(tmp_path: Path) -> None:
    """RocketMQ's checkpoint has the time of the index file that it filled last, not the newest one.
    It fills one in each of two processes, since the threads that write the time may overtake each
    other; the second one passes over its first message, which therefore has no key."""
    log, theirs = PlainLog(LOG_FILE_SIZE), tmp_path / "theirs"
    times: list[int] = []
    for number in range(2):
        log.append(queue_id=1, queue_offset=number, store_timestamp=STORED)
        for index in range(600):
            times.append(STORED + len(times) * 7 - number * 3_600_000)
            log.append(
                properties=properties({"KEYS": f"k{index}"}),
                queue_offset=len(times) - 1,
                store_timestamp=times[-1],
            )
        make_store(theirs, log)
        boot(theirs)
    right = StoreCheckpoint.read(theirs)
    assert right is not None
    # 499 entries a file: it filled its second one, and began a third
    assert len(list((theirs / "index").iterdir())) == 3
    assert right.index_msg_timestamp == times[2 * 499 - 1] < times[498]
    for name, max_bytes in (("whole", 1 << 30), ("pieces", 20_000)):
        ours = make_store(tmp_path / name, log)
        dispatch(ours, ours, max_bytes_per_trigger=max_bytes)
        found = StoreCheckpoint.read(ours)
        assert found is not None
        assert found.index_msg_timestamp == right.index_msg_timestamp
        assert verify(read_store_settings(ours), ours).differences == ()
