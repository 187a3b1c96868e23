"""Repairs of outputs that are damaged in more than one way, and of which power cuts leave nothing
half done."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from reput.store.log.logtail import LogTail
from reput.store.state.watermark import read_watermark
from reput.streaming.sparkless import running
from reput.upkeep.verify.difference import Damage
from tests.support.golden import tree
from tests.support.power_cuts import Disk
from tests.support.processes import open_files
from tests.support.recorder import Recorder, read_tree
from tests.support.wire import file_name
from tests.upkeep.test_checkpoints import Place


class _CutShortError(Exception):
    """A run ends here as a killed one does."""


@pytest.fixture
def place(ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A store with everything, and its output."""
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    return Place(ram_path, random.Random(seed))


def test_a_repair_leaves_the_sign_of_a_run_that_was_cut_short(place: Place) -> None:
    """It has written units beyond the watermark, of messages that the log then loses; a repair of
    other units does not take them away, so the next start must."""
    place.log.grow(10)
    with suppress(_CutShortError), running(place.config) as run:
        batch = run.scan(run.start.log_end)
        for writer in run.committer._writers:
            writer.write(batch)
        raise _CutShortError
    kept = len(place.spans) - 10
    path = min(place.root.glob("consumequeue/A/*/*"))
    path.write_bytes(b"damaged!" + path.read_bytes()[8:])
    before = read_watermark(place.output.state)
    assert place.output.verify(repair=True).replay_from is not None
    assert place.config.abort_file.exists()
    lowered = read_watermark(place.output.state)
    # each owner adds 1, by which readers tell that units may change
    assert before and lowered and lowered.epoch == before.epoch + 1
    place.log.cut(kept)
    place.dispatch()
    queues = tree(place.root / "consumequeue")
    shutil.rmtree(place.root)
    place.dispatch()
    assert queues == tree(place.root / "consumequeue")


def test_all_that_a_repair_has_done_is_durable(place: Place) -> None:
    """Files that do not belong, sizes, bytes after the last unit, lost units, positions, lines of
    the ledger and index files: a power cut brings no damage back. No file stays open."""
    queue, other = sorted(place.root.glob("consumequeue/A/*"))[:2]
    last = max(queue.iterdir())
    size = last.stat().st_size
    last.write_bytes(last.read_bytes()[:-1])
    (queue / file_name(50 * size)).write_bytes(bytes(size))
    (queue / file_name(1)).write_bytes(b"1")
    first = min(other.iterdir())
    first.write_bytes(b"damaged!" + first.read_bytes()[8:])
    ext = min(place.root.glob("consumequeue_ext/A/*/*"))
    (ext.parent / file_name(7)).write_bytes(b"1")
    ext.write_bytes(ext.read_bytes() + b"1")
    index = max((place.root / "index").iterdir())
    index.write_bytes(index.read_bytes()[:-1])
    (place.root / "checkpoint").write_bytes(b"short")
    ledger = place.output.state / "quarantine.jsonl"
    ledger.write_bytes(b"{\n" + ledger.read_bytes())
    with Recorder(place.root) as recorder:
        found = place.output.verify(repair=True)
    recorder.check()
    damages = {(difference.kind, difference.damage) for difference in found.differences}
    assert damages >= {
        ("consumequeue", Damage.FILE), ("consumequeue", Damage.FILE_SIZE),
        ("consumequeue", Damage.UNIT), ("consumequeue_ext", Damage.FILE),
        ("consumequeue_ext", Damage.FILE_SIZE), ("index", Damage.FILE_SIZE),
        ("checkpoint", Damage.FILE_SIZE), ("quarantine.jsonl", Damage.LINE),
    }  # fmt: skip
    disk = Disk.after(recorder).durable()
    # one that comes back has the next start clear what is gone
    del disk["reput/abort"]
    assert disk == read_tree(place.root)
    assert open_files(place.root) == 0


def test_a_range_may_be_in_a_line_that_cannot_be_read(place: Place) -> None:
    """Damage that the ledger may list is none that came since: a repair goes on, and lists it."""
    ledger = place.output.state / "quarantine.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    (number,) = [at for at, line in enumerate(lines) if b"zero_hole" in line]
    ledger.write_bytes(b"".join([*lines[:number], b"#" + lines[number][1:], *lines[number + 1 :]]))
    found = place.output.verify(repair=True)
    assert found.damage == ()
    assert {difference.damage for difference in found.differences} == {Damage.LINE}
    healed = ledger.read_bytes().splitlines(keepends=True)
    assert healed[-1] == lines[number]
    assert b"damaged_ledger_line" in healed[number]
    assert place.output.verify().differences == ()


def test_a_watermark_that_was_lost_knows_where_the_index_begins(place: Place) -> None:
    """An index that is built from the log's beginning on is whole, and is missed as a whole."""
    before = read_watermark(place.output.state)
    path = place.output.state / "watermark"
    path.write_bytes(bytes(path.stat().st_size))
    place.output.verify(repair=True)
    after = read_watermark(place.output.state)
    assert before and after
    assert after.store_id != before.store_id
    fields = ("end_offset", "last_record_offset", "last_record_crc", "last_store_timestamp")
    for name in (*fields, "index_begin"):
        assert getattr(after, name) == getattr(before, name), name
