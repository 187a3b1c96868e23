"""Records as stored, held against what ``get_message`` finds: the same answers to random pulls."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.readers.getmessage import GetMessageStatus
from reput.readers.messagefilter import MessageFilter
from reput.readers.messagestore import MessageStore
from reput.store.state.watermark import Watermark
from tests.readers.stores import SmallStore, java_hash
from tests.support.golden import GOLDEN_CASES, log_records
from tests.support.processes import wait_status_of
from tests.support.wire import UNIT, PlainLog

PULLS = 300
DAMAGED_SHARE = 10
"""One record of so many."""


@pytest.mark.extended
@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_both_pulls_agree(
    golden: Callable[[str], Path], seed: int, name: str, is_damaged: bool
) -> None:
    """Offsets, limits and filters of every kind, in sound logs and in those with damaged heads;
    what is sent are the log's own bytes."""
    rng, root = random.Random(f"{seed} {name}"), golden(name)
    found = log_records(root)
    tags = sorted({t.decode() for m in found if (t := m.property_map.get(b"TAGS"))}) or ["none"]
    if is_damaged:
        damage(rng, root, [record.physical_offset for record in found])
    files = sorted((root / "commitlog").iterdir())
    data = {int(path.name): path.read_bytes() for path in files}
    size_of_file = len(data[min(data)])
    damaged = 0
    with MessageStore(root) as store:
        queues = [(topic, queue) for topic in store.topics() for queue in store.queue_ids(topic)]
        for _ in range(PULLS):
            topic, queue = rng.choice(queues)
            end = store.queue(topic, queue).max_offset()
            offset = rng.choice((-1, end - 1, end, end + 1, *rng.choices(range(end + 5), k=4)))
            count = rng.choice((0, 1, 7, 8, 31, 32, 33, 1000))
            wanted = rng.choice(
                (
                    None,
                    MessageFilter.by_tags("*"),
                    MessageFilter.by_tags("||".join(rng.choices(tags, k=2))),
                    MessageFilter.by_sql("TAGS IS NOT NULL"),
                )
            )
            size = rng.choice((0, 101, 5000, 1 << 20))
            place = (topic, queue, offset, count)
            one = store.queue(*place[:2]).get_message(
                *place[2:], max_bytes=size, message_filter=wanted
            )
            two = store.queue(*place[:2]).get_ranges(
                *place[2:], max_bytes=size, message_filter=wanted
            )
            sent = b""
            for message in one.found:
                at = message.physical_offset % size_of_file
                sent += data[message.physical_offset - at][at : at + message.size]
            assert two.data == sent, place
            for name_ in ("status", "next_begin_offset", "min_offset", "max_offset", "damaged"):
                assert getattr(two, name_) == getattr(one, name_), place
            damaged += len(two.damaged)
    assert bool(damaged) == is_damaged


def damage(rng: random.Random, root: Path, offsets: list[int]) -> None:
    """Change a byte in the heads of some records."""
    directory = root / "commitlog"
    size = next(directory.iterdir()).stat().st_size
    for offset in rng.sample(offsets, len(offsets) // DAMAGED_SHARE):
        start = offset - offset % size
        # the magic, the position, or the length of the body
        position = offset - start + rng.choice((4, 30, 84))
        with (directory / f"{start:020d}").open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 0x55]))


@pytest.mark.parametrize("kept", [0, 1, 3000])
def test_a_file_that_is_cut_meanwhile_ends_no_process(tmp_path: Path, kept: int) -> None:
    """Its mapping would; records that are still there are sent, the others are damaged."""
    small = SmallStore(tmp_path / "store")
    for _ in range(60):
        small.append(body=b"x" * 100)
    root = small.write()
    with MessageStore(root) as store:
        whole = store.queue("Topic", 0).get_ranges(0)
        assert whole.status is GetMessageStatus.FOUND
        cut = min((root / "commitlog").iterdir())
        os.truncate(cut, kept)
        for offset in range(20):
            found = store.queue("Topic", 0).get_ranges(offset)
            plain = store.queue("Topic", 0).get_message(offset)
            assert (found.status, found.damaged) == (plain.status, plain.damaged)
            assert found.data == b"".join(map(store.log.stored_record, plain.found))


