"""A reader that goes on while files come: those of ext units, and queues of another kind."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import Message
from reput.readers.messagestore import MessageStore
from reput.sources.queues import BuiltQueues
from reput.sources.selection import QueueSelection
from reput.store.config import read_store_settings
from reput.store.log.sysflag import SysFlag
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind
from reput.streaming.config import DispatcherConfig
from tests.readers.stores import SmallStore, StoreByRanges
from tests.support.batch_queue import BATCH_UNIT
from tests.support.golden import log_records
from tests.support.grown_log import GrownLog
from tests.support.sparkless import dispatch
from tests.support.wire import file_name, write_over

CUTS = (1, 20, 60, 120)
TAG = "Tag1"


@pytest.fixture(params=[MessageStore, StoreByRanges], ids=["decoded", "as-stored"])
def reader(request: pytest.FixtureRequest) -> type[MessageStore]:
    """Both ways to pull: messages, and records as they are in the log."""
    found: type[MessageStore] = request.param
    return found


def sent(
    store: MessageStore, topic: str, queue_id: int, wanted: MessageFilter | None = None
) -> Iterator[Message]:
    """All that a broker would send to a consumer of a queue."""
    queue = store.queue(topic, queue_id)
    offset = queue.min_offset()
    while offset < queue.max_offset():
        pulled = queue.get_message(offset, message_filter=wanted)
        yield from pulled.found
        offset = pulled.next_begin_offset


def test_ext_units_count_in_files_that_came_later(
    tmp_path: Path, seed: int, reader: type[MessageStore]
) -> None:
    """While one run goes on queues stay open, which begin without an ext file: a consumer of a tag
    is sent its messages alone, as by a broker."""
    log = GrownLog(tmp_path / "store", random.Random(seed), ext=True)
    log.grow(200)
    output, wanted = tmp_path / "output", MessageFilter.by_tags(TAG)
    places: list[list[int]] = []
    with ExitStack() as resources:
        opened: list[MessageStore] = []

        def look(*_: object) -> None:
            if not opened:
                opened.append(resources.enter_context(reader(log.root, output=output)))
            opened[0].refresh()
            found = [one for queue in (0, 1) for one in sent(opened[0], "A", queue, wanted)]
            places.append(sorted(one.physical_offset for one in found))

        cuts = [log.plain.spans[at][0] for at in CUTS]
        dispatch(DispatcherConfig(log.root, output, once=True), cuts, on_visible=look)
    tagged = [
        one.physical_offset
        for one in log_records(log.root)
        if one.topic == b"A" and one.property_map[b"TAGS"] == TAG.encode()
        and not one.sys_flag & SysFlag.TRANSACTION_MASK
    ]  # fmt: skip
    for end in (*cuts, log.plain.end):
        assert [at for at in tagged if at < end] in places, end
    assert places[-1] == tagged


def write_batch_queue(small: SmallStore) -> None:
    """The queue of all messages, as a broker builds it of a batch topic."""
    directory = small.root / "batchconsumequeue" / "Topic" / "0"
    directory.mkdir(parents=True)
    units = [
        BATCH_UNIT.pack(start, end - start, 0, 0, number, 1, -1, 0)
        for number, (start, end) in enumerate(small.log.spans)
    ]
    size = read_store_settings(small.root).file_size(QueueKind.BATCH)
    write_over(directory / file_name(0), b"".join(units).ljust(size, b"\0"))


def lose_all_but(small: SmallStore, kept: int) -> None:
    """Lose the log's end, and all queues with it."""
    small.log.cut(small.log.spans[kept - 1][1])
    for name in ("commitlog", "consumequeue"):
        shutil.rmtree(small.root / name)
    small.log.write(small.root / "commitlog")


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_topic_that_comes_back_as_a_batch_topic_is_read(
    tmp_path: Path, reader: type[MessageStore], *, is_asked: bool
) -> None:
    """A broker lost the end of its log, and with it the topic, which was made anew; somebody may
    have asked for it before its first message came."""
    small = SmallStore(tmp_path)
    for _ in range(100):
        small.append()
    with reader(small.write()) as store:
        assert len([*sent(store, "Topic", 0)]) == 100
        lose_all_but(small, 10)
        while store.log.end > small.log.end:
            store.refresh()
        if is_asked:
            assert [*sent(store, "Topic", 0)] == []
        write_batch_queue(small)
        small.append(topic=b"Other")
        small.log.write(tmp_path / "commitlog")
        while store.log.end < small.log.end:
            store.refresh()
        assert [one.queue_offset for one in sent(store, "Topic", 0)] == [*range(10)]


def test_a_batch_topic_that_is_asked_for_before_its_first_message_is_read(
    tmp_path: Path, reader: type[MessageStore]
) -> None:
    """As by a consumer that starts first; the reader began before the topic was declared."""
    small = SmallStore(tmp_path, topic=b"Topic")
    with reader(small.write()) as store:
        assert [*sent(store, "Topic", 0)] == []
        for number in range(3):
            small.log.append(topic=b"Topic", queue_offset=number)
        small.log.write(tmp_path / "commitlog")
        write_batch_queue(small)
        while store.log.end < small.log.end:
            store.refresh()
        assert [one.queue_offset for one in sent(store, "Topic", 0)] == [0, 1, 2]


def test_a_stream_reads_a_topic_that_comes_back_as_a_batch_topic(tmp_path: Path) -> None:
    """It looks at the queues of every topic again and again."""
    small = SmallStore(tmp_path)
    for _ in range(100):
        small.append()
    small.write()
    settings, key = read_store_settings(tmp_path), QueueKey("Topic", 0)
    log = settings.open_log()
    queues = BuiltQueues(tmp_path, settings, log, QueueSelection())
    assert queues.refresh()[key].max_offset == 100
    lose_all_but(small, 10)
    write_batch_queue(small)
    assert queues.refresh()[key].max_offset == 10
    log.close()
