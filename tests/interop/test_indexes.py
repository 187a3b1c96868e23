"""A store whose every index is ours, opened by RocketMQ and asked as clients ask.

Aim: whatever RocketMQ answers from its own golden files it must answer from ours, and it must take
ours as they are: no message is dispatched again, no byte changes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.log.record import Record
from reput.store.state.built import settings_of
from reput.upkeep.verify.run import verify
from tests.interop.rocketmq import NEWEST, PARITY, Setting, ask_store, boot, of_release
from tests.streaming.test_golden import dispatch
from tests.streaming.test_golden_indexes import index_contents
from tests.support.golden import difference, log_records, tree

pytestmark = pytest.mark.usefixtures("spark", "release")

ROCKETMQ_WRITES = ("checkpoint", "lock", "abort.bak", "compaction/", "config/", "rocksdbstore/")
"""A broker that only opens and closes a store writes these; the last one since 5.5."""
KEYS = 300
EVER = (0, 1 << 60)
MAX_BYTES = 1 << 20
MAX_RESULTS = 64
"""RocketMQ's maxMsgsNumBatch."""
GROUPS = {"Topic_0": ("g1", "g2"), "Topic_1": ("g3",)}
"""The groups whose SQL92 expressions are in golden store ext's consumerFilter.json, by topic."""


def line(*words: object) -> str:
    return "\t".join(map(str, words))


def key_questions(rng: random.Random, found: Sequence[Record]) -> Iterator[tuple[str, int | None]]:
    """A question by key or unique key, and the physical offset that must be among its answers."""
    for message in rng.choices(found, k=KEYS):
        topic, time = message.topic.decode(), message.store_timestamp
        names = message.property_map.get(b"KEYS", b"").decode().split()
        for name in names:
            begin = time + rng.randrange(-3000, 3000)
            span = (begin, begin + rng.randrange(6000))
            yield line("key", topic, name, rng.choice((1, 3, MAX_RESULTS)), *span), None
            yield line("key", topic + "x", name, MAX_RESULTS, *EVER), None
        unique = message.property_map.get(b"UNIQ_KEY")
        if unique is not None:
            offset = message.physical_offset if message.transaction_type != 12 else None
            yield line("key", topic, unique.decode(), MAX_RESULTS, *EVER), offset
            yield line("key", topic, unique.decode()[::-1], MAX_RESULTS, *EVER), None


def queue_questions(
    rng: random.Random, found: Sequence[Record], queues: Sequence[tuple[str, str]], groups: bool
) -> Iterator[str]:
    """Bounds, times and messages of every queue, with consumers' filters where there are some."""
    times = sorted(message.store_timestamp for message in found)
    for topic, queue in queues:
        yield line("bounds", topic, queue)
        for time in (0, times[0] - 1, times[-1] + 1, *rng.choices(times, k=8)):
            for boundary in ("LOWER", "UPPER"):
                yield line("time", topic, queue, time, boundary)
        for offset in (0, 1000, *rng.sample(range(200), 4)):
            yield line("get", topic, queue, offset, rng.choice((1, 8, 32)), MAX_BYTES, "-")
        for group in GROUPS.get(topic, ()) if groups else ():
            for offset in range(0, 200, 10):
                yield line("get", topic, queue, offset, 32, MAX_BYTES, f"group:{group}")


def build(theirs: Path, ours: Path, *, index_tags: bool = False) -> Path:
    """A store of the same log, with our indexes alone."""
    for part in ("commitlog", "config"):
        shutil.copytree(theirs / part, ours / part)
    shutil.copy(theirs / "broker.conf", ours)
    dispatch(ours, ours, index_tags=index_tags)
    return ours


def ask_both(
    ours: Path, theirs: Path, asked: Sequence[str], **settings: Setting
) -> tuple[list[str], int]:
    """The answers, which are equal, and how many messages were dispatched from our store."""
    answers, dispatched = ask_store(ours, asked, **settings)
    expected, _ = ask_store(theirs, asked, **settings)
    for question, answer, wanted in zip(asked, answers, expected, strict=True):
        assert answer == wanted, question
    return answers, dispatched


def check_found(keyed: Sequence[tuple[str, int | None]], answers: Sequence[str]) -> None:
    """Each message was found by its unique key."""
    for (question, offset), answer in zip(keyed, answers, strict=False):
        if offset is not None:
            found = answer.split(" ")[2].split(",")
            assert str(offset) in [message.partition(":")[0] for message in found], question


@pytest.mark.extended
@pytest.mark.parametrize(
    ("release", "name"),
    [
        *((PARITY, name) for name in ("mixed", "ext", "lmq", "batch")),
        *((NEWEST, name) for name in ("orders-5.5.1", "queues-5.5.1", "ext")),
    ],
    indirect=["release"],
    scope="module",
)
def test_rocketmq_answers_from_our_indexes_as_from_its_own(
    golden: Callable[[str], Path], tmp_path: Path, seed: int, name: str
) -> None:
    """Hundreds of seeded questions; the golden ext store was written for 64 expected consumers."""
    rng, theirs = random.Random(seed), golden(name)
    ours = build(theirs, tmp_path / "ours", index_tags="5.5" in name)
    found = log_records(theirs)
    queues = [path.parts[-2:] for path in sorted(theirs.glob("*consumequeue/*/*"))]
    keyed = list(key_questions(rng, found))
    asked = [question for question, _ in keyed]
    asked += queue_questions(rng, found, queues, groups=name == "ext")
    settings: dict[str, Setting] = {"expectConsumerNumUseFilter": 64} if name == "ext" else {}
    before = tree(ours)

    answers, dispatched = ask_both(ours, theirs, asked, **settings)
    assert dispatched == 0
    after = tree(ours)
    changed = {path for path in before | after if before.get(path) != after.get(path)}
    assert {path for path in changed if not path.startswith(ROCKETMQ_WRITES)} == set()

    check_found(keyed, answers)
    pulled = dict(zip(asked, answers, strict=True))
    pulled = {asking: answer for asking, answer in pulled.items() if answer.startswith("FOUND")}
    assert {tuple(asking.split("\t")[1:3]) for asking in pulled} == set(queues)
    ruled_out = sum(int(answer.split(" ")[4]) for answer in pulled.values())
    assert ruled_out > 1000 if name == "ext" else not ruled_out


