"""Logs whose border between two files, which is where a seal ends, lies at an odd place.

As in ``test_seal``, the full comparison says what the sealed one must say.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from store import fsops
from store.config import OnQueueGap, read_store_settings
from store.log.cursor import LogTail
from store.runs.dispatch import DispatchBatch
from streaming.config import DispatcherConfig
from tests.support.derived_output import DerivedOutput
from tests.support.grown_log import FILE_SIZE, GrownLog
from tests.support.index_model import read_content
from tests.support.sparkless import Running, running
from tests.support.wire import PRE_BLANK, PlainLog
from upkeep.expiry import expire

INDEX_NUM = 20


class Store:
    """Messages of one queue, in log files of 4 KiB, with as many keys as they are told."""

    def __init__(self, directory: Path) -> None:
        # for its configuration alone
        self.root = GrownLog(directory / "store", random.Random(1), ext=False).root
        self.plain = PlainLog(FILE_SIZE)
        self.output = DerivedOutput(self.root, directory / "output")
        self.next = 0

    def append(self, queue_offset: int | None = None, *, keys: int = 1, light: bytes = b"") -> None:
        """A message of 300 bytes or so, a second after the one before."""
        number = len(self.plain.spans)
        texts = b" ".join(b"%d-%d" % (number, key) for key in range(keys))
        properties = b"KEYS\x01" + texts + b"\x02" if keys else b""
        self.plain.append(
            topic=b"A", body=bytes(200), properties=properties + light,
            queue_offset=self.next if queue_offset is None else queue_offset,
            store_timestamp=1_700_000_000_000 + 1000 * number,
        )  # fmt: skip
        self.next = self.next + 1 if queue_offset is None else max(self.next, queue_offset + 1)

    def append_up_to(self, end: int, *, keys: int = 1) -> None:
        """Messages up to ``end``; the one that would go beyond a log file begins the next one."""
        while self.plain.end < end:
            self.append(keys=keys)

    def begin_file(self, number: int) -> None:
        """Messages until the next one begins a log file."""
        self.append_up_to(number * FILE_SIZE)
        self.plain.cut(number * FILE_SIZE)
        self.next -= 1

    def write(self) -> None:
        """Files that have changed."""
        directory, image = self.root / "commitlog", self.plain.image
        directory.mkdir(exist_ok=True)
        for at in range(0, len(image), FILE_SIZE):
            path, data = directory / f"{at:020}", bytes(image[at : at + FILE_SIZE])
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)

    @property
    def seal(self) -> Path:
        return self.output.state / "seal.json"

    def check(self) -> tuple[object, int]:
        """Both comparisons agree; their differences, and where the sealed one began to read."""
        before = self.seal.read_bytes()
        by_seal = self.output.verify(sealed=True)
        self.seal.write_bytes(before)
        full = self.output.verify()
        assert (by_seal.differences, by_seal.replay_from) == (full.differences, full.replay_from)
        return full.differences, by_seal.seal_end


@pytest.mark.parametrize("gap", [OnQueueGap.ROCKETMQ, OnQueueGap.BLANK, OnQueueGap.FAIL])
def test_a_repeated_queue_offset_after_the_border(ram_path: Path, gap: OnQueueGap) -> None:
    """The message is dropped, and the queue's place cannot be told from it: everything is read."""
    store = Store(ram_path)
    store.append_up_to(2 * FILE_SIZE + 200)
    store.write()
    store.output.start(on_queue_gap=gap)
    assert store.output.verify(sealed=True).differences == ()
    store.begin_file(3)
    store.append(store.next - 2)
    for _ in range(4):
        store.append()
    store.write()
    store.output.start()
    assert store.output.verify(sealed=True).seal_end == 2 * FILE_SIZE
    assert json.loads(store.seal.read_bytes())["end"] == 3 * FILE_SIZE
    assert store.check() == ((), 0)


