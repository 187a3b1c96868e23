"""Verification and repair against RocketMQ's own queues: every change of a byte is found, and a
repair with the dispatch that follows gives the same tree again.

Axes: golden stores, file sizes, kinds of damage, several at once, a log that lost its front. The
watermark is the log's end, so that no byte of a queue is one that does not count. Bytes beyond a
watermark, and damage to the log itself, have tests of their own.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from reput.checkpoints.ownership import Ownership
from reput.store.config import OnQueueGap, StoreSettings, read_store_settings
from reput.store.errors import CommitLogError, OwnershipError, QueueFileError, UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.queue.consumequeue import ConsumeQueueFiles
from reput.store.state.built import settings_of
from reput.store.state.watermark import read_watermark
from reput.upkeep.expiry import expire
from reput.upkeep.verify.difference import Damage
from reput.upkeep.verify.run import Verification, verify
from tests.support.cli import reput
from tests.support.golden import ALL_GOLDEN_NAMES, relaid_queues, tree, unpack_golden
from tests.support.outputs import Output, QueueLog, Setup, random_queue_offsets
from tests.support.processes import is_killed_at
from tests.support.queue_damage import DAMAGES
from tests.support.wire import PRE_BLANK, UNIT, file_name, read_log

Golden = Callable[[str], Path]


@dataclass
class Built:
    """A golden log, and an output that was dispatched from it."""

    store: Path
    settings: StoreSettings
    setup: Setup
    log_end: int

    def dispatch(self) -> None:
        """As a run does: from the watermark to the log's end."""
        output = Output(self.setup)
        output.run(self.log_end)
        output.close()

    def verify(self, *, repair: bool = False) -> Verification:
        """This output against its log."""
        return verify(self.settings, self.setup.root, repair=repair)


def build(name: str, file_size: int, directory: Path) -> Built:
    store = unpack_golden(name, directory)
    settings = replace(read_store_settings(store), mapped_file_size_consume_queue=file_size)
    records = read_log(store / "commitlog")
    setup = Setup(
        CommitLog(settings.commit_log_directories),
        directory / "output",
        file_size,
        {offset: int.from_bytes(data[20:28], "big") for offset, data in records},
        settings.message_delay_levels_ms,
    )
    built = Built(store, settings, setup, records[-1][0] + len(records[-1][1]))
    built.dispatch()
    return built


def damage_some(rng: random.Random, root: Path, count: int) -> list[str]:
    """Damage so many queues, each once; what was changed, as topic/queue."""
    changed: list[str] = []
    while len(changed) < count:
        path = rng.choice(sorted(path for path in root.rglob("*") if path.is_file()))
        damage = rng.choice(DAMAGES)
        before = tree(path.parent.parent)
        if str(path.parent.relative_to(root)) in changed:
            continue
        damage(rng, path)
        after = tree(path.parent.parent)
        differing = {name for name in before | after if before.get(name) != after.get(name)}
        for name in sorted({name.rpartition("/")[0] for name in differing}):
            changed.append(f"{path.parent.parent.name}/{name}")
    return changed


def check_damages(
    built: Built, expected: dict[str, bytes], seed: int, case: int, at_once: int
) -> int:
    """Some damage, found and healed; how many."""
    rng = random.Random(f"{seed}:{case}")
    changed = damage_some(rng, built.setup.root / "consumequeue", at_once)
    found = built.verify(repair=True)
    place = f"{seed=} {case=} {changed} {found}"
    assert {f"{d.topic}/{d.queue_id}" for d in found.differences} == set(changed), place
    marked = read_watermark(built.setup.state)
    assert marked is not None
    assert marked.end_offset == (built.log_end if found.replay_from is None else found.replay_from)
    built.dispatch()
    assert built.setup.queues() == expected, place
    return len(changed)


CASES = [("plain", 6000), ("plain", 200), ("mixed", 6000), ("mixed", 400), ("wide", 200)]


@pytest.mark.extended
@pytest.mark.parametrize(("name", "file_size"), CASES)
def test_every_damage_is_found_and_healed(
    ram_path: Path, seed: int, name: str, file_size: int
) -> None:
    """Five queues at a time; afterwards all bytes are RocketMQ's again."""
    built = build(name, file_size, ram_path)
    expected = relaid_queues(built.store, file_size)
    assert built.setup.queues() == expected
    assert built.verify().differences == ()
    assert sum(check_damages(built, expected, seed, case, 6) for case in range(8)) >= 45


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "file_size"), CASES)
def test_every_single_damage_is_found_and_healed(
    ram_path: Path, seed: int, name: str, file_size: int
) -> None:
    """One at a time, a thousand in all."""
    built = build(name, file_size, ram_path)
    expected = relaid_queues(built.store, file_size)
    for case in range(200):
        check_damages(built, expected, seed, case, 1)


