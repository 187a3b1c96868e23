"""Consumers of a store see every message once, up to where it may be read, and nothing else.

That the answers are RocketMQ's is in tests/interop/test_readers.py. Here is what needs no broker:
what the golden stores are known to hold, following a store that grows, and damage.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from reput.checkpoints.watermark import WatermarkFile
from reput.readers.getmessage import GetMessageResult, GetMessageStatus, PullLimits
from reput.readers.messages import Message
from reput.readers.messagestore import MessageStore
from reput.store.config import read_store_settings
from reput.store.errors import UsageError
from reput.store.log import record
from reput.store.log.sysflag import SysFlag
from reput.store.queue.consumequeue import BoundaryType
from reput.store.state.watermark import Watermark
from tests.readers.stores import LOG_FILE_SIZE, SmallStore, StoreByRanges
from tests.support.batch_queue import BATCH_UNIT
from tests.support.golden import GOLDEN_CASES, log_records, tree
from tests.support.wire import PRE_BLANK, read_log

ORDERS_SHA256 = "810099c39d292309b7dc4e743490099d943cbefb9624cdbf5b845a8681258e75"
"""A RocketMQ client drained this from golden store broker (tests/golden/README.md)."""


@pytest.fixture(params=[MessageStore, StoreByRanges], ids=["decoded", "as-stored"])
def reader(request: pytest.FixtureRequest) -> type[MessageStore]:
    """Both ways to pull: messages, and records as they are in the log."""
    found: type[MessageStore] = request.param
    return found


def drained(store: MessageStore, topic: str, queue_id: int, offset: int = 0) -> Iterator[Message]:
    """Every message of a queue, from an offset or the first one on, as a consumer pulls them."""
    next_offset = max(offset, store.queue(topic, queue_id).min_offset())
    while True:
        pulled = store.queue(topic, queue_id).get_message(next_offset)
        yield from pulled.found
        if pulled.status != GetMessageStatus.FOUND:
            assert pulled.next_begin_offset == next_offset == pulled.max_offset
            return
        assert pulled.next_begin_offset > next_offset
        next_offset = pulled.next_begin_offset


def everything(store: MessageStore) -> set[tuple[str, int, int]]:
    """(topic, queue id, physical offset) of every message in a queue, none of them twice."""
    found = [
        (topic, queue_id, message.physical_offset)
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
        for message in drained(store, topic, queue_id)
    ]
    assert len(found) == len(set(found))
    return set(found)


def expected(root: Path, end: int | None = None) -> set[tuple[str, int, int]]:
    """The same by the log alone, up to a physical offset; light queues by their lists."""
    found = set()
    for message in log_records(root):
        if message.transaction_type in (SysFlag.PREPARED, SysFlag.ROLLBACK):
            continue
        if end is not None and message.physical_offset + message.total_size > end:
            continue
        found.add((message.topic.decode(), message.queue_id, message.physical_offset))
        light = message.property_map.get(b"INNER_MULTI_DISPATCH", b"").decode()
        found |= {(name, 0, message.physical_offset) for name in light.split(",") if name}
    return found


def write_watermark(root: Path, end: int) -> None:
    state = root / "reput"
    state.mkdir(exist_ok=True)
    file = WatermarkFile(state)
    file.advance(Watermark("0" * 32, end))
    file.close()


def pull(store: MessageStore, offset: int, **limits: int) -> GetMessageResult:
    return store.queue("Topic", 0).get_message(offset, **limits)


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_every_message_of_a_golden_store_is_pulled_once(
    golden: Callable[[str], Path],
    name: str,
    reader: type[MessageStore],
) -> None:
    """The log says what there is, and nothing is written."""
    root = golden(name)
    before = tree(root)
    with reader(root) as store:
        assert everything(store) == expected(root)
        assert store.log.end == sum(map(len_at, read_log(root / "commitlog")[-1:]))
    assert tree(root) == before


def len_at(found: tuple[int, bytes]) -> int:
    return found[0] + len(found[1])


def test_draining_gives_what_a_rocketmq_client_drained(
    golden: Callable[[str], Path], reader: type[MessageStore]
) -> None:
    """The bodies of 6,000 orders and their places."""
    placed = {}
    with reader(golden("broker")) as store:
        for queue_id in store.queue_ids("Orders"):
            for message in drained(store, "Orders", queue_id):
                placed[f"{queue_id:03d}-{message.queue_offset:012d}"] = message.body()
    assert len(placed) == 6000
    digest = hashlib.sha256()
    for key in sorted(placed):
        digest.update(key.encode() + placed[key])
    assert digest.hexdigest() == ORDERS_SHA256


@pytest.mark.parametrize("name", ["lmq", "batch"])
def test_nothing_beyond_the_watermark_is_seen(
    golden: Callable[[str], Path],
    seed: int,
    name: str,
    reader: type[MessageStore],
) -> None:
    """A store that is followed while the watermark goes up, by random steps, is read whole."""
    rng, root = random.Random(seed), golden(name)
    found = log_records(root)
    ends = [message.physical_offset + message.total_size for message in found]
    steps = [0, *sorted(rng.sample(ends[:-1], 3)), ends[-1]]
    write_watermark(root, 0)
    with reader(root) as store:
        positions = {(t, q): 0 for t in store.topics() for q in store.queue_ids(t)}
        seen: set[tuple[str, int, int]] = set()
        for end in steps:
            write_watermark(root, end)
            store.refresh()
            for (topic, queue_id), position in positions.items():
                for message in drained(store, topic, queue_id, position):
                    seen.add((topic, queue_id, message.physical_offset))
                positions[topic, queue_id] = store.queue(topic, queue_id).max_offset()
            assert seen == expected(root, end)
            assert store.log.message_at(end) is None
            by_key = [
                keyed.physical_offset
                for message in rng.sample(found, 20)
                if (key := message.property_map.get(b"UNIQ_KEY"))
                for keyed in store.index.query(message.topic.decode(), key.decode()).messages
            ]
            assert max(by_key, default=-1) < end
            assert by_key or end < ends[-1]


def test_a_watermark_within_a_record_hides_it(tmp_path: Path, reader: type[MessageStore]) -> None:
    """By place, id, queue and key; and what lies beyond the watermark does not count among the
    newest entries that a query examines."""
    small = SmallStore(tmp_path)
    offsets = [small.append(properties=b"KEYS\1k\2") for _ in range(6)]
    small.write_index([("Topic#k", offset) for offset in offsets])
    small.write()
    for beyond in (1, 60, small.log.spans[3][1] - offsets[3] - 1):
        write_watermark(tmp_path, offsets[3] + beyond)
        with reader(tmp_path) as store:
            assert store.log.message_at(offsets[3]) is None
            before = store.log.message_at(offsets[2])
            assert before is not None
            assert store.log.message_by_id(before.offset_message_id) == before
            assert [message.queue_offset for message in pull(store, 0).found] == [0, 1, 2]
            result = store.index.query("Topic", "k", max_count=2)
            assert result.with_key("Topic", "k") == [store.log.message_at(offsets[2])]
            write_watermark(tmp_path, offsets[3])
            store.refresh()
            result = store.index.query("Topic", "k", max_count=2)
            found = [message.physical_offset for message in result.messages]
            assert found == offsets[1:3]


def test_a_log_that_grows_is_followed_without_a_watermark(
    tmp_path: Path, reader: type[MessageStore]
) -> None:
    """As beside a running broker: units that are there before their message's bytes are not seen,
    and the log's last record is believed when two looks saw the same."""
    small = SmallStore(tmp_path)
    for _ in range(30):
        small.append()
    with reader(small.write()) as store:
        assert [m.queue_offset for m in drained(store, "Topic", 0)] == list(range(30))
        last = small.append(body=b"torn" * 20)
        small.write()
        path = tmp_path / "commitlog" / f"{last - last % 4096:020d}"
        whole = path.read_bytes()
        path.write_bytes(whole[: last % 4096 + 60].ljust(4096, b"\0"))
        for _ in range(3):
            store.refresh()
            assert pull(store, 30).status == GetMessageStatus.OFFSET_OVERFLOW_ONE
        path.write_bytes(whole)
        while store.log.end <= last:
            store.refresh()
        assert [m.body() for m in pull(store, 30).messages] == [b"torn" * 20]


