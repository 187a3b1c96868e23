"""``--as-of`` of the commands that read, and ``diff --since``, on the command line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_errors import assert_one_line
from tests.support.cli import Call
from tests.support.golden import log_records, tree
from tests.support.queue_units import queue_units

Golden = Callable[[str], Path]


def test_a_message_is_there_from_its_end_on(golden: Golden, call: Call) -> None:
    root = golden("broker")
    before = tree(root)
    unit = next(one for one in queue_units(root) if (one.topic, one.queue_offset) == ("Orders", 9))
    get = ("get", root, "Orders", unit.queue_id, 9, "--json", "--as-of")
    found = call(*get, f"offset:{unit.offset + unit.size}")
    assert json.loads(found.stdout)["physical_offset"] == unit.offset
    moment = f"offset:{unit.offset + unit.size - 1}"
    missing = call("get", root, "Orders", unit.queue_id, 9, "--as-of", moment)
    assert_one_line(missing, 1, "no message at offset 9", "has [0, 9)")
    last = call("tail", root, "Orders", "-n", 1, "--json", "--as-of", f"offset:{unit.offset}")
    assert json.loads(last.stdout)["physical_offset"] < unit.offset
    assert tree(root) == before


def test_two_moments_differ_by_what_was_stored_between(golden: Golden, call: Call) -> None:
    """Counted in the queues; without ``--as-of`` up to now."""
    root = golden("mixed")
    units, records = queue_units(root), log_records(root)
    first, second = records[len(records) // 3], records[len(records) // 2]
    for start, end in (
        (first.physical_offset, second.physical_offset),
        (second.physical_offset, None),
        (0, 0),
    ):
        until = () if end is None else ("--as-of", f"offset:{end}")
        done = call("diff", root, "--since", f"offset:{start}", *until, "--json")
        found = json.loads(done.stdout)
        wanted = Counter(
            (one.topic, one.queue_id)
            for one in units
            if start < one.offset + one.size and (end is None or one.offset + one.size <= end)
        )
        queues = {(one["topic"], one["queue_id"]): one for one in found["queues"]}
        assert {key: one["to_offset"] - one["from_offset"] for key, one in queues.items()} == wanted
        assert (done.returncode, found["equal"]) == (int(bool(wanted)), not wanted)
    text = call("diff", root, "--since", "offset:0").stdout
    assert text.splitlines()[-1].startswith(f"{len({(u.topic, u.queue_id) for u in units})} ")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--since", "offset:x"), 2, "--since is 'offset:x'; it must be offset:N or batch:N"),
        (("--since", "soon"), 2, "--since is 'soon'; it must be one of"),
        (("--since", "offset:99999999999"), 2, "is beyond what is dispatched"),
        (("--since", "offset:9000", "--as-of", "offset:1"), 2, "moments are in the wrong order"),
        (("--as-of", "offset:1"), 2, "give STORE_B to compare with, or --since"),
        ((".", "--since", "offset:1"), 2, "leave STORE_B and --only out"),
        (("--since", "offset:1", "--only", "index"), 2, "leave STORE_B and --only out"),
        ((".", "--as-of", "offset:1"), 2, "need --since"),
        (("--since", "batch:1"), 2, "has no watermark"),
    ],
)
def test_wrong_moments(
    golden: Golden, call: Call, words: tuple[str, ...], code: int, text: str
) -> None:
    assert_one_line(call("diff", golden("mixed"), *words), code, text)
