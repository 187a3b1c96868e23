"""Moved offsets of consumer groups, beside plain searches in RocketMQ's own queues."""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from reput.readers.messagestore import MessageStore
from reput.readers.offsetreset import (
    OffsetChange,
    change_offsets,
    check_group,
    clone,
    reset_to_earliest,
    reset_to_offset,
    reset_to_time,
    skip,
)
from reput.store.brokerlock import BrokerLock
from reput.store.errors import NotFoundError, OwnershipError, UsageError
from reput.store.state.consumeroffset import Offsets, TopicGroup, read_committed
from tests.readers.test_grouplag import write_offsets
from tests.support.golden import tree
from tests.support.live_store import LiveStore
from tests.support.plain_queues import plain_queue, queue_directories
from tests.support.processes import holder

TOPIC = "Orders"


def test_a_reset_leads_to_the_first_message_of_a_time(
    golden: Callable[[str], Path], seed: int
) -> None:
    """In every queue of every topic: stored at that time or later, or else the end."""
    root = golden("plain")
    rng = random.Random(seed)
    queues = {
        (directory.parent.name, int(directory.name)): [
            message.record.store_timestamp for message in plain_queue(root, directory)
        ]
        for directory in queue_directories(root)
    }
    known = sorted(time for times in queues.values() for time in times)
    asked = [0, known[0], known[-1], known[-1] + 1, *rng.choices(known, k=20)]
    with MessageStore(root) as store:
        for topic in sorted({topic for topic, _ in queues}):
            for time in asked:
                found = reset_to_time(store, {}, "g", topic, time)
                assert {change.queue_id: change.after for change in found} == {
                    queue_id: bisect_left(times, time)
                    for (of, queue_id), times in queues.items()
                    if of == topic
                }


def test_offsets_are_moved_to_the_bounds_and_between(golden: Callable[[str], Path]) -> None:
    """The first log file is gone: the beginning is that of the log."""
    root = golden("plain")
    sorted((root / "commitlog").iterdir())[0].unlink()
    with MessageStore(root) as store:
        topic = store.topics()[0]
        low, high = store.queue(topic, 0).bounds()
        assert 0 < low < high
        offsets: Offsets = {TopicGroup(topic, "g"): {0: low + 1}}
        for found, after in (
            (reset_to_earliest(store, offsets, "g", topic), low),
            (skip(store, offsets, "g", None), high),
            (reset_to_offset(store, offsets, "g", topic, 0, low), low),
            (reset_to_offset(store, offsets, "g", topic, 0, high), high),
        ):
            assert found[0] == OffsetChange("g", topic, 0, low + 1, after)
        for offset in (low - 1, high + 1):
            with pytest.raises(UsageError, match=f"choose one from {low} to {high}"):
                reset_to_offset(store, offsets, "g", topic, 0, offset)
        for problem, ask in (
            ("has no queue 99", partial(reset_to_offset, store, {}, "g", topic, 99, 0)),
            ("group h has committed nothing", partial(skip, store, offsets, "h", None)),
        ):
            with pytest.raises(NotFoundError, match=problem):
                ask()
        with pytest.raises(UsageError, match="no topic Nowhere in"):
            reset_to_earliest(store, {}, "g", "Nowhere")


def test_a_clone_replaces_whole_topics() -> None:
    """All that the group has but its retry topic, which is of no use to another group."""
    offsets = {
        TopicGroup("A", "g"): {0: 1, 1: 2}, TopicGroup("B", "g"): {0: 3},
        TopicGroup("%RETRY%g", "g"): {0: 4}, TopicGroup("A", "h"): {1: 9, 2: 8},
        TopicGroup("C", "h"): {0: 7},
    }  # fmt: skip
    assert clone(offsets, "g", "h", None) == [
        OffsetChange("h", "A", 0, None, 1), OffsetChange("h", "A", 1, 9, 2),
        OffsetChange("h", "A", 2, 8, None), OffsetChange("h", "B", 0, None, 3),
    ]  # fmt: skip
    assert clone(offsets, "g", "h", ["B"]) == [OffsetChange("h", "B", 0, None, 3)]
    with pytest.raises(NotFoundError, match="group g has committed nothing in topic C"):
        clone(offsets, "g", "h", ["C"])
    with pytest.raises(UsageError, match="name two groups"):
        clone(offsets, "g", "g", None)


