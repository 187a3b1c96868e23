"""Damage in the log and unusable names: listed exactly, and everything sound is dispatched."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reput.store.config import OnQueueGap
from reput.store.errors import CorruptRecordError, QueueGapError
from reput.store.files import STATE_DIRECTORY
from reput.store.log.record import Record, encode
from reput.store.queue.consumequeue import ConsumeQueueFiles, list_queues
from reput.workload.appender import Appender
from tests.sources.test_rows import reference
from tests.streaming.test_golden import dispatch

pytestmark = pytest.mark.usefixtures("spark")
FILE_SIZE = 262144


def ledger(output: Path) -> list[dict[str, Any]]:
    """The ranges that the output quarantined; jumps of queue offsets are noted beside them."""
    path = output / STATE_DIRECTORY / "quarantine.jsonl"
    entries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [entry for entry in entries if entry["reason"] != "queue_offset_gap"]


def dispatched(output: Path, file_size: int = 6000) -> set[int]:
    """Physical offsets of all units in all queues."""
    found: set[int] = set()
    for key in list_queues(output / "consumequeue"):
        files = ConsumeQueueFiles(output / "consumequeue" / key.relative_path, file_size)
        count = files.find_end(None) // 20
        found.update(int(unit["offset"]) for unit in files.read(0, count))
    return found


def overwrite(store: Path, offset: int, data: bytes) -> None:
    """Change bytes of the log."""
    path = store / "commitlog" / f"{offset // FILE_SIZE * FILE_SIZE:020d}"
    with path.open("r+b") as out:
        out.seek(offset % FILE_SIZE)
        out.write(data)


DAMAGE: dict[str, tuple[int, bytes, str]] = {
    "huge length": (0, b"\x7f\xff\xff\xff", "bad_size"),
    "negative length": (0, b"\xff\xff\xff\x00", "bad_size"),
    "wrong magic": (4, b"\xde\xad\xbe\xef", "bad_magic"),
    "wrong physical offset": (28, b"\x00\x00\x00\x00\x00\x00\x00\x01", "bad_physical_offset"),
    "negative body length": (84, b"\xff\xff\xff\xff", "bad_length"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_record_is_quarantined_alone(
    golden: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    """The exact byte range with its reason; every other record is dispatched."""
    store, output = golden("plain"), tmp_path / "output"
    found = reference(store)
    victim = found[1500]
    at, data, reason = DAMAGE[kind]
    overwrite(store, victim.physical_offset + at, data)
    progress = dispatch(store, output)
    end = victim.physical_offset + victim.total_size
    assert ledger(output) == [
        {"physical_offset": victim.physical_offset, "end_physical_offset": end, "reason": reason}
    ]
    assert progress.counts.quarantined_bytes == victim.total_size
    wanted = {record.physical_offset for record in found} - {victim.physical_offset}
    assert dispatched(output) == wanted


def test_zeros_in_mid_log_are_a_hole_not_the_end(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Three zeroed records are one bad range, and dispatch goes on after it."""
    store, output = golden("plain"), tmp_path / "output"
    found = reference(store)
    first, last = found[700], found[702]
    end = last.physical_offset + last.total_size
    overwrite(store, first.physical_offset, bytes(end - first.physical_offset))
    dispatch(store, output)
    (entry,) = ledger(output)
    assert (entry["physical_offset"], entry["end_physical_offset"], entry["reason"]) == (
        first.physical_offset, end, "zero_hole",
    )  # fmt: skip
    assert dispatched(output) == {r.physical_offset for r in found if r not in found[700:703]}


