"""The derived files that go with the log's front, against RocketMQ's rule written plainly.

The model below is ``deleteExpiredFile`` and ``correctMinOffset`` of formats.md §5, on file contents
alone. Axes: random queues, file sizes, where the log begins, blanked gaps, units beyond the
watermark. Golden queues are in ``tests/checkpoints/test_expiry``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reput.store.config import OnQueueGap, StoreSettings, read_store_settings
from reput.store.queue.batchconsumequeue import BATCH_CQ_STORE_UNIT_SIZE, BATCH_UNIT_DTYPE
from reput.store.queue.consumequeue import ConsumeQueueFiles, QueueKey
from reput.store.queue.consumequeueext import ConsumeQueueExtFiles, place
from reput.store.queue.retention import (
    expired_files,
    expired_queue_files,
    remove_files,
    remove_queue,
    unused_queues,
)
from reput.store.queue.unsynced import UnsyncedFiles
from tests.support.golden import tree
from tests.support.outputs import Output, QueueLog, Setup, random_queue_offsets
from tests.support.wire import PRE_BLANK, UNIT, file_name

BLANK_SIZE = 2147483647


def settings_of(output: Path, file_size: int, ext_size: int = 100) -> StoreSettings:
    """The settings that retention needs."""
    return replace(
        StoreSettings(output, ()),
        mapped_file_size_consume_queue=file_size,
        mapped_file_size_consume_queue_ext=ext_size,
    )


def model_expired(files: dict[int, bytes], log_min: int) -> list[int]:
    """Oldest first while the last unit's start offset is smaller, never the last file."""
    gone = []
    for start in sorted(files)[:-1]:
        if UNIT.unpack(files[start][-20:])[0] >= log_min:
            break
        gone.append(start)
    return gone


def model_min_offset(files: dict[int, bytes], log_min: int) -> int:
    """First unit of a message that is still there, or the units' end; blanks are none."""
    end = 0
    for start in sorted(files):
        for index, (offset, size, _) in enumerate(UNIT.iter_unpack(files[start])):
            if size and size != BLANK_SIZE and offset >= log_min:
                return start // 20 + index
            end = start // 20 + index + 1 if size else end
    return end


def by_queue(queues: dict[str, bytes]) -> dict[str, dict[int, bytes]]:
    """Files of each queue by their start."""
    found: dict[str, dict[int, bytes]] = {}
    for name, data in queues.items():
        queue, _, start = name.rpartition("/")
        found.setdefault(queue, {})[int(start)] = data
    return found


def test_files_go_by_rocketmqs_rule(ram_path: Path, seed: int) -> None:
    """Random queues, the log cut at every few messages: the model's files, and its min offsets
    before and after; what stays is dispatched on to the same bytes as without retention."""
    rng = random.Random(seed)
    for case in range(40):
        file_size = rng.choice((20, 40, 100))
        log = QueueLog(file_size)
        random_queue_offsets(rng, log, 60, forward=rng.random() < 0.5)
        setup = log.setup(ram_path / str(case), file_size)
        settings = settings_of(setup.root, file_size)
        output, borders = Output(setup), log.borders()
        expired: set[str] = set()
        for end in [*sorted(rng.sample(borders[1:-1], 5)), borders[-1]]:
            output.run(end)
            log_min = rng.choice([at for at in borders if at <= end])
            before = by_queue(setup.queues())
            gone = {
                f"{queue}/{file_name(start)}"
                for queue, files in before.items()
                for start in model_expired(files, log_min)
            }
            planned = list(expired_files(setup.root, settings, log_min, end))
            names = [str(f.path.relative_to(setup.root / "consumequeue")) for f in planned]
            assert set(names) == gone, f"{seed=} {case=}"
            assert remove_files(planned) == len(gone) * file_size
            expired |= gone
            for queue, files in by_queue(setup.queues()).items():
                found = ConsumeQueueFiles(setup.root / "consumequeue" / queue, file_size)
                least = found.min_offset_in_queue(found.find_end(end), log_min)
                assert (
                    least
                    == model_min_offset(files, log_min)
                    == model_min_offset(before[queue], log_min)
                ), f"{seed=} {case=} {queue}"
        output.close()
        whole = log.model.tree()
        assert setup.queues() == {n: data for n, data in whole.items() if n not in expired}
        setup.log.close()


