"""A message as ``get`` and ``tail`` show it where its body, or a field of it, is an odd one."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from reput.store.log.record import Record
from tests.cli.test_terminal import lines_on
from tests.support.cli import Call, json_lines, json_object
from tests.support.live_store import LiveStore

COMPRESSED = 1
"""RocketMQ's ``MessageSysFlag.COMPRESSED_FLAG``; without a type the body is zlib's."""


@pytest.fixture
def live(tmp_path: Path) -> LiveStore:
    """A body that is compressed, one that says so and is not, one that ends too early."""
    whole = zlib.compress(b"hello " * 100)
    with LiveStore(tmp_path) as live:
        live.append(
            Record(topic=b"T", body=body, sys_flag=COMPRESSED)
            for body in (whole, b"plain words", whole[:-9])
        )
        live.append([Record(topic=b"T", properties=b"KEYS\x01a b c\x02TAGS\x01t\x02")])
        live.dispatch()
        return live


def test_a_body_that_does_not_inflate_is_shown_as_it_is_stored(live: LiveStore, call: Call) -> None:
    """With the reason, which programs need: the bytes alone could be a message."""
    place = ("--output", live.output)
    bodies = []
    for offset in range(3):
        shown = json_object(call("get", live.root, "T", 0, offset, *place, "--body", "hex"))
        bodies.append((bytes.fromhex(shown["body"]), shown["body_problem"]))
        text = call("get", live.root, "T", 0, offset, *place, "--json").stdout
        assert ('"body_problem": null' in text) is (offset == 0)
    (first, no_problem), (second, problem), (third, other) = bodies
    assert (first, no_problem) == (b"hello " * 100, None)
    assert second == b"plain words" and problem
    assert third == zlib.compress(b"hello " * 100)[:-9] and other
    rows = json_lines(call("tail", live.root, "T", *place))
    assert [bool(row["body_problem"]) for row in rows] == [False, True, True, False]
    bare = json_lines(call("tail", live.root, "T", *place, "--body", "none"))
    assert all("body" not in row and "body_problem" not in row for row in bare)


def test_keys_are_shown_to_people_as_they_were_sent(live: LiveStore) -> None:
    """With blanks between, and no line where there are none."""
    shown = [lines_on(100, "get", live.root, "T", 0, n, "--output", live.output) for n in (2, 3)]
    keys = [[line.split()[1:] for line in lines if line.startswith("keys ")] for lines in shown]
    assert keys == [[], [["a", "b", "c"]]]


def test_a_heading_names_what_a_message_has(live: LiveStore, call: Call) -> None:
    """Keys and tags where there are some; the size of a list of keys is theirs."""
    rows = json_lines(call("tail", live.root, "T", "--output", live.output))
    assert [row["keys"] for row in rows] == [[], [], [], ["a", "b", "c"]]
    assert [row["tags"] for row in rows] == [None, None, None, "t"]
    assert re.fullmatch(r"[0-9A-F]{32}", rows[0]["message_id"])
