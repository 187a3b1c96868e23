"""From the log alone, through the query: every index that RocketMQ derived, of all golden stores.

consumequeue, consumequeue_ext and batchconsumequeue byte for byte, index files by content. In one
batch, in many, and stopped between batches, each time with what was not durable lost.
"""

from __future__ import annotations

import logging
import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.config import read_store_settings
from reput.store.index.indexfile import IndexLayout, index_key_hash, index_keys
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.record import Record
from reput.upkeep.verify.run import verify
from tests.streaming.test_golden import dispatch
from tests.support.cli import Call
from tests.support.golden import ALL_GOLDEN_NAMES, difference
from tests.support.index_model import Content, Message, ModelIndex, read_content

pytestmark = pytest.mark.usefixtures("spark")

TREES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


def index_contents(root: Path, layout: IndexLayout) -> list[Content]:
    """Oldest first; names are times."""
    directory = root / "index"
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    return [read_content(path, layout.max_hash_slot_num, layout.max_index_num) for path in paths]


def check_equal(output: Path, store: Path, *, index: bool) -> None:
    for name in TREES:
        assert difference(output / name, store / name) == [], name
    settings = read_store_settings(store)
    layout = settings.index_layout
    ours, theirs = index_contents(output, layout), index_contents(store, layout)
    assert theirs == (ours if index else [])


@pytest.mark.parametrize("name", ALL_GOLDEN_NAMES)
def test_every_index_equals_rocketmqs(
    golden: Callable[[str], Path], tmp_path: Path, name: str, seed: int
) -> None:
    """The broker store was run without an index; 5.5 indexes tags. The seed chooses between one
    batch and many, for each store; ``tests.torture`` builds them in one batch every time."""
    store, output = golden(name), tmp_path / "output"
    index = name != "broker"
    max_bytes = random.Random(f"{seed}:{name}").choice((1 << 30, 400 << 10))
    progress = dispatch(
        store, output, max_bytes_per_trigger=max_bytes,
        index=None if index else False, index_tags="5.5" in name or None,
    )  # fmt: skip
    check_equal(output, store, index=index)
    assert progress.counts.duplicates == progress.counts.quarantined_bytes == 0
    assert progress.batches >= progress.end_offset // max_bytes


@pytest.mark.extended
@pytest.mark.parametrize("name", ["mixed", "ext", "lmq", "batch"])
def test_stopped_between_batches_and_replayed(
    golden: Callable[[str], Path], tmp_path: Path, name: str, seed: int
) -> None:
    """The log is shown in a few pieces, each run goes on where the last ended, then all of it is
    dispatched again: nothing is doubled, in no index."""
    full, store, output = golden(name), tmp_path / "store", tmp_path / "output"
    (store / "commitlog").mkdir(parents=True)
    for part in ("broker.conf", "config"):
        (store / part).symlink_to(full / part)
    files = sorted((full / "commitlog").iterdir())
    shown = [*random.Random(seed).sample(range(len(files) - 1), 2), len(files) - 1]
    for number, file in enumerate(files):
        shutil.copy(file, store / "commitlog")
        if number in shown:
            dispatch(store, output, max_bytes_per_trigger=200_000)
    check_equal(output, full, index=True)
    dispatch(store, output, replay_from="earliest", max_bytes_per_trigger=300_000)
    check_equal(output, full, index=True)


def test_an_index_that_is_switched_on_later(
    golden: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, call: Call
) -> None:
    """It says where it begins; the rebuild that it names adds the older keys, and then it is as if
    always on: equal to RocketMQ's, and nothing for ``verify`` to find."""
    caplog.set_level(logging.WARNING, "reput")
    full, store, output = golden("plain"), tmp_path / "store", tmp_path / "output"
    (store / "commitlog").mkdir(parents=True)
    (store / "broker.conf").symlink_to(full / "broker.conf")
    files = sorted((full / "commitlog").iterdir())
    for number, file in enumerate(files):
        shutil.copy(file, store / "commitlog")
        if number in (2, len(files) - 1):
            progress = dispatch(store, output, index=number > 2)
    command = f"reput rebuild {store} --output {output} --only index"
    line = f"the index begins at {progress.start_offset}: {command} adds older keys"
    assert caplog.messages.count(line) == 1
    settings = read_store_settings(store)
    assert verify(settings, output).differences == ()
    layout = settings.index_layout
    assert index_contents(output, layout) != index_contents(full, layout)
    assert call(*shlex.split(command)[1:]).returncode == 0
    check_equal(output, full, index=True)
    assert verify(settings, output).differences == ()


def test_tags_are_indexed_where_asked(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """As RocketMQ 5.5 does, from the first run on, which alone has to be told."""
    full, store, output = golden("mixed"), tmp_path / "store", tmp_path / "output"
    (store / "commitlog").mkdir(parents=True)
    (store / "broker.conf").symlink_to(full / "broker.conf")
    settings = read_store_settings(full)
    model = ModelIndex(settings.max_hash_slot_num, settings.max_index_num)
    log, start = CommitLog([full / "commitlog"]), 0
    segments = log.segments.listed
    for number, segment in enumerate(segments):
        copied = store / "commitlog" / segment.path.name
        copied.write_bytes(segment.path.read_bytes())
        if number not in (0, 1, len(segments) - 1):
            continue
        index_tags = True if number == 0 else None
        end = dispatch(store, output, index_tags=index_tags).end_offset
        for found in records(log, start, end):
            assert isinstance(found, Record)
            keys = index_keys(found, index_tags=True)
            hashes = tuple(index_key_hash(key) for key in keys)
            offset = found.physical_offset
            model.build_index(Message(offset, offset, found.store_timestamp, hashes))
        start = end
        layout = settings.index_layout
        assert index_contents(output, layout) == model.files
    assert len(segments) > 3
    assert difference(output / "consumequeue", full / "consumequeue") == []