def test_damage_in_the_active_file_is_passed_too(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The last file, to which a broker would still append."""
    store, output = golden("plain"), tmp_path / "output"
    found = reference(store)
    victim = found[-20]
    overwrite(store, victim.physical_offset + 4, bytes(4))
    dispatch(store, output)
    assert [entry["physical_offset"] for entry in ledger(output)] == [victim.physical_offset]
    assert dispatched(output) == {r.physical_offset for r in found} - {victim.physical_offset}


@pytest.mark.parametrize("kept", [1, 7, 40, 200])
def test_torn_tail_is_a_wait(golden: Callable[[str], Path], tmp_path: Path, kept: int) -> None:
    """Half a record at the end is neither dispatched nor damage; whole again, it is dispatched."""
    store, output = golden("plain"), tmp_path / "output"
    found = reference(store)
    last = found[-1]
    start = last.physical_offset % FILE_SIZE
    path = max((store / "commitlog").iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[: start + kept].ljust(FILE_SIZE, b"\0"))
    progress = dispatch(store, output)
    assert progress.end_offset == last.physical_offset
    assert progress.counts.quarantined_bytes == 0
    path.write_bytes(whole)
    again = dispatch(store, output)
    assert (again.counts.messages, again.counts.duplicates) == (1, 0)
    assert dispatched(output) == {record.physical_offset for record in found}


def test_on_corrupt_fail_stops_with_the_position(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Nothing of that batch is written, and the line says where."""
    store, output = golden("plain"), tmp_path / "output"
    victim = reference(store)[1500]
    overwrite(store, victim.physical_offset + 4, bytes(4))
    with pytest.raises(CorruptRecordError, match=f"physical offset {victim.physical_offset}"):
        dispatch(store, output, fail_on_corrupt=True)
    assert dispatched(output) == set()


TOPICS: dict[str, bytes] = {
    "path out of the store": b"../../x",
    "slash": b"a/b",
    "nul": b"a\0b",
    "too long": b"t" * 300,
    "dots": b"..",
    "empty": b"",
    "no utf-8": b"\xff\xfe",
    "backslash": b"a\\b",
}


def test_unusable_topics_go_to_the_ledger(tmp_path: Path) -> None:
    """No directory outside of the output, none for a bad name; all sound ones are dispatched."""
    store, output = tmp_path / "deep" / "store", tmp_path / "deep" / "output"
    good: list[Record] = []
    bad: dict[int, bytes] = {}
    with Appender(store, file_size=1 << 20) as appender:
        for topic in TOPICS.values():
            good.append(appender.append(Record(topic=b"Good", body=b"x")))
            bad[appender.append(Record(topic=topic, body=b"y")).physical_offset] = topic
        good.append(appender.append(Record(topic="订单".encode(), body=b"z")))
        bad[appender.append(Record(topic=b"Good", queue_id=-1)).physical_offset] = b"Good"
        good.append(appender.append(Record(topic=b"Good", body=b"last")))
    before = {path for path in tmp_path.rglob("*") if "output" not in path.parts}
    progress = dispatch(store, output)
    assert {path for path in tmp_path.rglob("*") if "output" not in path.parts} == before
    assert {entry["physical_offset"] for entry in ledger(output)} == set(bad)
    assert {entry["reason"] for entry in ledger(output)} == {"topic_name", "queue_id"}
    assert dispatched(output, 6_000_000) == {record.physical_offset for record in good}
    assert progress.counts.quarantined_messages == len(bad)
    assert progress.counts.unusual_topics > 0
    assert sorted(p.name for p in (output / "consumequeue").iterdir()) == ["Good", "订单"]
    again = dispatch(store, output, replay_from="earliest")
    assert len(ledger(output)) == len(bad)
    assert again.counts.duplicates == len(good)


def test_queue_gap_policies(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A record lost in mid-log makes queue offsets jump: RocketMQ closes up, blank keeps places."""
    store = golden("plain")
    found = reference(store)
    victim = found[1500]
    overwrite(store, victim.physical_offset + 4, bytes(4))
    queue = [
        r for r in found if (r.topic, r.queue_id) == (victim.topic, victim.queue_id) and r != victim
    ]
    closed = dispatch(store, tmp_path / "closed")
    blank = dispatch(store, tmp_path / "blank", on_queue_gap=OnQueueGap.BLANK)
    assert closed.counts.gaps == blank.counts.gaps == 1
    topic = Path("consumequeue") / victim.topic.decode() / str(victim.queue_id)
    units = ConsumeQueueFiles(tmp_path / "closed" / topic, 6000).read(0, len(queue))
    assert [int(unit["offset"]) for unit in units] == [r.physical_offset for r in queue]
    units = ConsumeQueueFiles(tmp_path / "blank" / topic, 6000).read(0, len(queue) + 1)
    assert tuple(units[victim.queue_offset]) == (0, 2147483647, 0)
    for record in queue:
        assert int(units[record.queue_offset]["offset"]) == record.physical_offset
    with pytest.raises(QueueGapError, match="queue offsets jump in topic"):
        dispatch(store, tmp_path / "fail", on_queue_gap=OnQueueGap.FAIL)


def forged_log(store: Path) -> list[Record]:
    """Make a log whose bodies hold records with the right position, where a split of it may fall;
    return its messages."""
    seed = 7
    print(f"seed={seed}")
    rng = random.Random(seed)
    real: list[Record] = []
    with Appender(store, file_size=64 << 20) as appender:
        while appender.end_offset < 6 << 20:
            body_start = appender.end_offset + 88
            fakes = bytearray()
            while len(fakes) < 20_000:
                fake = Record(
                    topic=b"Forged", body=rng.randbytes(50),
                    physical_offset=body_start + len(fakes), store_timestamp=1,
                )  # fmt: skip
                fakes += _encoded(fake)
            real.append(appender.append(Record(topic=b"Real", body=bytes(fakes))))
    return real


def test_record_forged_inside_a_body_never_gets_an_entry(tmp_path: Path) -> None:
    """A body that holds a record with the right position, where a split of the batch could fall."""
    store, output = tmp_path / "store", tmp_path / "output"
    real = forged_log(store)
    dispatch(store, output)
    assert [key.topic for key in list_queues(output / "consumequeue")] == ["Real"]
    assert dispatched(output, 6_000_000) == {record.physical_offset for record in real}


def _encoded(record: Record) -> bytes:
    return encode(replace(record, store_host=("127.0.0.1", 1)))
