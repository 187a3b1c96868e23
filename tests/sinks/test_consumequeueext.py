"""Ext units, put by the writer: held against RocketMQ's golden store and a plain model.

Axes: batch borders, batches given again, restarts, power cuts, full disks, kills, sizes of bit
maps and of files. Compared are the consumequeue and consumequeue_ext trees byte for byte.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from reput.filters import consumers
from reput.filters.bitmaps import BitMapCalculator
from reput.filters.bloom import BloomFilter
from reput.store import configjson, fsops
from reput.store.config import read_store_settings
from reput.store.errors import NoSpaceError, QueueFileError
from reput.store.log import java, record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from tests.sinks.test_consumequeue_faults import run_all
from tests.support.ext_model import Message, ModelQueuesWithExt, random_log
from tests.support.golden import difference
from tests.support.outputs import Output, Setup
from tests.support.power_cuts import Power
from tests.support.processes import is_killed_at
from tests.support.wire import file_name

QUEUE_FILE_SIZE = 100
TREES = ("consumequeue", "consumequeue_ext")


@pytest.fixture
def store(golden: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Setup, list[int]]:
    """The golden store, an empty output, record borders; messages by the plain decoder."""
    root = golden("ext")
    settings = read_store_settings(root)
    assert settings.enable_consume_queue_ext
    assert settings.enable_calc_filter_bit_map
    # the store's writer had them from its code: no broker.conf says so
    bloom = BloomFilter.create_by_fn(20, 64)
    document = configjson.read(root / "config" / "consumerFilter.json")
    calculator = BitMapCalculator(consumers.from_json(document, bloom))
    log = CommitLog(settings.commit_log_directories)
    messages = {}
    for item in records(log, log.min_offset, LogTail(log).settled()):
        assert isinstance(item, Record)
        topic = java.decode(item.topic)
        values = {java.decode(key): java.decode(text) for key, text in item.property_map.items()}
        messages[item.physical_offset] = Message(
            topic, item.queue_id, item.physical_offset, item.total_size, item.queue_offset,
            record.tags_code(item), item.store_timestamp, calculator.bit_map(topic, values) or b"",
        )  # fmt: skip
    setup = Setup(
        log, tmp_path / "output", settings.mapped_file_size_consume_queue, {},
        ext_file_size=settings.mapped_file_size_consume_queue_ext, messages=messages,
    )  # fmt: skip
    return root, setup, [*messages, max(message.end for message in messages.values())]


def test_one_batch_builds_the_golden_trees(store: tuple[Path, Setup, list[int]]) -> None:
    """Everything at once; then again, in the same run and after a restart: nothing changes."""
    root, setup, borders = store
    output = Output(setup)
    assert output.run(borders[-1]).messages > 2000
    for again in (None, output, Output(setup)):
        if again is not None:
            counts = again.run(borders[-1], 0)
            assert counts.messages == counts.duplicates
        for name in TREES:
            assert difference(setup.root / name, root / name) == []


def test_random_batches_build_the_golden_trees(
    store: tuple[Path, Setup, list[int]], seed: int
) -> None:
    """Cut anywhere, some given again from further back, with restarts between."""
    root, setup, borders = store
    rng = random.Random(seed)
    output = Output(setup)
    for end in [*sorted(rng.sample(borders[1:-1], 25)), borders[-1]]:
        earlier = rng.choice([at for at in borders if at <= output.position])
        output.run(end, rng.choice((None, None, earlier)))
        if rng.random() < 0.2:
            output.close()
            output = Output(setup)
    for name in TREES:
        assert difference(setup.root / name, root / name) == []


def test_units_beyond_the_watermark_are_put_again(
    store: tuple[Path, Setup, list[int]], seed: int
) -> None:
    """A kill with anything written beyond the watermark, whether power is lost or not."""
    root, setup, borders = store
    rng = random.Random(seed)
    with Power(setup.root) as power:
        for end in [*sorted(rng.sample(borders[1:-1], 5)), borders[-1]]:
            output = Output(setup, cut_short=True)
            output.run(end)
            output.dispatch(rng.choice([at for at in borders if at >= end]))
            rng.choice((power.fail, power.kill))(rng, output.close)
    Output(setup, cut_short=True).run(borders[-1])
    for name in TREES:
        assert difference(setup.root / name, root / name) == []


class Case:
    """One random log, its output and the model's."""

    def __init__(self, rng: random.Random, root: Path, size: int, *, drops: bool = True) -> None:
        self.rng = rng
        ext_file_size = rng.choice((64, 100, 137, 1000))
        log, self.messages = random_log(rng, size, rng.choice((2, 40, 90)), drops=drops)
        self.model = ModelQueuesWithExt(QUEUE_FILE_SIZE, ext_file_size)
        self.borders = [*(message.offset for message in self.messages), log.end]
        self.setup = Setup(
            CommitLog([log.write(root / "commitlog")]),
            root / "output",
            QUEUE_FILE_SIZE,
            {message.offset: message.queue_offset for message in self.messages},
            ext_file_size=ext_file_size,
            messages={message.offset: message for message in self.messages},
        )
        self._modelled = 0

    def model_up_to(self, end: int) -> None:
        """Give the model what it has not seen of the messages that end there."""
        while self._modelled < len(self.messages) and self.messages[self._modelled].end <= end:
            self.model.put(self.messages[self._modelled])
            self._modelled += 1

    def random_end(self, output: Output) -> int:
        beyond = [at for at in self.borders if at > output.position]
        return self.rng.choice(beyond[: self.rng.choice((1, 5, 60))])

    def check(self, place: object) -> None:
        """Both trees are the model's."""
        assert (self.setup.queues(), self.setup.exts()) == self.model.trees(), place

    def scribble(self) -> None:
        """Write anything past the ends that the model has."""
        rng, file_size = self.rng, self.setup.ext_file_size
        assert file_size is not None
        for (topic, queue_id), ext in self.model.exts.items():
            directory = self.setup.root / "consumequeue_ext" / topic / str(queue_id)
            if not directory.is_dir():
                continue
            start = ext.end - ext.end % file_size
            for at in (start, start + file_size)[: rng.choice((1, 2))]:
                data = bytearray(ext.files.get(at, bytes(file_size)))
                first = max(0, ext.end - at)
                if first < file_size:
                    first = rng.randrange(first, file_size)
                data[first:] = rng.randbytes(file_size - first)
                (directory / file_name(at)).write_bytes(data)


