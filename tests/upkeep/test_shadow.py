"""The comparison beside a broker: RocketMQ's own queues, sound, changed, and while they grow."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.errors import QueueFileError, StoreError
from reput.store.log.record import Record
from reput.store.queue.batchconsumequeue import BATCH_UNIT_DTYPE
from reput.store.queue.consumequeue import PRE_BLANK_SIZE, UNIT_DTYPE
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from reput.upkeep import shadow as module
from reput.upkeep.compare import PairReader
from reput.upkeep.shadow import Shadow, ShadowResult
from reput.workload.appender import Appender
from tests.support import wire

Golden = Callable[[str], Path]
UNIT_SIZES = {"consumequeue": UNIT_DTYPE.itemsize, "batchconsumequeue": BATCH_UNIT_DTYPE.itemsize}
EVENT_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes the very unit that is read, unless a test does."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


def shadowed(store: Path, output: Path) -> ShadowResult:
    """Dispatch the whole log, compared meanwhile."""
    config = DispatcherConfig(store, output, once=True)
    settings = config.given_settings()
    shadow = Shadow(settings, output)
    with (
        shadow,
        running(config, on_visible=shadow.end_moved) as run,
    ):
        if run.position < run.start.log_end:
            run.commit(run.scan(run.start.log_end))
    return shadow.result


def entries(store: Path, kind: str = "*", queue: str = "*/*") -> list[tuple[Path, int, int]]:
    """File, byte and size of every entry in a store's queues that is not blank."""
    found = []
    for path in sorted(store.glob(f"{kind}/{queue}/*")):
        size = UNIT_SIZES.get(path.parts[-4], 0)
        data = path.read_bytes() if size else b""
        for at in range(0, len(data) - size + 1, size or 1):
            if any(data[at : at + 12]) and unit_at(path, at)[1] != PRE_BLANK_SIZE:
                found.append((path, at, size))
    return found


def unit_at(path: Path, at: int) -> tuple[int, int, int]:
    """Physical offset, size and tags code of one entry."""
    offset, size, tags_code = wire.UNIT.unpack_from(path.read_bytes(), at)
    return offset, size, tags_code


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def totals(found: ShadowResult) -> tuple[int, int, int]:
    """Equal entries, awaited ones, and queues that cannot be compared."""
    counts = found.compared.values()
    return (
        sum(each.entries for each in counts),
        sum(each.awaited for each in counts),
        sum(each.uncomparable for each in counts),
    )


@pytest.mark.parametrize("name", ["plain", "mixed", "batch", "orders-5.5.1"])
def test_rocketmqs_own_queues_are_equal(golden: Golden, tmp_path: Path, name: str) -> None:
    """Every entry of the broker's is compared."""
    store = golden(name)
    found = shadowed(store, tmp_path / "output")
    assert found.is_equal and found.differences == []
    assert totals(found) == (len(entries(store)), 0, 0)


@pytest.mark.parametrize("name", ["plain", "batch"])
def test_one_planted_byte_is_found(golden: Golden, tmp_path: Path, name: str, seed: int) -> None:
    """Any byte may become any other one; the comparison names file, byte, unit and fields."""
    store, output = golden(name), tmp_path / "output"
    rng = random.Random(seed)
    for path, start, size in rng.sample(entries(store), 5):
        sound = path.read_bytes()
        at = start + rng.randrange(size)
        overwrite(path, at, bytes([sound[at] ^ rng.randrange(1, 256)]))
        result = shadowed(store, output)
        (found,) = result.differences
        assert not result.is_equal
        assert (found.file, found.position) == (path.name, at)
        assert found.unit == (int(path.name) + start) // size
        assert (found.kind, found.topic, str(found.queue_id)) == path.parts[-4:-1]
        assert found.reput and found.broker and found.reput != found.broker
        for fields, data in ((found.reput, sound), (found.broker, path.read_bytes())):
            stated = wire.UNIT.unpack_from(data, start)
            assert (fields["offset"], fields["size"]) == stated[:2]
            assert fields.get("tags_code", stated[2]) == stated[2]
        path.write_bytes(sound)


