"""A start of an output of which a part is gone: what it misses, by logs of a few messages.

``test_removed_entries`` has outputs with every kind of derived files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reput.store.errors import StoreError
from reput.store.state.ends import Ends, EntryEnd, EntryName, read_ends, write_ends
from reput.store.state.watermark import read_watermark
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.wire import PlainLog, file_name

CONF = "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=200\nmaxHashSlotNum=7\n"


def dispatched(
    directory: Path, conf: str = "", *, own: bool = False
) -> tuple[DerivedOutput, PlainLog]:
    """Six messages each of the topics A and B, in turns; ``own`` is for a broker's own store."""
    plain, store = PlainLog(1 << 12), directory / "store"
    for number in range(12):
        topic, keys = (b"A", b"B")[number % 2], b"KEYS\x01k%d\x02" % number
        plain.append(topic=topic, queue_offset=number // 2, properties=keys, body=b"")
    plain.write(store / "commitlog")
    (store / "broker.conf").write_text(CONF + conf)
    output = DerivedOutput(store, store if own else directory / "output")
    output.start()
    return output, plain


def keep_units(output: DerivedOutput, topic: str, count: int) -> None:
    """Zero all but the first units of a queue."""
    path = output.root / "consumequeue" / topic / "0" / file_name(0)
    path.write_bytes(path.read_bytes()[: 20 * count].ljust(200, b"\0"))


def test_a_replay_has_to_begin_before_all_that_is_missing(tmp_path: Path) -> None:
    """One of two queues lacks more than the other: a replay from where that one begins to lack
    units is refused, and changes nothing; from where the first one does it builds all of them."""
    output, plain = dispatched(tmp_path, "messageIndexEnable=false\n")
    wanted = tree(output.root / "consumequeue")
    keep_units(output, "A", 2)
    keep_units(output, "B", 5)
    before = tree(output.root / "consumequeue")
    with pytest.raises(StoreError, match="lack entries that were built"):
        output.start(replay_from=str(plain.spans[10][0]))
    assert tree(output.root / "consumequeue") == before
    output.start(replay_from=str(plain.spans[3][0]))
    assert tree(output.root / "consumequeue") == wanted


def test_an_index_is_missed_in_a_brokers_own_store(tmp_path: Path) -> None:
    """The table of topics says which queues a broker has deleted; it deletes no index with them."""
    output, _ = dispatched(tmp_path, "maxIndexNum=9\n", own=True)
    (output.store / "config").mkdir(exist_ok=True)
    table = {"topicConfigTable": {"A": {}, "B": {}}}
    (output.store / "config" / "topics.json").write_text(json.dumps(table))
    output.start()
    shutil.rmtree(output.root / "index")
    with pytest.raises(StoreError, match=r"rebuild .*--only index"):
        output.start()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_record_of_another_output_does_not_count(tmp_path: Path, *, is_ours: bool) -> None:
    """It lists a queue that this output never had."""
    output, _ = dispatched(tmp_path, "messageIndexEnable=false\n")
    found, ends = read_watermark(output.state), read_ends(output.state)
    assert found and ends
    entries = {**ends.entries, EntryName("consumequeue", "Elsewhere", 0): EntryEnd(20, 100)}
    store_id = found.store_id if is_ours else "f" * 32
    write_ends(output.state, Ends(store_id, found.end_offset, entries))
    if is_ours:
        with pytest.raises(StoreError, match="topic Elsewhere queue 0"):
            output.start()
        return
    output.start()


def test_an_index_that_began_late_begins_there_after_queues_were_built_again(
    tmp_path: Path,
) -> None:
    """It was switched off when they were: nothing of the log before its begin was indexed then."""
    output, plain = dispatched(tmp_path, "maxIndexNum=9\n")
    shutil.rmtree(output.root)
    middle = plain.spans[6][0]
    output.start(index=False, part=lambda _: middle)
    output.start(index=True)
    output.start(index=False)
    wanted = tree(output.root / "consumequeue")
    shutil.rmtree(output.root / "consumequeue")
    output.start()
    assert tree(output.root / "consumequeue") == wanted
    found = read_watermark(output.state)
    assert found is not None
    assert found.index_begin == middle
    output.start(index=True)
    assert output.verify().differences == ()