def test_a_blanked_gap_never_costs_a_message(tmp_path: Path) -> None:
    """A file that ends in blanks: RocketMQ's rule would read offset 0 and remove live messages."""
    log = QueueLog(100, blank_gaps=True)
    for queue_offset in (0, 1, 2, 17, 18):
        log.append(queue_offset)
    setup = log.setup(tmp_path, 100, OnQueueGap.BLANK)
    with closing(Output(setup)) as output:
        output.run(log.plain.end)
    files = ConsumeQueueFiles(setup.root / "consumequeue" / "T" / "0", 100)
    end = files.find_end(None)
    starts = [start for start, _ in log.plain.spans]
    assert files.starts == [0, 100, 200, 300]
    assert expired_queue_files(files, end, starts[2]) == []
    assert expired_queue_files(files, end, starts[3]) == [0, 100, 200]
    assert model_expired({s: files.path(s).read_bytes() for s in files.starts}, starts[2]) != []
    assert files.min_offset_in_queue(end, starts[3]) == 17
    files.path(0).unlink()
    files.refresh()
    assert expired_queue_files(files, end, starts[3]) == [100, 200]


def twelve_messages(directory: Path) -> tuple[QueueLog, Setup]:
    """A log, and an output with its queue in three files."""
    log = QueueLog(100)
    for queue_offset in range(12):
        log.append(queue_offset)
    setup = log.setup(directory, 100)
    with closing(Output(setup)) as output:
        output.run(log.plain.end)
    return log, setup