def test_what_the_broker_has_yet_to_write_is_no_difference(golden: Golden, tmp_path: Path) -> None:
    """The last units are gone, then one in the middle: awaited, then a difference."""
    store, output = golden("plain"), tmp_path / "output"
    path, last, size = entries(store)[-1]
    overwrite(path, last, bytes(size))
    found = shadowed(store, output)
    assert found.is_equal
    assert totals(found)[1] == 1
    overwrite(path, last - 2 * size, bytes(size))
    (missing,) = shadowed(store, output).differences
    assert missing.broker is None and missing.reput is not None


def test_a_long_hole_is_a_difference(tmp_path: Path) -> None:
    """8,000 entries are missing, and a later one is there."""
    store, output = tmp_path / "store", tmp_path / "output"
    with Appender(store, file_size=1 << 20) as appender:
        for _ in range(8002):
            appender.append(Record(topic=b"T", body=b"body"))
    shadowed(store, output)
    shutil.copytree(output / "consumequeue", store / "consumequeue")
    ((path, _, size), *_rest) = entries(store)
    overwrite(path, size, bytes(8000 * size))
    (missing,) = shadowed(store, output).differences
    assert (missing.unit, missing.broker) == (1, None)


@pytest.mark.parametrize("beyond", [False, True])
def test_the_brokers_last_entry_is_missing_in_the_output(tmp_path: Path, beyond: bool) -> None:
    """The output should have it where its record ends at the watermark, and not yet beyond."""
    store, output = tmp_path / "store", tmp_path / "output"
    with Appender(store, file_size=1 << 20) as appender:
        for _ in range(3):
            appender.append(Record(topic=b"T", body=b"body"))
    shadowed(store, output)
    shutil.copytree(output / "consumequeue", store / "consumequeue")
    path, last, size = entries(output)[-1]
    offset, length, code = unit_at(path, last)
    if beyond:
        later = wire.UNIT.pack(offset + length, length, code)
        overwrite(store / path.relative_to(output), last + size, later)
    else:
        overwrite(path, last, bytes(size))
    settings = read_store_settings(store)
    shadow = Shadow(settings, output)
    with shadow:
        shadow.end_moved(settings, None)
    found = [(one.unit, one.reput, one.broker) for one in shadow.result.differences]
    fields = {"offset": offset, "size": length, "tags_code": code}
    assert found == ([] if beyond else [(2, None, fields)])


def test_a_hole_up_to_the_end_of_a_file_is_a_difference(golden: Golden, tmp_path: Path) -> None:
    """The queue's next file has entries."""
    store = golden("orders-5.5.1")
    after = next(path for path, _, _ in entries(store, "consumequeue") if path.name > "0" * 20)
    _, last, size = [entry for entry in entries(store) if entry[0] < after][-1]
    overwrite(after.parent / ("0" * 20), last, bytes(size))
    (missing,) = shadowed(store, tmp_path / "output").differences
    assert (missing.file, missing.broker) == ("0" * 20, None)


def in_log(store: Path) -> list[tuple[Path, int, int]]:
    """The entries of the messages that the log still has."""
    begin = int(min(path.name for path in (store / "commitlog").iterdir()))
    return [entry for entry in entries(store) if unit_at(*entry[:2])[0] >= begin]


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_log_and_queues_that_have_lost_their_front(
    golden: Golden, tmp_path: Path, trimmed: bool
) -> None:
    """The output begins where the log does, in the middle of a queue; ``trimmed`` is after the
    broker has removed the queue files whose messages are gone."""
    store = golden("orders-5.5.1")
    for path in sorted((store / "commitlog").iterdir())[:4]:
        path.unlink()
    kept = in_log(store)
    if trimmed:
        for path in {entry[0] for entry in entries(store)} - {entry[0] for entry in kept}:
            path.unlink()
        assert any(entry[0].name > "0" * 20 for entry in kept)
    found = shadowed(store, tmp_path / "output")
    assert found.is_equal and found.differences == []
    assert totals(found) == (len(kept), 0, 0)
    path, start, _ = kept[0]
    overwrite(path, start + 11, bytes([path.read_bytes()[start + 11] ^ 1]))
    (planted,) = shadowed(store, tmp_path / "output").differences
    assert (planted.file, planted.position) == (path.name, start + 11)


