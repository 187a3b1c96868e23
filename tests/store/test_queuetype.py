"""Which topics are declared to have batch queues, and outputs that hold the other kind.

Held against the golden stores' ``config/topics.json`` (a broker's own) and their directories.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.errors import UsageError
from store.queuetype import check_queue_types, read_batch_topics
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
    topics = read_batch_topics(root)
    assert topics == (frozenset() if name == "broker" else {b"BatchTopic"})
    check_queue_types(root, topics)
    if name == "batch":
        with pytest.raises(UsageError, match=r"BatchTopic is declared queue\.type=SimpleCQ.*Batch"):
            check_queue_types(root, frozenset())
    for directory in (root / "consumequeue").iterdir():
        with pytest.raises(UsageError) as caught:
            check_queue_types(root, topics | {directory.name.encode()})
        for part in ("queue.type=BatchCQ", str(directory), "SimpleCQ queues", "topics.json"):
            assert part in str(caught.value)


def test_what_declares_nothing_is_simple(tmp_path: Path) -> None:
    """No file; topics without attributes, as before RocketMQ 5; RocketMQ's exact key and value."""
    assert read_batch_topics(tmp_path) == frozenset()
    table = {
        "old": {"topicName": "old"},
        "null": {"attributes": None},
        "none": {"attributes": {}},
        "other": {"attributes": {"cleanup.policy": "COMPACTION"}},
        "plus": {"attributes": {"+queue.type": "BatchCQ"}},
        "simple": {"attributes": {"queue.type": "SimpleCQ"}},
        "batch": {"attributes": {"queue.type": "BatchCQ"}},
        "订单": {"attributes": {"queue.type": "BatchCQ", "message.type": "NORMAL"}},
    }
    assert read_batch_topics(declare(tmp_path, table)) == {b"batch", "订单".encode()}


def test_a_declaration_that_nobody_understands_is_refused(tmp_path: Path) -> None:
    """Another kind of queue, or a file that holds no topics: never taken for SimpleCQ."""
    for kind in ("batchcq", "RocksDBCQ", "", 7):
        declare(tmp_path, {"T": {"attributes": {"queue.type": kind}}})
        with pytest.raises(UsageError, match=r"topic T in .*topics\.json has queue\.type="):
            read_batch_topics(tmp_path)
    for table in (None, [], "x"):
        with pytest.raises(UsageError, match="has no topicConfigTable"):
            read_batch_topics(declare(tmp_path, table))
    (tmp_path / "config" / "topics.json").write_text("{")
    with pytest.raises(UsageError, match="cannot read"):
        read_batch_topics(tmp_path)


def test_only_directories_with_units_are_refused(tmp_path: Path) -> None:
    """Empty ones are left over from a cut; foreign files are no queue."""
    for kind, topics in (("consumequeue", frozenset({b"T"})), ("batchconsumequeue", frozenset())):
        queue = tmp_path / kind / "T" / "0"
        queue.mkdir(parents=True)
        check_queue_types(tmp_path, topics)
        (queue / "notes.txt").write_text("x")
        (queue / file_name(0)).touch()
        check_queue_types(tmp_path, topics)
        (queue / file_name(0)).write_bytes(bytes(92))
        with pytest.raises(UsageError, match="topic T is declared"):
            check_queue_types(tmp_path, topics)
        shutil.rmtree(tmp_path / kind)
    # a name that is no directory has no queues of either kind
    check_queue_types(tmp_path, frozenset({b"a/b", b"..", b"\xff"}))
