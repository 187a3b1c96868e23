"""Logs whose border between two files, which is where a seal ends, lies at an odd place.

As in ``test_seal``, the full comparison says what the sealed one must say.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.store import fsops
from reput.store.config import OnQueueGap, read_store_settings
from reput.store.log.logtail import LogTail
from reput.store.runs.dispatch import DispatchBatch
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import Running, running
from reput.upkeep.expiry import expire
from tests.support.grown_log import FILE_SIZE
from tests.support.index_model import read_content
from tests.support.sealed import BorderStore

INDEX_NUM = 20


@pytest.mark.parametrize("gap", [OnQueueGap.ROCKETMQ, OnQueueGap.BLANK, OnQueueGap.FAIL])
def test_a_repeated_queue_offset_after_the_border(ram_path: Path, gap: OnQueueGap) -> None:
    """The message is dropped, and the queue's place cannot be told from it: everything is read."""
    store = BorderStore(ram_path)
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
    store = BorderStore(ram_path)
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


def test_the_header_of_a_file_that_a_dispatcher_is_filling(ram_path: Path) -> None:
    """Its beginTimestamp is wrong, which nobody compares while a message lies beyond the watermark,
    but it is not sealed either."""
    store = BorderStore(ram_path)
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
    store = BorderStore(ram_path)
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
    store = BorderStore(ram_path)
    store.append_up_to(2 * FILE_SIZE)
    store.write()
    store.output.start()
    with monkeypatch.context() as patch:
        patch.setattr(fsops, "_failpoints", fsops._Failpoints("rename:1=ENOENT"))
        assert store.output.verify(sealed=True).differences == ()
    assert "not sealed" in caplog.text
    assert not store.seal.exists()