def test_an_output_that_begins_too_late(golden: Golden, tmp_path: Path) -> None:
    """The output has a blank in the place of a message that the log has."""
    store, output = golden("plain"), tmp_path / "output"
    shadowed(store, output)
    path, start, _ = entries(output)[0]
    sound = wire.UNIT.pack(*unit_at(path, start))
    overwrite(path, start, wire.UNIT.pack(0, PRE_BLANK_SIZE, 0))
    (found,) = shadowed(store, output).differences
    changed = zip(sound, path.read_bytes(), strict=False)
    position = next(at for at, (before, now) in enumerate(changed) if before != now)
    assert (found.unit, found.position) == (0, position)


def test_retention_of_the_broker_meanwhile(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue's first file goes between the look at its names and the comparison."""
    store, output = golden("orders-5.5.1"), tmp_path / "output"
    expected = entries(store)
    path = next(path for path, _, _ in expected if path.name > "0" * 20).parent / ("0" * 20)
    gone = [entry for entry in expected if entry[0] == path]
    take = PairReader.take

    def removed(reader: PairReader, left: str, right: str) -> int:
        if right == str(path):
            path.unlink()
        return take(reader, left, right)

    monkeypatch.setattr(PairReader, "take", removed)
    found = shadowed(store, output)
    assert found.is_equal
    assert totals(found) == (len(expected) - len(gone), 0, 0)


def test_batch_queues_of_a_log_that_has_lost_its_front(golden: Golden, tmp_path: Path) -> None:
    """They begin at byte 0 with another batch than the broker's: said, and no difference. One that
    only the broker has is counted, too."""
    store = golden("batch")
    queue = next((store / "batchconsumequeue").glob("*/0"))
    shutil.copytree(queue, store / "batchconsumequeue" / "Other" / "3")
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    found = shadowed(store, tmp_path / "output")
    assert found.differences == []
    assert found.compared["batchconsumequeue"].uncomparable == 3
    assert found.compared["batchconsumequeue"].entries == 0


def test_a_planted_byte_that_makes_a_batch_queue_look_older(golden: Golden, tmp_path: Path) -> None:
    """The log has lost nothing, so the queue can be compared."""
    store = golden("batch")
    path, start, _ = entries(store, "batchconsumequeue", "*/1")[0]
    assert unit_at(path, start)[0] > 0
    overwrite(path, start, bytes(8))
    (found,) = shadowed(store, tmp_path / "output").differences
    assert (found.file, found.unit) == (path.name, 0)


@pytest.mark.parametrize("lost", [0, 4])
def test_a_queue_that_only_the_broker_has(golden: Golden, tmp_path: Path, lost: int) -> None:
    """A difference if a message of it is in the log, also where log and queue have lost their
    front."""
    store = golden("orders-5.5.1")
    for path in sorted((store / "commitlog").iterdir())[:lost]:
        path.unlink()
    whole = max(entries(store), key=lambda entry: entry[0].name)[0].parent
    copy = shutil.copytree(whole, store / "consumequeue" / "Other" / "3")
    if lost:
        (copy / ("0" * 20)).unlink()
    (found,) = shadowed(store, tmp_path / "output").differences
    kept = [entry for entry in in_log(store) if entry[0].parent == copy]
    path, start, size = kept[0]
    assert (found.topic, found.queue_id, found.reput) == ("Other", 3, None)
    assert (found.file, found.unit) == (path.name, (int(path.name) + start) // size)
    assert found.broker is not None and found.broker["offset"] == unit_at(path, start)[0]


def test_a_queue_whose_messages_are_all_gone(golden: Golden, tmp_path: Path) -> None:
    """Only the broker has it, and no message of it is in the log: no difference."""
    store = golden("plain")
    log = sorted((store / "commitlog").iterdir())
    for path in log[:4]:
        path.unlink()
    old = next(entry for entry in entries(store) if unit_at(*entry[:2])[0] < int(log[4].name))
    copy = store / "consumequeue" / "Other" / "3"
    copy.mkdir(parents=True)
    size = read_store_settings(store).mapped_file_size_consume_queue
    unit = wire.UNIT.pack(*unit_at(*old[:2]))
    (copy / ("0" * 20)).write_bytes(unit + bytes(size - len(unit)))
    assert shadowed(store, tmp_path / "output").is_equal


def test_queues_that_only_the_output_has(golden: Golden, tmp_path: Path) -> None:
    """The broker may write them yet, so their entries are awaited. Without any entry on both sides
    nothing is equal."""
    store = golden("plain")
    one = entries(store)[0][0].parent
    missing = len(entries(store, queue="/".join(one.parts[-2:])))
    expected = len(entries(store))
    shutil.rmtree(one)
    found = shadowed(store, tmp_path / "output")
    assert found.is_equal
    assert totals(found) == (expected - missing, missing, 0)
    shutil.rmtree(store / "consumequeue")
    found = shadowed(store, tmp_path / "output")
    assert not found.is_equal and found.differences == []
    assert totals(found) == (0, expected, 0)


def test_without_a_watermark_nothing_is_equal(golden: Golden, tmp_path: Path) -> None:
    """The run was stopped before it began."""
    shadow = Shadow(read_store_settings(golden("plain")), tmp_path / "output")
    with shadow:
        pass
    assert not shadow.result.is_equal


def test_queues_that_grow_while_they_are_compared(golden: Golden, tmp_path: Path) -> None:
    """The broker's files get half an entry before each look, so that every second look finds a torn
    one; in the end every entry was compared."""
    store, output = golden("plain"), tmp_path / "output"
    shadowed(store, output)
    expected, growing = len(entries(store)), entries(store)[-40:]
    units = [path.read_bytes()[at : at + size] for path, at, size in growing]
    for path, at, size in growing:
        overwrite(path, at, bytes(size))
    halves = [
        (path, at + half, unit[half : half + 10])
        for (path, at, _), unit in zip(growing, units, strict=True)
        for half in (0, 10)
    ][::-1]
    torn: list[int] = []
    done = threading.Event()

    class GrowingShadow(Shadow):
        def _look_at_due(self) -> None:
            if halves:
                overwrite(*halves.pop())
                if not halves:
                    done.set()
            super()._look_at_due()
            torn.append(sum(queue.suspect is not None for queue in self._queues.values()))

    settings = read_store_settings(store)
    shadow = GrowingShadow(settings, output)
    with shadow:
        shadow.end_moved(settings, None)
        assert done.wait(EVENT_SECONDS)
    assert shadow.result.differences == []
    assert totals(shadow.result) == (expected, 0, 0)
    assert sum(torn) >= len(growing) // 2


def test_a_queue_that_begins_after_the_first_look(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of the broker's, with a planted byte, comes between two looks."""
    store, output = golden("plain"), tmp_path / "output"
    shadowed(store, output)
    path, start, _ = entries(store)[0]
    overwrite(path, start + 8, b"\x7f")
    away = path.parent.rename(tmp_path / "away")
    looked = threading.Event()
    look = Shadow._look_at_due

    def noted(shadow: Shadow) -> None:
        look(shadow)
        looked.set()

    monkeypatch.setattr(Shadow, "_look_at_due", noted)
    settings = read_store_settings(store)
    shadow = Shadow(settings, output)
    with shadow:
        shadow.end_moved(settings, None)
        assert looked.wait(EVENT_SECONDS)
        away.rename(path.parent)
    (found,) = shadow.result.differences
    assert (found.file, found.position) == (path.name, start + 8)


def test_any_error_reaches_the_caller(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody expects becomes a line with exit code 1; one of ours stays what it is."""
    store, output = golden("plain"), tmp_path / "output"

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(PairReader, "first_difference", fail)
        with pytest.raises(StoreError, match=r"has failed: ZeroDivisionError\('made up'\)") as got:
            shadowed(store, output)
        assert got.value.exit_code == 1 and "\n" not in str(got.value)
    path = entries(store)[0][0]
    os.truncate(path, 100)
    with pytest.raises(QueueFileError, match="has 100 bytes"):
        shadowed(store, output)