def test_units_are_put_as_the_model_puts_them(ram_path: Path, seed: int) -> None:
    """One run, random batches, some given again: file ends, drops, light units, all sizes."""
    for case in range(60):
        rng = random.Random(f"{seed}:{case}")
        made = Case(rng, ram_path / str(case), rng.choice((5, 20, 80)))
        output = Output(made.setup)
        while output.position < made.borders[-1]:
            earlier = rng.choice([at for at in made.borders if at <= output.position])
            output.run(made.random_end(output), rng.choice((None, earlier)))
        output.close()
        made.model_up_to(made.borders[-1])
        made.check(f"seed={seed} case={case}")
        made.setup.log.close()


def test_restarts_put_every_unit_where_it_was(ram_path: Path, seed: int) -> None:
    """A kill before the watermark moved, with anything beyond it, gives the model's restart."""
    for case in range(60):
        rng = random.Random(f"{seed}:{case}")
        made = Case(rng, ram_path / str(case), rng.choice((5, 20, 80)))
        output = Output(made.setup)
        while output.position < made.borders[-1]:
            end = made.random_end(output)
            output.dispatch(end)
            if rng.random() < 0.4:
                output.close()
                made.model_up_to(output.position)
                made.model.restart()
                if rng.random() < 0.5:
                    made.scribble()
                output = Output(made.setup)
            else:
                output.commit(end)
        # a queue is cut when it is first used: use all of them
        output.close()
        output = Output(made.setup)
        made.model_up_to(made.borders[-1])
        made.model.restart()
        output.dispatch(made.borders[-1], 0)
        output.close()
        for message in made.messages:
            made.model.put(message)
        made.check(f"seed={seed} case={case}")
        made.setup.log.close()


