"""A store read as of earlier moments, beside what its queues and log hold up to there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.readers.messagestore import MessageStore
from reput.store.errors import UsageError
from reput.store.log.places import AsOf
from reput.store.log.sysflag import SysFlag
from tests.support.derived_output import DerivedOutput
from tests.support.golden import log_records
from tests.support.queue_units import Placed, queue_units

Golden = Callable[[str], Path]
Queue = tuple[str, int]
MOMENTS = 20


def ends(units: list[Placed], moment: int) -> dict[Queue, int]:
    """Each queue's max offset if nothing after ``moment`` was ever dispatched."""
    found: dict[Queue, int] = {}
    for unit in units:
        if unit.offset + unit.size <= moment:
            found[unit.topic, unit.queue_id] = unit.queue_offset + 1
    return found


def shown(store: MessageStore) -> dict[Queue, int]:
    """The same of what a reader finds, without queues in which it finds nothing."""
    queues = ((topic, number) for topic in store.topics() for number in store.queue_ids(topic))
    found = {queue: store.queue(*queue).max_offset() for queue in queues}
    return {queue: end for queue, end in found.items() if store.queue(*queue).min_offset() < end}


@pytest.mark.extended
@pytest.mark.parametrize("name", ["broker", "mixed", "wide", "ext", "orders-5.5.1"])
def test_queues_end_at_the_moment(golden: Golden, seed: int, name: str) -> None:
    """Inside a record, between two, and at the log's ends; also after what came since is seen."""
    root, rng = golden(name), random.Random(seed)
    units, records = queue_units(root), log_records(root)
    end = records[-1].physical_offset + records[-1].total_size
    moments = [0, end, *(rng.randrange(end) for _ in range(MOMENTS))]
    moments += [rng.choice(records).physical_offset for _ in range(MOMENTS)]
    for moment in moments:
        with MessageStore(root, as_of=AsOf(offset=moment)) as store:
            assert shown(store) == ends(units, moment), f"{seed=} {moment=}"
            store.refresh()
            assert shown(store) == ends(units, moment), f"{seed=} {moment=}"


def test_a_time_takes_the_messages_stored_then(golden: Golden, seed: int) -> None:
    """The log of this store is in time order. A time before all of it, and one yet to come."""
    root, rng = golden("mixed"), random.Random(seed)
    units, records = queue_units(root), log_records(root)
    times = [record.store_timestamp for record in records]
    assert times == sorted(times)
    for time in [0, times[0] - 1, times[-1], 1 << 50, *rng.sample(times, MOMENTS)]:
        before = [one.physical_offset + one.total_size for one in records
                  if one.store_timestamp <= time]  # fmt: skip
        with MessageStore(root, as_of=AsOf(time_ms=time)) as store:
            assert shown(store) == ends(units, max(before, default=0)), f"{seed=} {time=}"


def test_index_and_log_end_there_too(ram_path: Path, seed: int) -> None:
    """As in an output that was never dispatched further."""
    output, rng = DerivedOutput.build("mixed", ram_path), random.Random(seed)
    records = log_records(output.store)
    # a message that was rolled back is in no index
    rolled_back = SysFlag.TRANSACTION_MASK
    indexed = [one for one in records if one.sys_flag & rolled_back != rolled_back]
    keyed = [one for one in indexed if b"KEYS\x01" in one.properties]
    for one in rng.sample(keyed, MOMENTS):
        end = one.physical_offset + one.total_size
        (key, *_) = one.properties.split(b"KEYS\x01")[1].split(b"\x02")[0].decode().split()
        topic = one.topic.decode()
        for moment, is_there in ((end - 1, False), (end, True)):
            as_of = AsOf(offset=moment)
            with MessageStore(output.store, output=output.root, as_of=as_of) as store:
                result = store.index.query(topic, key).with_key(topic, key)
                found = {message.physical_offset for message in result}
                assert (one.physical_offset in found) == is_there, f"{seed=} {moment=}"
                assert (store.log.message_at(one.physical_offset) is not None) == is_there
                assert all(offset < moment for offset in found)


def test_a_moment_beyond_what_is_dispatched_is_refused(golden: Golden) -> None:
    root = golden("mixed")
    with pytest.raises(UsageError, match="is beyond what is dispatched, which ends at"):
        MessageStore(root, as_of=AsOf(offset=1 << 40))