def test_a_new_group_needs_a_name_of_rocketmqs(tmp_path: Path) -> None:
    """One that the file of offsets holds may have any name."""
    write_offsets(tmp_path, {("A", "g"): {0: 1}, ("A", "组 @b"): {0: 5}})
    for name in ("a@b", "", "x" * 256, "a b", "../x"):
        plan = partial(clone, source="g", target=name, topics=None)
        for apply in (False, True):
            with pytest.raises(UsageError, match="cannot be written"):
                change_offsets(tmp_path, None, plan, apply=apply)
    plan = partial(clone, source="g", target="组 @b", topics=None)
    assert change_offsets(tmp_path, None, plan, apply=True) == [OffsetChange("组 @b", "A", 0, 5, 1)]
    plan = partial(clone, source="组 @b", target="h", topics=None)
    change_offsets(tmp_path, None, plan, apply=True)
    assert read_committed(tmp_path) == {
        ("A", "g"): {0: 1}, ("A", "组 @b"): {0: 1}, ("A", "h"): {0: 1}
    }  # fmt: skip


@pytest.mark.parametrize("apply", [False, True])
def test_what_the_file_can_hold_is_written_and_nothing_else(tmp_path: Path, *, apply: bool) -> None:
    """A group's offsets of broadcasts have a name of their own, and no topic has the sign that
    stands between the two names."""
    write_offsets(tmp_path, {("A", "g"): {0: 1}})
    plan = partial(clone, source="g", target="h@broadcast", topics=None)
    change = OffsetChange("h@broadcast", "A", 0, None, 1)
    assert change_offsets(tmp_path, None, plan, apply=apply) == [change]
    wrong = OffsetChange("g", "A@B", 0, None, 1)
    with pytest.raises(UsageError, match="group g in topic A@B cannot be written"):
        change_offsets(tmp_path, None, lambda _: [wrong], apply=apply)
    known = {("A", "g"): {0: 1}} | ({("A", "h@broadcast"): {0: 1}} if apply else {})
    assert read_committed(tmp_path) == known


def test_a_group_is_known_by_its_offsets_or_to_the_broker(tmp_path: Path) -> None:
    """Either is enough; a name of neither may be mistyped."""
    offsets: Offsets = {TopicGroup("A", "has-consumed"): {0: 1}}
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "subscriptionGroup.json"
    for table in (None, {"is-declared": {"groupName": "is-declared"}}):
        if table is not None:
            path.write_text(json.dumps({"subscriptionGroupTable": table}))
        check_group(tmp_path, offsets, "has-consumed")
        with pytest.raises(NotFoundError, match=r"group has-consume \(did you mean has-consumed\?"):
            check_group(tmp_path, offsets, "has-consume")
    check_group(tmp_path, offsets, "is-declared")


def test_no_offset_is_written_among_a_stores_data(golden: Callable[[str], Path]) -> None:
    """A directory of the log is no output; it stays as it is."""
    root = golden("broker")
    before = tree(root / "commitlog")
    plan = partial(clone, source="dg4", target="h", topics=None)
    with pytest.raises(UsageError):
        change_offsets(root, root / "commitlog", plan, apply=True)
    assert tree(root / "commitlog") == before


