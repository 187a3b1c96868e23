"""A command refuses before it starts Java all that the start would refuse, and no more."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from reput.checkpoints.swap import has_begun_swap
from reput.store import fsops
from reput.store.errors import OutputError, StoreError, UsageError
from reput.streaming.refusals import check_output
from reput.upkeep.rebuild import rebuild
from tests.streaming.test_begin_again import sparkless
from tests.support.configs import configured
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.wire import PlainLog

SMALL, LARGE = 200, 6000
"""Sizes of queue files."""


@pytest.fixture
def output(tmp_path: Path) -> DerivedOutput:
    """Sixty messages, dispatched into small files."""
    plain = PlainLog(1 << 14)
    for number in range(60):
        plain.append(topic=b"A", queue_offset=number)
    plain.write(tmp_path / "store" / "commitlog")
    (tmp_path / "store" / "broker.conf").write_text("mappedFileSizeCommitLog=16384\n")
    made = DerivedOutput(tmp_path / "store", tmp_path / "output")
    made.start(mapped_file_size_consume_queue=SMALL)
    return made


def check(output: DerivedOutput, **options: object) -> None:
    config = configured(output.store, output.root, **options)
    check_output(config, config.given_settings())


def test_a_start_that_finishes_a_rebuild_is_not_refused_by_what_that_replaces(
    output: DerivedOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild was killed while it was moved in; the start is told what the rebuild was told."""
    with pytest.raises(UsageError, match=f"ConsumeQueue={SMALL}, but .* says {LARGE}"):
        check(output, mapped_file_size_consume_queue=LARGE)
    config = configured(output.store, output.root, mapped_file_size_consume_queue=LARGE)
    with monkeypatch.context() as patch, pytest.raises(OutputError):
        patch.setattr(fsops, "_failpoints", fsops._Failpoints("exchange:1=EIO"))
        rebuild(config, threading.Event(), build=sparkless)
    assert has_begun_swap(output.root)
    check(output, mapped_file_size_consume_queue=LARGE)
    output.start(mapped_file_size_consume_queue=LARGE)
    (file,) = tree(output.root / "consumequeue").values()
    assert len(file) == LARGE
    assert output.verify().differences == ()


def test_a_topic_that_became_a_batch_topic_is_refused_at_once(output: DerivedOutput) -> None:
    """Its queues are of the other kind."""
    check(output)
    topics = output.store / "config" / "topics.json"
    topics.parent.mkdir()
    attributes = {"queue.type": "BatchCQ"}
    table = {"topicConfigTable": {"A": {"topicName": "A", "attributes": attributes}}}
    topics.write_text(json.dumps(table))
    with pytest.raises(StoreError, match=r"topic A has queue\.type=BatchCQ"):
        output.start()
    with pytest.raises(StoreError, match=r"topic A has queue\.type=BatchCQ"):
        check(output)