def test_a_cut_takes_the_ext_along(ram_path: Path, seed: int) -> None:
    """truncate at any border: what a run up to there has after a restart."""
    for case in range(30):
        rng = random.Random(f"{seed}:{case}")
        made = Case(rng, ram_path / str(case), 30)
        output = Output(made.setup)
        output.run(made.borders[-1])
        end = rng.choice(made.borders)
        output.writer.truncate(end)
        output.close()
        made.model_up_to(end)
        made.model.restart()
        made.check(f"seed={seed} case={case}")
        made.setup.log.close()


@pytest.mark.parametrize("operation", ["pwrite", "truncate", "mkdir", "open"])
def test_a_full_disk_anywhere_doubles_no_unit(
    ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """ENOSPC at every write, file or directory, tried again with the same batch or another."""
    rng = random.Random(seed)
    made = Case(rng, ram_path, 25)
    made.model_up_to(made.borders[-1])
    ends = [*sorted(rng.sample(made.borders[1:-1], 3)), made.borders[-1]]
    for ordinal in count(1):
        made.setup = replace(made.setup, root=ram_path / f"{operation}-{ordinal}")
        output, failed = Output(made.setup), 0
        points = fsops._Failpoints(f"{operation}:{ordinal}=ENOSPC")
        monkeypatch.setattr(fsops, "_failpoints", points)
        for end in ends:
            try:
                output.dispatch(end)
            except NoSpaceError:
                failed += 1
                within = [at for at in made.borders if output.position < at <= end]
                for again in (rng.choice(within), end):
                    output.dispatch(again)
            output.position = end
        monkeypatch.undo()
        output.close()
        made.check(f"seed={seed} {operation} {ordinal}")
        if not failed:
            break
    assert ordinal > 3
    made.setup.log.close()


@pytest.mark.extended
def test_killed_anywhere_it_ends_the_same(ram_path: Path, seed: int) -> None:
    """kill -9 before every operation of a few batches without drops: as if nothing had been."""
    rng = random.Random(seed)
    made = Case(rng, ram_path, 20, drops=False)
    made.model_up_to(made.borders[-1])
    ends = [*sorted(rng.sample(made.borders[1:-1], 3)), made.borders[-1]]
    for ordinal in count(1):
        made.setup = replace(made.setup, root=ram_path / str(ordinal))
        killed = is_killed_at(ordinal, partial(run_all, made.setup, ends))
        run_all(made.setup, ends)
        made.check(f"seed={seed} killed at {ordinal}")
        shutil.rmtree(made.setup.root)
        if not killed:
            break
    assert ordinal > 60
    made.setup.log.close()


def test_an_output_that_had_no_ext_gets_one(ram_path: Path, seed: int) -> None:
    """From there on units have addresses; those before keep their tags."""
    made = Case(random.Random(seed), ram_path, 60)
    with_ext, end = made.setup, made.borders[30]
    Output(replace(with_ext, ext_file_size=None)).run(end)
    assert with_ext.exts() == {}
    Output(with_ext).run(made.borders[-1])
    for message in made.messages:
        made.model.put(message, with_ext=message.offset >= end)
    made.check(f"seed={seed}")


@pytest.mark.parametrize("is_zeroed", [False, True])
def test_an_ext_that_is_gone_is_named(ram_path: Path, seed: int, is_zeroed: bool) -> None:
    """The files, or what was in them: new units must not get the addresses of lost ones. With the
    queues gone as well all is put anew."""
    made = Case(random.Random(seed), ram_path, 60, drops=False)
    output, last = Output(made.setup), made.borders[-1]
    output.run(last)
    output.close()
    if is_zeroed:
        for path in (made.setup.root / "consumequeue_ext").glob("*/*/*"):
            path.write_bytes(bytes(path.stat().st_size))
    else:
        shutil.rmtree(made.setup.root / "consumequeue_ext")
    with pytest.raises(QueueFileError, match=r"consumequeue_ext.*consumequeue.*replay_from="):
        Output(made.setup).run(last, 0)
    shutil.rmtree(made.setup.root / "consumequeue")
    shutil.rmtree(made.setup.root / "consumequeue_ext", ignore_errors=True)
    Output(made.setup).run(last, 0)
    made.model_up_to(last)
    made.check(f"seed={seed}")
