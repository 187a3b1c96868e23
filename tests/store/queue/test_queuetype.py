"""Topics that are declared to have batch queues, and outputs that hold the other kind.

Held against the golden stores' ``config/topics.json`` (a broker's own) and their directories.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.errors import StoreError
from reput.store.queue.queuetype import check_queue_types, find_batch_topics, read_queue_types
from tests.support.golden import GOLDEN_NAMES
from tests.support.wire import file_name


def declare(root: Path, table: object) -> Path:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    return root


@pytest.mark.parametrize("name", [*GOLDEN_NAMES, "batch"])
def test_golden_stores_hold_what_they_declare(golden: Callable[[str], Path], name: str) -> None:
    """One topic is declared to have batch queues, one store has some; declared otherwise, each is
    refused."""
    root = golden(name)
    topics = find_batch_topics(root, root)
    assert topics == (frozenset() if name.startswith(("broker", "orders")) else {b"BatchTopic"})
    if name == "batch":
        command = f"reput rebuild {root} --topic BatchTopic"
        with pytest.raises(StoreError, match=rf"queue\.type=SimpleCQ.*Batch.*{command}"):
            check_queue_types(root, root, frozenset())
    for directory in (root / "consumequeue").iterdir():
        with pytest.raises(StoreError) as caught:
            check_queue_types(root, root, topics | {directory.name.encode()})
        for part in ("queue.type=BatchCQ", str(directory), "as SimpleCQ", "topics.json"):
            assert part in str(caught.value)


def test_what_declares_nothing_is_simple(tmp_path: Path) -> None:
    """No file; topics without attributes, as before RocketMQ 5; RocketMQ's exact key and value."""
    assert find_batch_topics(tmp_path, tmp_path) == frozenset()
    table = {
        "old": {"topicName": "old"},
        "null": {"attributes": None},
        "none": {"attributes": {}},
        "list": {"attributes": ["queue.type"]},
        "nothing": {"attributes": {"queue.type": None}},
        "other": {"attributes": {"cleanup.policy": "COMPACTION"}},
        "plus": {"attributes": {"+queue.type": "BatchCQ"}},
        "simple": {"attributes": {"queue.type": "SimpleCQ"}},
        "batch": {"attributes": {"queue.type": "BatchCQ"}},
        "订单": {"attributes": {"queue.type": "BatchCQ", "message.type": "NORMAL"}},
    }
    declared = {b"batch", "订单".encode()}
    assert find_batch_topics(declare(tmp_path, table), tmp_path) == declared
    assert len(read_queue_types(tmp_path)) == len(table)


def test_a_declaration_that_nobody_understands_is_refused(tmp_path: Path) -> None:
    """Another kind of queue, or a file that holds no topics: never taken for SimpleCQ."""
    for kind in ("batchcq", "RocksDBCQ", "", 7):
        declare(tmp_path, {"T": {"attributes": {"queue.type": kind}}})
        with pytest.raises(StoreError, match=r"topic T in .*topics\.json has queue\.type="):
            read_queue_types(tmp_path)
    for table in (None, [], "x"):
        with pytest.raises(StoreError, match="has no topicConfigTable"):
            read_queue_types(declare(tmp_path, table))
    (tmp_path / "config" / "topics.json").write_text("{")
    with pytest.raises(StoreError, match="is not whole"):
        read_queue_types(tmp_path)


def test_only_directories_with_units_are_refused(tmp_path: Path) -> None:
    """Empty ones are left over from a cut; foreign files are no queue. Each contradiction is named
    with one command that mends all of them."""
    declare(tmp_path, {"simple": {}, "batch": {"attributes": {"queue.type": "BatchCQ"}}})
    output = tmp_path / "out put"
    wrong = []
    for kind, topic in (("consumequeue", "batch"), ("batchconsumequeue", "simple")):
        queue = output / kind / topic / "0"
        queue.mkdir(parents=True)
        wrong.append(queue / file_name(0))
        (queue / "notes.txt").write_text("x")
        wrong[-1].touch()
        assert find_batch_topics(tmp_path, output) == {b"batch"}
    for path in wrong:
        path.write_bytes(bytes(92))
        with pytest.raises(StoreError, match=f"topic {path.parts[-3]} has"):
            find_batch_topics(tmp_path, output)
        path.unlink()
    for path in wrong:
        path.write_bytes(bytes(92))
    command = f"reput rebuild {tmp_path} --output '{output}' --topic batch --topic simple"
    with pytest.raises(StoreError, match=f"{command}$"):
        find_batch_topics(tmp_path, output)
    # a name that is no directory has no queues of either kind
    shutil.rmtree(output)
    check_queue_types(tmp_path, output, frozenset({b"a/b", b"..", b"\xff"}))


def test_a_topic_that_is_not_declared_keeps_the_kind_that_it_has(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """It was deleted, which removes a broker's queues but none of another output's; declared again
    it must be what it was."""
    output = golden("batch")
    store = declare(tmp_path, {"Other": {"attributes": {"queue.type": "BatchCQ"}}})
    assert find_batch_topics(store, output) == {b"BatchTopic", b"Other"}
    declare(tmp_path, {"BatchTopic": {}})
    with pytest.raises(StoreError, match=r"BatchTopic has queue\.type=SimpleCQ"):
        find_batch_topics(store, output)
