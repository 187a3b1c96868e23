"""``groups`` and ``lag`` of an output that has queues and committed offsets of its own, and of
single topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.store.log.record import Record
from reput.store.state.consumeroffset import read_committed
from tests.cli.test_groups import answer
from tests.readers.test_grouplag import write_offsets
from tests.support.cli import Call
from tests.support.golden import tree
from tests.support.live_store import LiveStore


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveStore]:
    """Three messages of A and two of B; the group's offsets of the output are not the store's,
    which has no queues."""
    with LiveStore(tmp_path) as live:
        live.append(Record(topic=topic, body=b"x") for topic in (b"A", b"B", b"A", b"B", b"A"))
        live.dispatch()
        write_offsets(live.root, {("A", "g"): {0: 0}, ("B", "g"): {0: 0}})
        write_offsets(live.output, {("A", "g"): {0: 1}, ("B", "g"): {0: 2}})
        yield live


def test_the_output_that_is_named_is_read(live: LiveStore, call: Call) -> None:
    """Its offsets, and the lag in its queues."""
    place = (live.root, "--output", live.output)
    file = str(live.output / "config" / "consumerOffset.json")
    found = answer(call, "groups", *place)
    ((group, topics, queues, messages),) = [
        (one["group"], one["topics"], one["queues"], one["messages"]) for one in found["groups"]
    ]
    assert (found["offsets_file"], group, topics) == (file, "g", ["A", "B"])
    assert (queues, messages) == (2, 2)
    shown = answer(call, "groups", "show", live.root, "g", "--output", live.output)["queues"]
    assert [(one["topic"], one["committed"], one["max_offset"]) for one in shown] == [
        ("A", 1, 3), ("B", 2, 2)
    ]  # fmt: skip
    lags = answer(call, "lag", *place)["lags"]
    assert [(one["topic"], one["messages"]) for one in lags] == [("A", 2), ("B", 0)]


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (("skip", "g"), {("A", "g"): {0: 3}, ("B", "g"): {0: 2}}),
        (("clone", "g", "h"), {("A", "h"): {0: 1}, ("B", "h"): {0: 2}}),
        (("reset", "g", "--topic", "B", "--earliest"), {("A", "g"): {0: 1}, ("B", "g"): {0: 0}}),
        (
            ("reset", "g", "--topic", "A", "--queue", 0, "--offset", 2),
            {("A", "g"): {0: 2}, ("B", "g"): {0: 2}},
        ),
    ],
    ids=["skip", "clone", "earliest", "offset"],
)
def test_the_output_that_is_named_is_written(
    live: LiveStore,
    call: Call,
    words: tuple[object, ...],
    after: dict[tuple[str, str], dict[int, int]],
) -> None:
    """The offsets of the store, which is its broker's, stay as they are."""
    name, *rest = words
    before, store = read_committed(live.output), tree(live.root)
    assert before is not None
    answer(call, "groups", name, live.root, *rest, "--output", live.output, "--apply")
    assert read_committed(live.output) == {**before, **after}
    assert tree(live.root) == store


@pytest.mark.parametrize("words", [("skip", "g"), ("clone", "g", "h")])
def test_only_the_topic_that_is_named_is_moved(
    live: LiveStore, call: Call, words: tuple[str, ...]
) -> None:
    """Where the group has committed in others as well."""
    write_offsets(live.output, {("A", "g"): {0: 1}, ("B", "g"): {0: 1}})
    name, *rest = words
    place = (live.root, *rest, "--topic", "B", "--output", live.output)
    (moved,) = answer(call, "groups", name, *place, "--apply")["offsets"]
    assert moved["topic"] == "B"
    found = read_committed(live.output)
    wanted = {"skip": {("A", "g"): {0: 1}, ("B", "g"): {0: 2}}}
    cloned = {("A", "g"): {0: 1}, ("B", "g"): {0: 1}, ("B", "h"): {0: 1}}
    assert found == wanted.get(name, cloned)


def test_a_group_without_the_topic_that_is_asked_for_is_no_empty_table(
    live: LiveStore, call: Call
) -> None:
    """A line says where it was looked."""
    write_offsets(live.output, {("A", "g"): {0: 1}})
    done = call("lag", live.root, "--topic", "B", "--output", live.output)
    file = live.output / "config" / "consumerOffset.json"
    assert (done.returncode, done.stdout) == (
        0, f"offsets in {file}: none that were asked for\n"
    )  # fmt: skip