def test_a_lost_line_about_a_queue_that_is_named_twice(ram_path: Path) -> None:
    """The jump comes after the border, the message that tells it before."""
    store = Store(ram_path)
    names = b"INNER_MULTI_DISPATCH\x01%s\x02INNER_MULTI_QUEUE_OFFSET\x01%s\x02"
    store.append(light=names % (b"L", b"0"))
    store.append_up_to(FILE_SIZE - 900)
    store.append(light=names % (b"L,L", b"1,2"))
    store.append_up_to(FILE_SIZE + 300)
    store.append(light=names % (b"L", b"3"))
    store.append()
    store.write()
    store.output.start()
    assert store.output.verify(sealed=True).differences == ()
    ledger = store.output.state / "quarantine.jsonl"
    assert '"queue_offset": 3, "detail": "queue offset 3 at position 2"' in ledger.read_text()
    assert store.check() == ((), FILE_SIZE)
    ledger.write_text("")
    assert store.check()[0] != ()


def test_a_file_of_blanks_must_not_be_gone(ram_path: Path) -> None:
    """No message has a unit in it, and the log still has those around it."""
    store = Store(ram_path)
    for queue_offset in (0, 30):
        store.append(queue_offset)
    store.append_up_to(2 * FILE_SIZE)
    store.write()
    store.output.start(on_queue_gap=OnQueueGap.BLANK)
    assert store.output.verify(sealed=True).differences == ()
    files = store.output.files()["consumequeue"]
    next(path for path in files if path.read_bytes() == PRE_BLANK * 5).unlink()
    assert store.check()[0] != ()


def test_the_header_of_a_file_that_a_dispatcher_is_filling(ram_path: Path) -> None:
    """Its beginTimestamp is wrong, which nobody compares while a message lies beyond the watermark,
    but it is not sealed either."""
    store = Store(ram_path)
    store.append_up_to(2 * FILE_SIZE + 300)
    store.write()
    with running(DispatcherConfig(store.root, store.output.root, once=True)) as run:
        commit(run)
        store.append()
        store.write()
        last = max(store.output.files()["index"])
        data = last.read_bytes()
        last.write_bytes(data[:7] + bytes([data[7] ^ 1]) + data[8:])
        assert store.output.verify(sealed=True).differences == ()
        assert not store.seal.exists()
        last.write_bytes(data)
        assert store.output.verify(sealed=True).differences == ()
        assert json.loads(store.seal.read_bytes())["end"] == 2 * FILE_SIZE
        commit(run)
        assert store.check() == ((), 2 * FILE_SIZE)


def commit(run: Running) -> DispatchBatch:
    """Everything that the log has by now."""
    run.log.refresh()
    batch = run.scan(LogTail(run.log).settled())
    run.commit(batch)
    return batch


@pytest.mark.parametrize("expired", [False, True])
def test_an_index_file_that_ends_where_a_log_file_does(ram_path: Path, *, expired: bool) -> None:
    """The log loses that file, and the index too: the first entry that is left counts its seconds
    from a message that nobody has any more. Damage of the next entries is found."""
    store = Store(ram_path)
    while FILE_SIZE - store.plain.end > 700:
        store.append()
    filled = -len(store.plain.spans) % (INDEX_NUM - 1)
    store.append(keys=filled)
    store.append_up_to(FILE_SIZE, keys=0)
    store.plain.cut(FILE_SIZE)
    store.next -= 1
    store.append_up_to(3 * FILE_SIZE + 300)
    store.write()
    store.output.start()
    assert store.output.verify(sealed=True).differences == ()
    min((store.root / "commitlog").iterdir()).unlink()
    first, second, *_ = store.output.files()["index"]
    entries = read_content(second, 7, INDEX_NUM).entries
    assert entries[0][1] == FILE_SIZE
    assert entries[0][2] > 0
    if expired:
        expire(read_store_settings(store.root), store.output.root, apply=True)
        assert not first.exists()
    assert store.check() == ((), 3 * FILE_SIZE)
    data = bytearray(second.read_bytes())
    data[40 + 4 * 7 + 20 * 2 + 15] ^= 1
    second.write_bytes(data)
    assert store.check()[0] != ()


def test_a_seal_that_cannot_be_written_costs_no_answer(
    ram_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where another verification has just renamed the temporary file of both."""
    store = Store(ram_path)
    store.append_up_to(2 * FILE_SIZE)
    store.write()
    store.output.start()
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints("rename:1=ENOENT"))
        assert store.output.verify(sealed=True).differences == ()
    assert "not sealed" in caplog.text
    assert not store.seal.exists()