def test_a_cut_between_the_pages_of_a_file_ends_no_process(tmp_path: Path) -> None:
    """Records whose pages are gone are damaged, wherever they lie on their pages."""
    page = os.sysconf("SC_PAGE_SIZE")
    small = SmallStore(tmp_path / "store", log=PlainLog(8 * page))
    for number in range(30):
        small.append(body=b"x" * (page // 5 + number))
    root = small.write()
    (file,) = (root / "commitlog").iterdir()
    kept = sum(end <= page * 3 for _, end in small.log.spans)

    def pull() -> None:
        with MessageStore(root) as store:
            queue = store.queue("Topic", 0)
            whole = [queue.get_ranges(offset, 3).data for offset in range(30)]
            os.truncate(file, page * 3)
            for offset, data in enumerate(whole):
                found = queue.get_ranges(offset, 3).data
                assert found == data if offset + 3 <= kept else found != data

    assert wait_status_of(pull) == 0


@pytest.mark.parametrize("tag", ["positive", "below zero"])
def test_a_filter_by_tags_looks_at_the_lower_half_of_a_tags_code(tmp_path: Path, tag: str) -> None:
    """RocketMQ compares ``tagsCode.intValue()``: what stands in the upper half of the unit's field
    leaves no message out, and lets none in."""
    small, half, other = SmallStore(tmp_path / "store"), 1 << 32, java_hash("other")
    code = java_hash(tag)
    assert (code < 0) == (tag == "below zero")
    for upper in (0, 1, 7 << 8, 1 << 30):
        small.append(code % half + upper * half)
        small.append(other + upper * half)
    small.append(code % (half >> 1) * half + other)
    small.append(code)
    data = [small.log.bytes_at(span) for span in small.log.spans]
    message_filter, taken = MessageFilter.by_tags(tag), [0, 2, 4, 6, 9]
    with MessageStore(small.write()) as store:
        queue = store.queue("Topic", 0)
        found = queue.get_ranges(0, message_filter=message_filter)
        plain = queue.get_message(0, message_filter=message_filter)
    assert bytes(found.data) == b"".join(data[number] for number in taken)
    assert [message.queue_offset for message in plain.found] == taken


def test_a_filter_that_names_no_tag_takes_no_message(tmp_path: Path) -> None:
    """RocketMQ's ``FilterAPI`` leaves empty parts of an expression out."""
    small = SmallStore(tmp_path / "store")
    for code in (0, java_hash("tag")):
        small.append(code)
    with MessageStore(small.write()) as store:
        queue, message_filter = store.queue("Topic", 0), MessageFilter.by_tags(" || ")
        found = queue.get_ranges(0, message_filter=message_filter)
        plain = queue.get_message(0, message_filter=message_filter)
    assert (found.data, list(plain.found)) == (b"", [])
    assert found.status is plain.status is GetMessageStatus.NO_MATCHED_MESSAGE


@pytest.mark.parametrize(("missing", "expected"), [(0, 3), (1, 2)])
def test_a_record_that_just_fills_an_answer_is_in_it(
    tmp_path: Path, missing: int, expected: int
) -> None:
    """With a byte less it is not."""
    small = SmallStore(tmp_path / "store")
    for _ in range(5):
        small.append(body=b"x" * 200)
    start, end = small.log.spans[0][0], small.log.spans[2][1]
    with MessageStore(small.write()) as store:
        queue = store.queue("Topic", 0)
        found = queue.get_ranges(0, max_bytes=end - start - missing)
        plain = queue.get_message(0, max_bytes=end - start - missing)
    assert (found.next_begin_offset, len(plain.found)) == (expected, expected)


def test_what_is_appended_meanwhile_is_sent(tmp_path: Path, seed: int) -> None:
    """Queues whose records share the log's files and pages, pulled while the log grows."""
    rng, root = random.Random(seed), tmp_path / "store"
    small = SmallStore(root)
    (root / "reput").mkdir(parents=True)
    with ExitStack() as opened:
        mark, store = WatermarkFile(root / "reput"), None
        opened.callback(mark.close)
        for _ in range(40):
            for _ in range(rng.randrange(1, 12)):
                body = rng.randbytes(rng.choice((0, 10, 300, 1500)))
                small.append(queue_id=rng.randrange(3), body=body)
            small.write()
            mark.advance(Watermark("0" * 32, small.log.spans[-1][1]))
            store = store or opened.enter_context(MessageStore(root))
            store.refresh()
            log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
            for queue_id, units in small.units.items():
                first, count = rng.randrange(len(units)), rng.choice((1, 5, 32))
                found = store.queue("Topic", queue_id).get_ranges(first, count)
                # a pull does not leave its file of ten units
                last = min(first + count, len(units), first - first % 10 + 10)
                spans = [UNIT.unpack(unit) for unit in units[first:last]]
                assert found.next_begin_offset == last
                assert found.data == b"".join(log[at : at + size] for at, size, _ in spans)