@pytest.mark.parametrize("name", ALL_GOLDEN_NAMES)
def test_rocketmqs_own_queues_are_what_the_log_says(golden: Golden, name: str) -> None:
    """Without a watermark the whole log counts; ext addresses stand for their units' tags, and 5.5
    indexes tags. No byte changes, and they are not ours to repair."""
    store = golden(name)
    settings, before = settings_of(store, read_store_settings(store)), tree(store)
    assert settings.index_tags == ("5.5" in name)
    found = verify(settings, store)
    assert found.differences == ()
    batches = (store / "batchconsumequeue").glob("*/*/*")
    batch_units = sum(len(path.read_bytes().rstrip(b"\0")) // 46 + 1 for path in batches)
    simple_units = sum(1 for unit in units_below(store / "consumequeue") if unit[1])
    assert found.units == simple_units + batch_units > 400
    headers = [path.read_bytes()[:40] for path in (store / "index").glob("*")]
    assert found.index_entries == sum(int.from_bytes(header[36:], "big") - 1 for header in headers)
    with pytest.raises(UsageError, match="build them anew: reput rebuild "):
        verify(settings, store, repair=True)
    assert tree(store) == before


def units_below(root: Path) -> list[tuple[int, int, int]]:
    data = b"".join(path.read_bytes() for path in sorted(root.glob("*/*/*")))
    return list(UNIT.iter_unpack(data))


def test_an_ext_address_of_another_message_is_found(golden: Golden) -> None:
    """The address is in the ext file, its tag is not the message's."""
    store = golden("ext")
    path = sorted((store / "consumequeue" / "Topic_0" / "0").iterdir())[0]
    units = list(UNIT.iter_unpack(path.read_bytes()))
    tags = {verify_tag(store, unit): index for index, unit in enumerate(units[:100])}
    first, second = list(tags.values())[:2]
    units[first] = (*units[first][:2], units[second][2])
    path.write_bytes(b"".join(UNIT.pack(*unit) for unit in units))
    found = verify(read_store_settings(store), store).differences
    assert [(d.entry, d.count, d.damage) for d in found] == [(first, 1, Damage.UNIT)]


def verify_tag(store: Path, unit: tuple[int, int, int]) -> int:
    """The tagsCode in the ext unit that a queue's unit points to."""
    path = store / "consumequeue_ext" / "Topic_0" / "0" / "0".zfill(20)
    at = unit[2] + (1 << 63) + 2
    return int.from_bytes(path.read_bytes()[at : at + 8], "big", signed=True)


@pytest.mark.extended
@pytest.mark.parametrize("gap", [OnQueueGap.ROCKETMQ, OnQueueGap.BLANK])
def test_odd_queues_are_as_they_were_dispatched(ram_path: Path, seed: int, gap: OnQueueGap) -> None:
    """Queue offsets that jump, repeat and go back, restarts between: no difference; damaged,
    repaired and dispatched again, the model's bytes."""
    rng = random.Random(seed)
    for case in range(30):
        file_size = rng.choice((20, 100, 200))
        log = QueueLog(file_size, blank_gaps=gap is OnQueueGap.BLANK)
        random_queue_offsets(rng, log, 80)
        root = ram_path / str(case)
        setup = log.setup(root, file_size, gap)
        settings = StoreSettings(
            root,
            setup.log.segments.directories,
            mapped_file_size_consume_queue=file_size,
            on_queue_gap=gap,
        )
        for end in [*sorted(rng.sample(log.borders()[1:-1], 3)), log.plain.end]:
            output = Output(setup)
            output.run(end)
            output.close()
            assert verify(settings, setup.root).differences == (), f"{seed=} {case=}"
        before = setup.queues()
        assert before == log.model.tree()
        damage_some(rng, setup.root / "consumequeue", 1)
        try:
            found = verify(settings, setup.root, repair=True)
        except QueueFileError:
            continue  # the only file has another size: that may be the setting
        assert found.differences
        output = Output(setup)
        output.run(log.plain.end)
        output.close()
        assert setup.queues() == before, f"{seed=} {case=} {found}"


@pytest.mark.parametrize("start", [0, 1 << 13, 1 << 40])
def test_units_beyond_the_watermark_are_let_be(ram_path: Path, start: int) -> None:
    """They are durable or not, and are written anew; garbage there is no unit and is found. Offsets
    of a log have 64 bits, and lengths of messages 32."""
    log = QueueLog(100, start=start)
    for queue_offset in range(12):
        log.append(queue_offset)
    setup = log.setup(ram_path, 100)
    settings = StoreSettings(
        ram_path, setup.log.segments.directories, mapped_file_size_consume_queue=100
    )
    output = Output(setup)
    output.run(log.borders()[3])
    output.dispatch(log.plain.end)
    output.close()
    found = verify(settings, setup.root)
    assert (found.units, found.differences) == (3, ())
    path = setup.root / "consumequeue" / "T" / "0" / "0".zfill(20)
    lost = bytearray(path.read_bytes())
    lost[60:80] = bytes(20)
    path.write_bytes(lost)
    assert verify(settings, setup.root).differences == ()
    lost[60:80] = UNIT.pack(5, 9, 1)
    path.write_bytes(lost)
    found = verify(settings, setup.root, repair=True)
    assert [(d.entry, d.damage, d.found) for d in found.differences] == [
        (3, Damage.STRAY, (5, 9, 1))
    ]
    assert found.replay_from is None
    output = Output(setup)
    output.run(log.plain.end)
    output.close()
    assert setup.queues() == log.model.tree()


@pytest.mark.parametrize("gap", [OnQueueGap.ROCKETMQ, OnQueueGap.BLANK])
def test_blanks_before_a_unit_beyond_the_watermark_are_let_be(
    ram_path: Path, gap: OnQueueGap
) -> None:
    """At a queue's begin, and in a gap over several files; blanks before no unit are found."""
    log = QueueLog(100, blank_gaps=gap is OnQueueGap.BLANK)
    for queue_offset in (0, 1, 2, 14):
        log.append(queue_offset)
    log.append(8, queue_id=1)
    setup = log.setup(ram_path, 100, gap)
    settings = StoreSettings(
        ram_path,
        setup.log.segments.directories,
        mapped_file_size_consume_queue=100,
        on_queue_gap=gap,
    )
    output = Output(setup)
    output.run(log.borders()[3])
    output.dispatch(log.plain.end)
    output.close()
    assert setup.queues() == log.model.tree()
    assert verify(settings, setup.root).differences == ()
    path = setup.root / "consumequeue" / "T" / "1" / "100".zfill(20)
    assert path.read_bytes()[:60] == PRE_BLANK * 3
    path.write_bytes(PRE_BLANK * 3 + bytes(40))
    assert [(d.path, d.damage) for d in verify(settings, setup.root).differences] == [
        (f"consumequeue/T/1/{path.name}", Damage.FILE)
    ]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "file_size", "expired"),
    [("plain", 200, False), ("wide", 200, True), ("mixed", 6000, True)],
)
def test_a_log_that_lost_its_front(
    ram_path: Path, seed: int, name: str, file_size: int, expired: bool
) -> None:
    """Damage on both sides of the log's first byte: messages that are there get their units back
    where they were; what is gone stays gone."""
    built, rng = build(name, file_size, ram_path), random.Random(seed)
    files = sorted((built.store / "commitlog").iterdir())
    for path in files[: len(files) // 2]:
        path.unlink()
    built.setup.log.refresh()
    log_min = built.setup.log.min_offset
    if expired:
        assert bool(expire(built.settings, built.setup.root, apply=True).files) is (
            file_size == 200
        )
    assert built.verify().differences == ()
    whole = built.setup.queues()
    for case in range(10):
        damage_some(rng, built.setup.root / "consumequeue", 3)
        found = built.verify(repair=True)
        assert found.replay_from is None or found.replay_from >= log_min
        built.dispatch()
        place = f"{seed=} {case=} {found}"
        assert built.verify().differences == (), place
        queues = built.setup.queues()
        for queue_file, data in whole.items():
            now = queues.get(queue_file, bytes(len(data)))
            for at in range(0, len(data), 20):
                offset = UNIT.unpack_from(data, at)[0]
                if offset >= log_min:
                    assert now[at : at + 20] == data[at : at + 20], f"{queue_file} {at} {place}"


@pytest.mark.parametrize("apart", [1, 7])
def test_units_of_gone_messages_that_changed_places(ram_path: Path, apart: int) -> None:
    """A dispatch from there would take the queue to end between them, and write units twice."""
    built = build("plain", 200, ram_path)
    files = sorted((built.store / "commitlog").iterdir())
    for path in files[: len(files) // 2]:
        path.unlink()
    built.setup.log.refresh()
    log_min = built.setup.log.min_offset
    queue = built.setup.root / "consumequeue" / "Topic_0" / "2"
    data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
    units = list(UNIT.iter_unpack(data))
    later = sum(0 < size <= log_min - offset for offset, size, _ in units) - 1
    earlier = later - apart
    for index, other in (earlier, later), (later, earlier):
        path = queue / file_name(index * 20 // 200 * 200)
        data = bytearray(path.read_bytes())
        data[index * 20 % 200 : index * 20 % 200 + 20] = UNIT.pack(*units[other])
        path.write_bytes(data)
    found = built.verify(repair=True)
    assert {(d.damage, d.queue_id) for d in found.differences} == {(Damage.EXPIRED, 2)}
    assert found.replay_from is None
    assert built.verify().differences == ()
    assert ConsumeQueueFiles(queue, 200).find_end(log_min) == (later + 1) * 20


def test_a_queue_of_stray_files_goes_with_its_directory(ram_path: Path) -> None:
    """The log lost its front: an empty directory would be a queue that has lost its files."""
    built = build("plain", 200, ram_path)
    sorted((built.store / "commitlog").iterdir())[0].unlink()
    built.setup.log.refresh()
    stray = built.setup.root / "consumequeue" / "Topic_0" / "150"
    stray.mkdir()
    (stray / file_name(2400)).write_bytes(b"")
    found = built.verify(repair=True)
    assert [(d.damage, d.queue_id) for d in found.differences] == [(Damage.FILE, 150)]
    assert not stray.exists()
    assert built.verify().differences == ()


def test_what_is_refused(ram_path: Path) -> None:
    """Each before a byte changes: another file size, a running dispatcher, damage to the log."""
    built = build("plain", 6000, ram_path)
    before = built.setup.queues()
    wrong = replace(built.settings, mapped_file_size_consume_queue=4000)
    with pytest.raises(QueueFileError, match="4000"):
        verify(wrong, built.setup.root, repair=True)
    with Ownership(built.setup.root), pytest.raises(OwnershipError):
        built.verify(repair=True)
    path = sorted((built.store / "commitlog").iterdir())[2]
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    path.write_bytes(data)
    with pytest.raises(CommitLogError, match=r"bad_magic.*restore it"):
        built.verify(repair=True)
    assert built.setup.queues() == before


@pytest.mark.extended
def test_a_repair_that_is_killed_is_done_again(ram_path: Path, seed: int) -> None:
    """Before every operation; every second time a dispatcher runs before the next repair."""
    rng, log = random.Random(seed), QueueLog(100)
    for number in range(120):
        log.append(number // 4, number % 4)
    setup = log.setup(ram_path, 100)
    settings = StoreSettings(
        ram_path, setup.log.segments.directories, mapped_file_size_consume_queue=100
    )
    built, kept = Built(ram_path, settings, setup, log.plain.end), ram_path / "kept"
    built.dispatch()
    damage_some(rng, setup.root / "consumequeue", 3)
    shutil.copytree(setup.root, kept)
    for ordinal in count(1):
        shutil.rmtree(setup.root)
        shutil.copytree(kept, setup.root)
        killed = is_killed_at(ordinal, lambda: built.verify(repair=True))
        if ordinal % 2:
            with suppress(QueueFileError):
                built.dispatch()
        built.verify(repair=True)
        built.dispatch()
        assert setup.queues() == log.model.tree(), f"{seed=} {ordinal=}"
        if not killed:
            assert ordinal > 5
            return


def test_the_command(ram_path: Path) -> None:
    """Exit codes, JSON with RocketMQ's words, a line for people."""
    built = build("plain", 6000, ram_path)
    arguments = ("verify", built.store, "--output", built.setup.root)
    path = built.setup.root / "consumequeue" / "Topic_2" / "1" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    unit = UNIT.unpack_from(data, 60)
    data[60:80] = UNIT.pack(unit[0], unit[1] + 1, unit[2])
    path.write_bytes(data)
    done = reput(*arguments, "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["differences"] == [
        {
            "kind": "consumequeue", "damage": "unit",
            "path": f"consumequeue/Topic_2/1/{'0' * 20}", "position": 60,
            "topic": "Topic_2", "queue_id": 1, "entry": 3,
            "count": 1, "physical_offset": unit[0], "expected": list(unit),
            "found": [unit[0], unit[1] + 1, unit[2]],
        }
    ]  # fmt: skip
    healed = reput(*arguments, "--repair")
    assert healed.returncode == 0, healed.stderr
    assert "reput run" in healed.stdout
    built.dispatch()
    assert built.verify().differences == ()