def test_a_queue_whose_first_files_go_while_it_is_read_goes_on(
    tmp_path: Path, reader: type[MessageStore]
) -> None:
    """Expiry removes the log's first file, then queue files: the reader opens them again."""
    small = SmallStore(tmp_path)
    offsets = [small.append() for _ in range(100)]
    with reader(small.write()) as store:
        assert store.queue("Topic", 0).min_offset() == 0
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        first = next(index for index, offset in enumerate(offsets) if offset >= 4096)
        queue = tmp_path / "consumequeue" / "Topic" / "0"
        for start in range(0, first // 10 * 10, 10):
            (queue / f"{start * 20:020d}").unlink()
        assert store.queue("Topic", 0).offset_by_time(0) == first
        assert store.queue("Topic", 0).min_offset() == first
        pulled = pull(store, 0)
        assert (pulled.status, pulled.next_begin_offset) == ("OFFSET_TOO_SMALL", first)


def test_missing_files_are_told_apart(tmp_path: Path, reader: type[MessageStore]) -> None:
    """A hole in the queue, and one in the log, of which only the messages in it are lost."""
    small = SmallStore(tmp_path)
    offsets = [small.append() for _ in range(100)]
    small.write()
    (tmp_path / "consumequeue" / "Topic" / "0" / f"{10 * 20:020d}").unlink()
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    with reader(tmp_path) as store:
        pulled = pull(store, 15)
        assert (pulled.status, pulled.next_begin_offset) == ("OFFSET_FOUND_NULL", 20)
        lost = [index for index, at in enumerate(offsets) if 4096 <= at < 8192]
        pulled = pull(store, lost[0])
        assert pulled.status == GetMessageStatus.MESSAGE_WAS_REMOVING
        assert pulled.next_begin_offset == lost[0] // 10 * 10 + 10
        assert [m.queue_offset for m in pull(store, 0).found] == list(range(10))


def test_a_queue_begins_in_memory_where_its_first_message_is_near_the_end(tmp_path: Path) -> None:
    """At offset 0, and within the distance that a broker has cached, the last byte included."""
    small = SmallStore(tmp_path)
    small.units[1] = [PRE_BLANK] * 2
    for queue_id in (0, 0, 1, 0):
        small.append(queue_id=queue_id)
    limits = PullLimits.of(read_store_settings(small.write()))
    first = small.log.spans[0][0]
    for distance, expected in ((small.log.end - first, True), (small.log.end - first - 1, False)):
        with MessageStore(tmp_path, limits=replace(limits, in_memory_bytes=distance)) as store:
            found = [store.queue("Topic", queue_id).begins_in_memory() for queue_id in range(3)]
            assert store.queue("Topic", 1).min_offset() == 2
        assert found == [expected, False, False]


def test_what_the_log_has_lost_by_a_refresh_is_no_part_of_a_queue(tmp_path: Path) -> None:
    """Expiry has removed the log's first file, and no queue file yet."""
    small = SmallStore(tmp_path)
    offsets = [small.append() for _ in range(60)]
    with MessageStore(small.write()) as store:
        assert store.queue("Topic", 0).bounds() == (0, 60)
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        store.refresh()
        first = next(index for index, offset in enumerate(offsets) if offset >= 4096)
        assert store.queue("Topic", 0).bounds() == (first, 60)


def test_a_query_says_whether_there_is_more_and_forgets_what_expired(tmp_path: Path) -> None:
    """More than it examined, not as many; and a message that the log has removed is no loss."""
    small = SmallStore(tmp_path)
    offsets = [small.append(properties=b"KEYS\1k\2", body=b"x" * 900) for _ in range(6)]
    small.write_index([("Topic#k", offset) for offset in offsets])
    with MessageStore(small.write(), fail_on_data_loss=True) as store:
        for count, has_more in ((5, True), (6, False), (7, False)):
            result = store.index.query("Topic", "k", max_count=count)
            found = [message.physical_offset for message in result.messages]
            assert (found, result.has_more) == (offsets[-count:], has_more)
        (tmp_path / "commitlog" / f"{0:020d}").unlink()
        store.refresh()
        result = store.index.query("Topic", "k")
        left = [offset for offset in offsets if offset >= 4096]
        assert 0 < len(left) < 6
        assert [message.physical_offset for message in result.messages] == left


def test_a_log_is_dispatched_whole_where_no_record_follows(tmp_path: Path) -> None:
    """The next record may be in the next file, after the BLANK that fills this one."""
    small = SmallStore(tmp_path)
    while small.log.end < LOG_FILE_SIZE + 200:
        small.append()
    small.write()
    ends = [end for _, end in small.log.spans]
    rolled = max(end for end in ends if end < LOG_FILE_SIZE)
    for end, is_whole in ((ends[0], False), (rolled, False), (ends[-2], False), (ends[-1], True)):
        write_watermark(tmp_path, end)
        with MessageStore(tmp_path) as store:
            assert store.log.is_dispatched_whole() is is_whole
    for data in (bytes(LOG_FILE_SIZE), None):
        path = tmp_path / "commitlog" / f"{LOG_FILE_SIZE:020d}"
        path.unlink() if data is None else path.write_bytes(data)
        write_watermark(tmp_path, rolled)
        with MessageStore(tmp_path) as store:
            assert store.log.is_dispatched_whole()


def test_a_damaged_record_stops_nothing(tmp_path: Path, reader: type[MessageStore]) -> None:
    """It is listed, and the messages around it come; alone it gives no message."""
    small = SmallStore(tmp_path)
    offsets = [small.append() for _ in range(10)]
    small.log.put(offsets[4] + 4, b"\0\0\0\0")
    with reader(small.write()) as store:
        pulled = pull(store, 0)
        assert pulled.damaged == (offsets[4],)
        assert [m.queue_offset for m in pulled.messages] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert store.log.message_at(offsets[4]) is None


def test_blank_units_are_no_messages(tmp_path: Path, reader: type[MessageStore]) -> None:
    """A queue that begins with blank units in a log that begins at 0. RocketMQ takes the blanks for
    messages after a restart and answers MESSAGE_WAS_REMOVING (formats.md §13 no. 6)."""
    small = SmallStore(tmp_path)
    small.units[0] = [PRE_BLANK] * 7
    times = [1000, 2000, 2000, 3000, 4000]
    for time in times:
        small.append(store_timestamp=time)
    with reader(small.write()) as store:
        assert store.queue("Topic", 0).min_offset() == 7
        assert pull(store, 3).status == GetMessageStatus.OFFSET_TOO_SMALL
        assert [m.queue_offset for m in pull(store, 7).messages] == [7, 8, 9]
        found = [
            [
                store.queue("Topic", 0).offset_by_time(time, boundary)
                for time in (0, 2000, 2500, 9000)
            ]
            for boundary in (BoundaryType.LOWER, BoundaryType.UPPER)
        ]
        assert found == [[7, 8, 10, 12], [7, 9, 9, 11]]
        since = map(store.queue("Topic", 0).first_from_time, (0, 2000, 2500, 4000, 9000))
        assert [*since] == [7, 8, 10, 11, 12]
        assert store.queue("Topic", 0).earliest_time() == 1000
        assert store.log.earliest_time() == 1000


def test_blank_units_between_messages_are_passed(
    tmp_path: Path, reader: type[MessageStore]
) -> None:
    """They fill places without a message, and are no damage that is reported."""
    small = SmallStore(tmp_path)
    for _ in range(3):
        small.append()
    small.units[0] += [PRE_BLANK] * 2
    small.append()
    with reader(small.write()) as store:
        # a unit of that size fills the batch, as it does for a broker
        assert pull(store, 0).next_begin_offset == 3
        pulled = pull(store, 3)
        assert len(pulled.messages) == 1
        assert (pulled.damaged, pulled.next_begin_offset) == ((), 6)


def test_a_pull_has_the_limits_of_the_store(tmp_path: Path, reader: type[MessageStore]) -> None:
    """They are those of broker.conf, by a message's distance from the log's end; limits of the call
    count first."""
    small = SmallStore(tmp_path)
    for _ in range(30):
        small.append(body=b"x" * 20)
    conf = small.write() / "broker.conf"
    sizes = conf.read_text()

    def pulled(stated: str, **given: int) -> int:
        conf.write_text(sizes + stated)
        limits = replace(PullLimits.of(read_store_settings(tmp_path)), **given) if given else None
        with reader(tmp_path, limits=limits) as store:
            return len(store.queue("Topic", 0).get_message(0, 100).found)

    assert pulled("") == 10  # all of the queue's file
    assert pulled("maxTransferCountOnMessageInMemory=7\n") == 7
    size = small.log.spans[0][1] - small.log.spans[0][0]
    assert pulled(f"maxTransferBytesOnMessageInMemory={3 * size}\n") == 3
    on_disk = "accessMessageInMemoryMaxRatio=0\nmaxTransferCountOnMessageInMemory=7\n"
    assert pulled(on_disk) == 8
    assert pulled(on_disk + "maxTransferCountOnMessageInDisk=2\n") == 2
    assert pulled(on_disk + f"maxTransferBytesOnMessageInDisk={4 * size + 1}\n") == 4
    assert pulled(on_disk, in_memory_bytes=1 << 20) == 7
    assert pulled(on_disk, max_transfer_count_on_disk=5) == 5


def test_a_pull_ends_before_an_inner_batch_beyond_its_limit(
    golden: Callable[[str], Path], reader: type[MessageStore], seed: int
) -> None:
    """Messages count, not units (``isTheBatchFull``); the first batch comes whatever its size."""
    root, rng, largest = golden("batch"), random.Random(seed), 0
    with reader(root) as store:
        for path in (root / "batchconsumequeue").glob("*/*/*"):
            data = path.read_bytes()
            units = BATCH_UNIT.iter_unpack(data[: len(data) // BATCH_UNIT.size * BATCH_UNIT.size])
            batches = [(base, count) for _, size, _, _, base, count, _, _ in units if size]
            queue = store.queue(*path.parts[-3:-2], int(path.parts[-2]))
            for first in rng.sample(range(len(batches)), 30):
                limit = rng.choice((1, 2, 5, 20, 32))
                sums = accumulate(count for _, count in batches[first:])
                taken = max(sum(total <= limit for total in sums), 1)
                pulled = queue.get_message(batches[first][0], limit)
                assert len(pulled.found) == taken
                assert pulled.next_begin_offset == sum(batches[first + taken - 1])
                largest = max(largest, taken)
    assert largest > 3


def test_a_batch_queue_without_units(
    golden: Callable[[str], Path], reader: type[MessageStore]
) -> None:
    """It begins and ends at 0; only a pull states -1, as RocketMQ's do."""
    with reader(golden("batch")) as store:
        queue = store.queue("BatchTopic", 99)
        assert queue.bounds() == (queue.min_offset(), queue.max_offset()) == (0, 0)
        assert queue.offset_by_time(5) == 0
        pulled = queue.get_message(0)
        assert pulled.status == GetMessageStatus.NO_MESSAGE_IN_QUEUE
        assert (pulled.min_offset, pulled.max_offset) == (-1, 0)


def test_what_no_store_has(tmp_path: Path, reader: type[MessageStore]) -> None:
    """Names that are no directories never become paths; what is not there is empty."""
    small = SmallStore(tmp_path / "store")
    small.append()
    with reader(small.write()) as store:
        for topic, queue_id in (("../store", 0), ("..", 0), ("", 0), ("Topic", -1)):
            assert store.queue(topic, queue_id).get_message(0).status == "NO_MATCHED_LOGIC_QUEUE"
            assert store.queue_ids("../consumequeue/Topic") == []
        for topic, queue_id in (("Nothing", 0), ("Topic", 99)):
            assert store.queue(topic, queue_id).get_message(5).status == "NO_MESSAGE_IN_QUEUE"
            assert store.queue(topic, queue_id).bounds() == (0, 0)
            assert store.queue(topic, queue_id).store_time(0) == -1
            assert store.queue(topic, queue_id).earliest_time() == -1
        assert store.topics() == ["Topic"]
        assert store.queue_ids("Topic") == [0]
        assert store.index.query("Topic", "nothing").messages == []
    small.log.put(0, bytes(small.log.end))
    with reader(small.write()) as store:
        assert store.log.earliest_time() == -1


def test_the_first_store_time_of_a_log_with_long_hosts(golden: Callable[[str], Path]) -> None:
    """RocketMQ throws where the first message came over IPv6 and the broker has an IPv4 address."""
    root = golden("wide")
    first = log_records(root)[0]
    assert first.sys_flag & SysFlag.BORN_HOST_V6
    with MessageStore(root) as store:
        assert store.log.earliest_time() == first.store_timestamp


def test_ids_lead_to_their_messages_only(golden: Callable[[str], Path], seed: int) -> None:
    """Ids of IPv4 and IPv6 brokers lead to messages; those of other brokers or no record do not."""
    root = golden("wide")
    found = random.Random(seed).sample(log_records(root), 200)
    hosts = {len(record.encode_host(message.store_host)) for message in found}
    assert hosts == {8, 20}
    with MessageStore(root) as store:
        for message in found:
            host = record.encode_host(message.store_host)
            place = message.physical_offset.to_bytes(8, "big")
            got = store.log.message_by_id((host + place).hex())
            assert got is not None
            assert got.record == message
            elsewhere = bytes([host[0] ^ 1]) + host[1:]
            assert store.log.message_by_id((elsewhere + place).hex()) is None
            assert store.log.message_at(message.physical_offset + 1) is None
        for text in ("", "zz", "00" * 15, "0" * 34, "AC" * 16 + "é"):
            with pytest.raises(UsageError, match="not an offset message id"):
                store.log.message_by_id(text)


def test_settings_that_do_not_fit_are_named(golden: Callable[[str], Path]) -> None:
    """Instead of reading units at wrong places."""
    root = golden("plain")
    conf = root / "broker.conf"
    conf.write_text(conf.read_text().replace("ConsumeQueue=6000", "ConsumeQueue=4000"))
    with pytest.raises(UsageError, match=r"built with .*ConsumeQueue=6000, but .* says 4000"):
        MessageStore(root)