def test_an_output_takes_over_the_stores_offsets(tmp_path: Path) -> None:
    """The store stays as it is, and a dry run writes nothing anywhere."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a", b"b")
        live.dispatch()
        write_offsets(live.root, {("T", "g"): {0: 1}, ("T", "h"): {0: 2}})
        before = tree(live.root), tree(live.output)
        with MessageStore(live.root, output=live.output) as store:
            plan = partial(skip, store, group="g", topics=None)
            shown = change_offsets(live.root, live.output, plan, apply=False)
            assert (tree(live.root), tree(live.output)) == before
            assert change_offsets(live.root, live.output, plan, apply=True) == shown
            change_offsets(
                live.root, live.output, partial(clone, source="g", target="i", topics=None),
                apply=True,
            )  # fmt: skip
            # a dry run, too, begins with what the output has from then on
            back = partial(clone, source="i", target="g", topics=None)
            shown = change_offsets(live.root, live.output, back, apply=False)
            assert shown == [OffsetChange("g", "T", 0, 2, 2)]
    assert tree(live.root) == before[0]
    assert read_committed(live.output) == {("T", "g"): {0: 2}, ("T", "h"): {0: 2},
                                           ("T", "i"): {0: 2}}  # fmt: skip


def test_offsets_that_a_group_loses_are_in_the_file_no_more(tmp_path: Path) -> None:
    """Neither one of several, nor a pair of topic and group whose last one it was."""
    written = {("A", "g"): {0: 1}, ("A", "h"): {0: 9, 1: 5}, ("B", "h"): {0: 3}}
    write_offsets(tmp_path, written)
    change_offsets(tmp_path, None, partial(clone, source="g", target="h", topics=None), apply=True)
    assert read_committed(tmp_path) == {**written, ("A", "h"): {0: 1}}
    lost = OffsetChange("h", "B", 0, 3, None)
    assert change_offsets(tmp_path, None, lambda _: [lost], apply=True) == [lost]
    text = (tmp_path / "config" / "consumerOffset.json").read_text()
    assert sorted(re.findall(r'"(\w+@\w+)"', text)) == ["A@g", "A@h"]


def test_a_broadcasting_group_is_a_group_and_a_topic_has_no_separator(tmp_path: Path) -> None:
    """RocketMQ marks the first by a suffix, and takes the file's keys apart at the separator."""
    write_offsets(tmp_path, {("A", "g"): {0: 1}})
    plan = partial(clone, source="g", target="h@broadcast", topics=None)
    change_offsets(tmp_path, None, plan, apply=True)
    expected = {("A", "g"): {0: 1}, ("A", "h@broadcast"): {0: 1}}
    assert read_committed(tmp_path) == expected
    change = OffsetChange("g", "A@B", 0, None, 7)
    with pytest.raises(UsageError, match="in topic A@B cannot be written"):
        change_offsets(tmp_path, None, lambda _: [change], apply=True)
    assert read_committed(tmp_path) == expected


def test_no_offset_is_written_into_a_store_s_data(tmp_path: Path) -> None:
    """An output below its log would be taken for a part of it."""
    with LiveStore(tmp_path) as live:
        live.append_tags(b"a")
        write_offsets(live.root, {("T", "g"): {0: 1}})
        before, below = tree(live.root), live.root / "commitlog" / "output"
        plan = partial(clone, source="g", target="h", topics=None)
        with pytest.raises(UsageError, match="holds the data of a store"):
            change_offsets(live.root, below, plan, apply=True)
        assert tree(live.root) == before


def test_no_offset_is_written_beside_another_writer(golden: Callable[[str], Path]) -> None:
    """A broker keeps offsets in memory, and would write its own over ours."""
    root = golden("broker")
    before = (root / "config" / "consumerOffset.json").read_bytes()
    plan = partial(clone, source="dg4", target="h", topics=None)
    with (
        holder(lambda: BrokerLock(root).__enter__()) as pid,
        pytest.raises(OwnershipError, match=f"is held by process {pid}"),
    ):
        change_offsets(root, None, plan, apply=True)
    assert (root / "config" / "consumerOffset.json").read_bytes() == before
    change_offsets(root, None, plan, apply=True)
    committed = read_committed(root) or {}
    assert committed[TopicGroup(TOPIC, "h")] == committed[TopicGroup(TOPIC, "dg4")]
