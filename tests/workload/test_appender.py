"""The appender writes what a broker would: kernel and plain encoder agree, files roll alike."""

from __future__ import annotations

import ipaddress
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reput.store.errors import OwnershipError, StoreError
from reput.store.log.appender import now_ms
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.properties import PROPERTY_CRC_SIZE, property_crc_tail
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag
from reput.workload.appender import Appender
from reput.workload.messages import MessageBatch
from tests.support.golden import tree
from tests.support.wire import PlainLog, file_name

FILE_SIZE = 16384
TOPICS = (b"Short", b"L" * 200, "订单".encode(), b"T" * 127, b"T" * 128)
SYS_FLAGS = (0, SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK, SysFlag.COMPRESSED)
HOSTS = (
    (("127.0.0.1", 1), ("10.1.2.3", 10911)),
    (("2001:db8::1", 50000), ("10.1.2.3", 10911)),
    (("127.0.0.1", 1), ("2001:db8::2", 10911)),
)


def random_batch(rng: random.Random, count: int) -> MessageBatch:
    """Messages of every kind as columns."""
    bodies = [rng.randbytes(rng.choice((0, 1, 7, 8, 300))) for _ in range(count)]
    blocks = [b"TAGS\x01t%d\x02" % rng.randrange(5) * rng.randrange(3) for _ in range(count)]
    return MessageBatch(
        topics=TOPICS,
        topic_ids=np.array([rng.randrange(len(TOPICS)) for _ in range(count)], np.int32),
        queue_ids=np.array([rng.randrange(3) for _ in range(count)], np.int32),
        sys_flags=np.array([rng.choice(SYS_FLAGS) for _ in range(count)], np.int32),
        flags=np.array([rng.randrange(-9, 9) for _ in range(count)], np.int32),
        born_timestamps=np.array([rng.randrange(1 << 41) for _ in range(count)], np.int64),
        bodies=np.frombuffer(b"".join(bodies) or b"\0", np.uint8),
        body_bounds=np.cumsum([0, *map(len, bodies)], dtype=np.int64),
        properties=np.frombuffer(b"".join(blocks) or b"\0", np.uint8),
        property_bounds=np.cumsum([0, *map(len, blocks)], dtype=np.int64),
    )


def fields_of(batch: MessageBatch) -> Iterator[dict[str, Any]]:
    """The messages of a batch, each as the fields that it was made of."""

    def part(data: NDArray[np.uint8], bounds: NDArray[np.int64], index: int) -> bytes:
        return data[bounds[index] : bounds[index + 1]].tobytes()

    for index in range(len(batch)):
        yield {
            "topic": batch.topics[batch.topic_ids[index]],
            "body": part(batch.bodies, batch.body_bounds, index),
            "properties": part(batch.properties, batch.property_bounds, index),
            "queue_id": int(batch.queue_ids[index]),
            "flag": int(batch.flags[index]),
            "sys_flag": int(batch.sys_flags[index]),
            "born_timestamp": int(batch.born_timestamps[index]),
        }


def host_bytes(host: tuple[str, int]) -> bytes:
    """Address and port as a record has them."""
    return ipaddress.ip_address(host[0]).packed + struct.pack(">i", host[1])


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize("hosts", HOSTS)
def test_kernel_and_plain_encoder_write_the_same_log(
    tmp_path: Path,
    seed: int,
    hosts: tuple[tuple[str, int], tuple[str, int]],
    property_crc: bool,
) -> None:
    """Both write the log that the messages stand for by formats.md; only the time of storing, and
    a checksum of properties that is checked apart, are taken from it."""
    settings = {
        "file_size": FILE_SIZE, "property_crc": property_crc,
        "born_host": hosts[0], "store_host": hosts[1],
    }  # fmt: skip
    rng, began = random.Random(seed), now_ms()
    fast, plain = tmp_path / "fast", tmp_path / "plain"
    batches = [random_batch(rng, 60) for _ in range(4)]
    with Appender(fast, **settings) as appender:  # type: ignore[arg-type]
        for batch in batches:
            appender.append_batch(batch)
    log = CommitLog([fast / "commitlog"])
    found = list(records(log, 0, LogTail(log).settled(), verify_crc=True))
    expected, taken = PlainLog(FILE_SIZE), Counter[tuple[object, object]]()
    packed = {"born_host": host_bytes(hosts[0]), "store_host": host_bytes(hosts[1])}
    given = [fields for batch in batches for fields in fields_of(batch)]
    with Appender(plain, **settings) as appender:  # type: ignore[arg-type]
        for fields, record in zip(given, found, strict=True):
            assert isinstance(record, Record)
            stored = record.store_timestamp
            assert began <= stored <= now_ms()
            data = log.read(record.physical_offset, record.total_size)
            tail = data[-PROPERTY_CRC_SIZE:] if property_crc else b""
            assert not tail or property_crc_tail(data[:-PROPERTY_CRC_SIZE]) == tail
            queue = fields["topic"], fields["queue_id"]
            has_place = fields["sys_flag"] not in (SysFlag.PREPARED, SysFlag.ROLLBACK)
            expected.append(
                **fields | {"properties": fields["properties"] + tail}, **packed,
                queue_offset=taken[queue] if has_place else 0, store_timestamp=stored,
            )  # fmt: skip
            taken[queue] += has_place
            appender.append(Record(**fields, store_timestamp=stored))
    files = tree(expected.write(tmp_path / "expected"))
    # one more file, of zeros, is kept ready
    files[file_name(len(expected.image))] = bytes(FILE_SIZE)
    assert tree(fast / "commitlog") == tree(plain / "commitlog") == files
    assert len(files) > 3


def test_queue_offsets_go_on_after_a_restart(tmp_path: Path) -> None:
    """PREPARED and ROLLBACK take none."""
    kinds = (0, SysFlag.PREPARED, 0, SysFlag.ROLLBACK, SysFlag.COMMIT)
    taken = []
    for _ in range(2):
        with Appender(tmp_path, file_size=FILE_SIZE) as appender:
            taken += [
                appender.append(Record(topic=b"T", sys_flag=kind)).queue_offset for kind in kinds
            ]
    assert taken == [0, 0, 1, 0, 2, 3, 0, 4, 0, 5]


def test_a_file_ahead_is_there_as_with_a_broker(tmp_path: Path) -> None:
    """One more all-zero file is kept ready."""
    with Appender(tmp_path, file_size=FILE_SIZE) as appender:
        appender.append(Record(topic=b"T", body=b"x"))
    files = tree(tmp_path / "commitlog")
    assert list(files) == [f"{0:020d}", f"{FILE_SIZE:020d}"]
    assert files[f"{FILE_SIZE:020d}"] == bytes(FILE_SIZE)


def test_a_message_larger_than_a_file_is_refused(tmp_path: Path) -> None:
    """By both ways, with the size in the line; nothing is appended."""
    with Appender(tmp_path, file_size=4096) as appender:
        with pytest.raises(StoreError, match="does not fit into a commitlog file of 4096 bytes"):
            appender.append(Record(topic=b"T", body=bytes(5000)))
        assert appender.end_offset == 0


def test_second_appender_is_refused(tmp_path: Path) -> None:
    """The store's lock is held as a broker holds it."""
    with Appender(tmp_path, file_size=FILE_SIZE):
        code = (
            "import sys; from pathlib import Path; from reput.workload.appender import Appender\n"
            "with Appender(Path(sys.argv[1])): pass"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True,
            check=False, cwd=Path(__file__).parent.parent.parent, timeout=60,
        )  # fmt: skip
    assert OwnershipError.__name__ in done.stderr
