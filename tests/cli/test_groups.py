"""``groups`` and ``lag``: what they print of a broker's store, and what they write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.store.state.consumeroffset import Offsets, TopicGroup, read_committed
from tests.cli.test_errors import assert_one_line
from tests.readers.test_grouplag import write_offsets
from tests.support.cli import Call
from tests.support.golden import log_records, tree

TOPIC, GROUP = "Orders", "dg4"
"""In golden store broker the group has committed 0 in each of the four queues."""


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def answer(call: Call, *arguments: object) -> dict[str, Any]:
    done = call(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def committed(root: Path) -> Offsets:
    return read_committed(root) or {}


def without_ages(text: str) -> str:
    """A minute may end between two calls."""
    return re.sub(r"\d+ h \d+ min", "AGE", text)


def test_groups_and_their_lag(golden: Callable[[str], Path], call: Call) -> None:
    """The sums of the log's records, the same from each command, with or without ``list``."""
    root = golden("broker")
    orders = [found for found in log_records(root) if found.topic.decode() == TOPIC]
    first = min(found.store_timestamp for found in orders)
    size = sum(found.total_size for found in orders)
    [group] = answer(call, "groups", root)["groups"]
    assert (group["group"], group["topics"], group["queues"]) == (GROUP, [TOPIC], 4)
    assert (group["messages"], group["bytes"]) == (len(orders), size)
    assert group["first_store_timestamp"] == first
    [lag] = answer(call, "lag", root)["lags"]
    assert (lag["group"], lag["topic"], lag["messages"]) == (GROUP, TOPIC, len(orders))
    queues = answer(call, "groups", "show", root, GROUP)["queues"]
    assert [queue["committed"] for queue in queues] == [0, 0, 0, 0]
    assert sum(queue["lag"]["bytes"] for queue in queues) == size
    [same] = answer(call, "lag", root, "--topic", TOPIC, "--group", GROUP)["lags"]
    assert same == {**lag, "seconds": same["seconds"]}
    plain, listed = call("groups", root), call("groups", "list", root)
    assert without_ages(plain.stdout) == without_ages(listed.stdout)
    assert "COMMAND [ARGS]" in call("groups", "-h").stdout
    for command in (("groups", root), ("groups", "show", root, GROUP), ("lag", root)):
        assert TOPIC in (lines := call(*command).stdout) or GROUP in lines
        assert all(len(line) <= 80 for line in lines.splitlines()[1:])


def test_what_is_unknown_is_said(golden: Callable[[str], Path], call: Call) -> None:
    """Never shown as 0: no commit in one of the queues, and one beyond the queue's end."""
    root = golden("broker")
    write_offsets(root, {(TOPIC, "some"): {0: 1500, 1: 1500}, (TOPIC, "far"): {2: 1501}})
    _, *lines = call("groups", "show", root, "some").stdout.splitlines()
    assert [line.count("none") for line in lines[2:]] == [0, 0, 1, 1]
    assert [line.count("unknown") for line in lines[2:]] == [0, 0, 3, 3]
    rows = answer(call, "groups", root)["groups"]
    assert [(row["group"], row["messages"], row["seconds"]) for row in rows] == [
        ("far", None, None), ("some", None, None)
    ]  # fmt: skip
    _, *lines = call("lag", root).stdout.splitlines()
    assert [line.count("unknown") for line in lines[2:]] == [3, 3]


def test_offsets_are_written_only_with_apply(golden: Callable[[str], Path], call: Call) -> None:
    """The plan that is shown first is written then."""
    root = golden("broker")
    before = tree(root)
    for arguments in (
        ("reset", root, GROUP, "--topic", TOPIC, "--queue", 1, "--offset", 700),
        ("clone", root, GROUP, "copy"),
        ("skip", root, GROUP),
        ("reset", root, GROUP, "--topic", TOPIC, "--earliest"),
        ("reset", root, GROUP, "--topic", TOPIC, "--to-time", "2100-01-01"),
    ):
        dry = answer(call, "groups", *arguments)
        assert dry["applied"] is False
        assert tree(root) == before
        done = answer(call, "groups", *arguments, "--apply")
        assert done == {**dry, "applied": True}
        for one in done["offsets"]:
            found = committed(root)[TopicGroup(one["topic"], one["group"])]
            assert found[one["queue_id"]] == one["after"]
        before = tree(root)
    assert committed(root) == {
        TopicGroup(TOPIC, GROUP): dict.fromkeys(range(4), 1500),
        TopicGroup(TOPIC, "copy"): {0: 0, 1: 700, 2: 0, 3: 0},
    }
    text = call("groups", "skip", root, GROUP).stdout
    assert text.endswith("0 offsets of 4 queues would change; nothing was written, give --apply\n")


def test_wrong_calls(golden: Callable[[str], Path], call: Call) -> None:
    """One line, which names the way out; nothing is written."""
    root = golden("broker")
    before = tree(root / "config")
    reset = ("groups", "reset", root, GROUP, "--topic", TOPIC)
    for code, part, arguments in (
        (2, "give one of --to-time, --earliest", reset),
        (2, "give one of --to-time, --earliest", (*reset, "--earliest", "--to-time", "-1h")),
        (2, "give one of --to-time, --earliest", (*reset, "--queue", 1)),
        (2, "give one of --to-time, --earliest", (*reset, "--earliest", "--queue", 1)),
        (2, "give one of --to-time, --earliest", (*reset, "--offset", 0, "--apply")),
        (2, "--to-time is 'soon'", (*reset, "--to-time", "soon")),
        (2, "missing option '--topic'", reset[:4]),
        (2, "choose one from 0 to 1500", (*reset, "--queue", 1, "--offset", 1501, "--apply")),
        (2, "cannot be written", ("groups", "clone", root, GROUP, "a@b", "--apply")),
        (1, "no queue 9", (*reset, "--queue", 9, "--offset", 1, "--apply")),
        (1, "reput groups list shows", ("groups", "show", root, "nobody")),
        (1, "reput groups list shows", ("lag", root, "--group", "nobody")),
        (2, "no topic Order in", ("lag", root, "--topic", "Order")),
        (2, "did you mean Orders?", (*reset[:4], "--topic", "Order", "--earliest")),
        (1, "reput groups list shows", ("groups", "skip", root, "nobody", "--apply")),
        (1, "there is no directory", ("groups", root / "nowhere")),
    ):
        assert_one_line(call(*arguments), code, part)
        assert tree(root / "config") == before
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
    assert_one_line(call("groups", root), 1, "there is no", "consumerOffset.json", "copy the file")
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:"x"}}}')
    assert_one_line(call("lag", root), 1, "cannot use", "the offset of T@g in queue 0 is 'x'")