def test_the_file_of_the_last_durable_unit_stays(tmp_path: Path) -> None:
    """A newer file with nothing below the watermark is not what positions follow from."""
    log, setup = twelve_messages(tmp_path)
    settings = settings_of(setup.root, 100)
    for durable in range(13):
        watermark = log.borders()[durable]
        found = expired_files(setup.root, settings, log.plain.end, watermark)
        assert [int(f.path.name) for f in found] == [0, 100][: max(0, durable - 1) // 5]


def test_pre_blank_units_are_no_messages(tmp_path: Path) -> None:
    """A queue that begins at 3, the log at 0: RocketMQ's min offset falls to 0 after a restart."""
    directory = tmp_path / "consumequeue" / "T" / "0"
    directory.mkdir(parents=True)
    units = PRE_BLANK * 3 + UNIT.pack(0, 100, 0) + UNIT.pack(100, 100, 0)
    (directory / file_name(0)).write_bytes(units)
    files = ConsumeQueueFiles(directory, 100)
    assert [files.min_offset_in_queue(100, at) for at in (0, 1, 100, 101)] == [3, 4, 4, 5]


def test_a_hole_ends_the_removal(tmp_path: Path) -> None:
    """A file whose last unit is missing may hold a live message: it is damage, not age."""
    log, setup = twelve_messages(tmp_path)
    path = setup.root / "consumequeue" / "T" / "0" / file_name(0)
    path.write_bytes(path.read_bytes()[:80] + bytes(20))
    settings = settings_of(setup.root, 100)
    assert list(expired_files(setup.root, settings, log.plain.end, log.plain.end)) == []


@pytest.mark.parametrize("file_size", [100, 1000])
def test_ext_files_go_with_the_units_that_point_to_them(ram_path: Path, file_size: int) -> None:
    """Every place where the log may begin: ext files that end before the first live address, also
    of a queue with all of its units in one file, which stays."""
    count, ext_size = 40, 100
    codes = np.arange(count, dtype=np.int64)
    placed = place(0, ext_size, codes, codes, np.zeros((count, 7), np.uint8))
    for first in range(count + 1):
        output = ram_path / str(first)
        ext = ConsumeQueueExtFiles(output / "consumequeue_ext" / "T" / "0", ext_size)
        written = UnsyncedFiles()
        ext.write(placed, output, written)
        queue = ConsumeQueueFiles(output / "consumequeue" / "T" / "0", file_size)
        units = [UNIT.pack(100 * at, 100, int(placed.addresses[at])) for at in range(count)]
        queue.write(0, b"".join(units), output, written)
        written.close()
        settings = settings_of(output, file_size, ext_size)
        planned = list(expired_files(output, settings, 100 * first, None))
        kinds = [file.path.relative_to(output).parts[0] for file in planned]
        assert kinds == sorted(kinds)
        gone = sum(file.path.stat().st_size for file in planned)
        assert remove_files(planned) == gone
        ext.refresh()
        live = placed.addresses[first:].tolist()
        assert all(ext.read(address) is not None for address in live)
        # a unit has 27 bytes, so that three stand in a file, which ends where it is full
        expected = [
            at for at in range(0, 1400, 100) if first == count or at + 100 >= _real(live[0])
        ]
        assert ext.starts == expected


def _real(address: int) -> int:
    return address + (1 << 63)


def test_unused_queues_are_found_and_removed_with_their_directories(tmp_path: Path) -> None:
    """Only those whose last message ends before the log; RocketMQ's own topics stay."""
    log = QueueLog(100)
    for topic in ("Old", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"):
        for queue_offset in range(7):
            log.append(queue_offset, 0, topic)
    log.append(0, 1, "Old")
    border = log.plain.end
    log.append(0, 0, "New")
    setup = log.setup(tmp_path, 100)
    with closing(Output(setup)) as output:
        output.run(log.plain.end)
    settings = settings_of(setup.root, 100)
    where = setup.root, settings
    assert list(unused_queues(*where, border, None)) == [QueueKey("Old", 0)]
    assert list(unused_queues(*where, border + 1, None)) == [QueueKey("Old", 0), QueueKey("Old", 1)]
    remove_queue(*where, QueueKey("Old", 0))
    assert (setup.root / "consumequeue" / "Old" / "1").is_dir()
    assert not (setup.root / "consumequeue" / "Old" / "0").exists()
    remove_queue(*where, QueueKey("Old", 1))
    assert not (setup.root / "consumequeue" / "Old").exists()
    assert {name.split("/")[0] for name in tree(setup.root / "consumequeue")} == {
        "New", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX",
    }  # fmt: skip


def test_index_files_go_oldest_first_and_never_the_last(golden: Callable[[str], Path]) -> None:
    """RocketMQ's own three files, at every place around their last messages."""
    store = golden("mixed")
    paths = sorted((store / "index").iterdir())
    ends = [int.from_bytes(path.read_bytes()[24:32], "big") for path in paths]
    assert len(ends) == 3
    settings = read_store_settings(store)
    for log_min in (0, *ends, *(end + 1 for end in ends), ends[-1] + 10**9):
        planned = [file.path for file in expired_files(store, settings, log_min, 0)]
        gone = [path for path, end in zip(paths[:-1], ends, strict=False) if end < log_min]
        assert [path for path in planned if path.parent.name == "index"] == gone, log_min


def test_an_index_file_that_stays_keeps_those_after_it(golden: Callable[[str], Path]) -> None:
    """``IndexService.deleteExpiredFile`` stops at the first one, whatever the later ones say: a
    broker that was set back has such. The plan has each file's size."""
    store = golden("mixed")
    first, second, third = sorted((store / "index").iterdir())
    settings = read_store_settings(store)
    for path, end in ((first, 500), (second, 100), (third, 50)):
        data = bytearray(path.read_bytes())
        data[24:32] = end.to_bytes(8, "big")
        path.write_bytes(data)
    for log_min, gone in ((300, []), (501, [first, second])):
        planned = [file for file in expired_files(store, settings, log_min, 0) if not file.topic]
        assert [file.path for file in planned] == gone
        assert [file.size for file in planned] == [path.stat().st_size for path in gone]


def test_batch_queue_files_go_by_the_rule_of_queue_files(tmp_path: Path) -> None:
    """Three units a file, a batch of 100 bytes each: every place where the log may begin."""
    size = 3 * BATCH_CQ_STORE_UNIT_SIZE
    directory = tmp_path / "batchconsumequeue" / "T" / "0"
    directory.mkdir(parents=True)
    units = np.zeros(8, BATCH_UNIT_DTYPE)
    units["offset"], units["size"] = np.arange(8) * 100, 100
    units["msg_base_offset"], units["batch_size"] = np.arange(8) * 5, 5
    for start in range(0, 3 * size, size):
        data = units.tobytes()[start : start + size].ljust(size, b"\0")
        (directory / file_name(start)).write_bytes(data)
    settings = replace(settings_of(tmp_path, 100), mapper_file_size_batch_consume_queue=size)
    for log_min in range(0, 1000, 50):
        gone = [int(f.path.name) for f in expired_files(tmp_path, settings, log_min, 800)]
        assert gone == [start for start, last in ((0, 200), (size, 500)) if last < log_min]
