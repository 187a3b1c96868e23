"""The appender writes what a broker would: kernel and plain encoder agree, files roll alike."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.store.errors import OwnershipError, StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import LogTail, records
from reput.store.log.properties import PROPERTY_CRC_SIZE, property_crc_tail
from reput.store.log.record import Record, encode
from reput.store.log.sysflag import SysFlag
from reput.workload.appender import Appender
from reput.workload.messages import MessageBatch
from tests.support.golden import tree

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


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize("hosts", HOSTS)
def test_kernel_and_plain_encoder_write_the_same_log(
    tmp_path: Path,
    seed: int,
    hosts: tuple[tuple[str, int], tuple[str, int]],
    property_crc: bool,
) -> None:
    """Every record of a batch equals its encoding; the plain way makes the same files of them."""
    settings = {
        "file_size": FILE_SIZE, "property_crc": property_crc,
        "born_host": hosts[0], "store_host": hosts[1],
    }  # fmt: skip
    rng = random.Random(seed)
    fast, plain = tmp_path / "fast", tmp_path / "plain"
    with Appender(fast, **settings) as appender:  # type: ignore[arg-type]
        for _ in range(4):
            appender.append_batch(random_batch(rng, 60))
    log = CommitLog([fast / "commitlog"])
    found = list(records(log, 0, LogTail(log).settled(), verify_crc=True))
    assert len(found) == 240
    with Appender(plain, **settings) as appender:  # type: ignore[arg-type]
        for record in found:
            assert isinstance(record, Record)
            data = log.read(record.physical_offset, record.total_size)
            assert encode(record) == data
            block = record.properties
            if property_crc:
                tail = data[-PROPERTY_CRC_SIZE:]
                assert property_crc_tail(data[:-PROPERTY_CRC_SIZE]) == tail
                block = block[:-PROPERTY_CRC_SIZE]
            appender.append(replace(record, properties=block))
    assert tree(fast / "commitlog") == tree(plain / "commitlog")
    assert len(tree(fast / "commitlog")) > 3


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