def test_rocketmq_recovers_our_store_after_a_crash_as_its_own(
    golden: Callable[[str], Path], tmp_path: Path, release: str, seed: int
) -> None:
    """An abort file: by our checkpoint RocketMQ keeps the index files that are full and builds the
    last one again. The log of this store is shorter than the three seconds that 5.3.3 distrusts;
    5.5.1 dispatches the log's last file, and
    loses index entries of a store of its own as of ours."""
    theirs = golden("mixed")
    ours = build(theirs, tmp_path / "ours")
    for store in (ours, theirs):
        (store / "abort").touch()
    found = log_records(theirs)
    keyed = list(key_questions(random.Random(seed), found))
    queues = tree(ours / "consumequeue")
    full = sorted((ours / "index").iterdir())[:-1]
    answers, dispatched = ask_both(ours, theirs, [question for question, _ in keyed])
    last = 0 if release == PARITY else int(max((ours / "commitlog").iterdir()).name)
    assert dispatched == sum(message.physical_offset >= last for message in found)
    assert full
    assert all(path.exists() for path in full)
    assert tree(ours / "consumequeue") == queues
    if release == PARITY:
        check_found(keyed, answers)


def test_rocketmq_finds_messages_by_tag_where_tags_are_indexed(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """It takes the further entries of RocketMQ 5.5 for those of a key of that name."""
    theirs = golden("mixed")
    ours = build(theirs, tmp_path / "ours", index_tags=True)
    tagged: dict[tuple[str, str], list[int]] = {}
    for message in log_records(theirs):
        tags = message.property_map.get(b"TAGS", b"").decode()
        if tags and message.transaction_type != 12:
            names = (message.topic.decode(), tags)
            tagged.setdefault(names, []).append(message.physical_offset)
    asked = [line("key", topic, f"T#{tags}", MAX_RESULTS, *EVER) for topic, tags in tagged]
    answers, dispatched = ask_store(ours, asked)
    assert dispatched == 0
    assert len(tagged) > 10
    for offsets, answer in zip(tagged.values(), answers, strict=True):
        found = [int(message.split(":")[0]) for message in answer.split(" ")[2].split(",")]
        assert found == offsets[-MAX_RESULTS:]


@pytest.mark.parametrize("release", [NEWEST], indirect=True, scope="module")
def test_tags_of_a_store_of_5_5_are_recognised(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """No setting says that tags are indexed; a dispatch that continues such a store indexes those
    of later messages, too."""
    theirs = golden("orders-5.5.1")
    log = sorted((theirs / "commitlog").iterdir())
    part = shutil.copytree(theirs, tmp_path / "part")
    for name in ("consumequeue", "index"):
        shutil.rmtree(part / name)
    (part / "checkpoint").unlink()
    for path in log[3:]:
        (part / "commitlog" / path.name).unlink()
    boot(part)
    settings = settings_of(theirs, read_store_settings(theirs))
    found = verify(settings, theirs)
    assert settings.index_tags
    assert found.differences == ()
    tagged = [r for r in log_records(theirs) if r.transaction_type != 12 and tags_of(r)]
    untagged = replace(settings, index_tags=False)
    assert found.index_entries > len(tagged) > 300
    assert verify(untagged, theirs).index_entries == found.index_entries - len(tagged)

    for path in log[3:]:
        shutil.copy(path, part / "commitlog")
    dispatch(part, part, adopt=True)
    assert difference(part / "consumequeue", theirs / "consumequeue") == []
    layout = settings.index_layout
    assert index_contents(part, layout) == index_contents(theirs, layout)


@pytest.mark.parametrize("release", [PARITY], indirect=True, scope="module")
def test_an_index_that_5_3_began_and_5_5_continued_is_sound(
    golden: Callable[[str], Path],
) -> None:
    """Its first part is without tags, and verified so."""
    store = golden("mixed")
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name)
    (store / "checkpoint").unlink()
    log = sorted((store / "commitlog").iterdir())
    later = [path.rename(store / path.name) for path in log[3:]]
    boot(store)
    for path in later:
        path.rename(store / "commitlog" / path.name)
    with of_release(NEWEST):
        boot(store)
    settings = settings_of(store, read_store_settings(store))
    found = verify(settings, store)
    assert settings.index_tags
    assert found.differences == ()
    tagged = [r for r in log_records(store) if r.transaction_type != 12 and tags_of(r)]
    without = verify(replace(settings, index_tags=False), store).index_entries
    assert without < found.index_entries < without + len(tagged)


def tags_of(message: Record) -> bytes:
    return message.property_map.get(b"TAGS", b"")
