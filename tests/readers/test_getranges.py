"""Records as stored, held against what ``get_message`` finds: the same answers to random pulls."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from readers.messagefilter import MessageFilter
from readers.messagestore import MessageStore
from tests.support.golden import ALL_GOLDEN_NAMES, log_records

PULLS = 300
DAMAGED_SHARE = 10
"""One record of so many."""


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("name", ALL_GOLDEN_NAMES)
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
            end = store.max_offset(topic, queue)
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
            one = store.get_message(*place, max_bytes=size, message_filter=wanted)
            two = store.get_ranges(*place, max_bytes=size, message_filter=wanted)
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
