"""Rewinds over messages that the ledger lists although they are sound, and that are damaged now.

The ledger lists ranges that were damaged when they were dispatched: they had no entries that could
be lost. It also lists sound messages, for what is strange about them; those have entries.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput.checkpoints.rewind import Target
from reput.store.errors import CommitLogError
from reput.store.log.logtail import LogTail
from reput.upkeep.checkpoints import rewind
from tests.support.derived_output import DerivedOutput
from tests.support.golden import tree
from tests.support.small_store import SmallStore
from tests.support.wire import PlainLog

LISTS = b"INNER_MULTI_DISPATCH\x01%s\x02INNER_MULTI_QUEUE_OFFSET\x01%s\x02"
LISTED: dict[str, tuple[str, dict[str, object]]] = {
    "after a gap": ("queue_offset_gap", {"queue_offset": 5}),
    "lists that do not fit": ("bad_multi_dispatch", {"properties": LISTS % (b"%LMQ%a", b"x")}),
    "no name of a queue": ("topic_name", {"properties": LISTS % (b"%LMQ%\x1b", b"0")}),
    "seen before, with a key": (
        "queue_offset_seen_before", {"queue_offset": 1, "properties": b"KEYS\x01k\x02"},
    ),
}  # fmt: skip
"""The reason in the ledger, and the fields of the message."""


def output_of(directory: Path, listed: dict[str, object]) -> tuple[DerivedOutput, PlainLog]:
    """Four messages were dispatched; the third one is listed, and each has a unit or an entry of
    the index."""
    plain = PlainLog(1 << 17)
    for number in range(4):
        fields: dict[str, object] = {"topic": b"T", "queue_offset": number, "body": b"%d" % number}
        plain.append(**fields | (listed if number == 2 else {}))
    store = SmallStore(directory, plain)
    with (store.output.store / "broker.conf").open("a") as conf:
        conf.write("enableMultiDispatch=true\nenableLmq=true\nmaxHashSlotNum=7\nmaxIndexNum=9\n")
    store.output.start()
    return store.output, plain


@pytest.mark.parametrize("case", LISTED)
def test_a_sound_message_that_is_listed_is_not_cut_once_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Its unit, or the entries of its keys, could not be built again; beyond it a rewind works."""
    monkeypatch.setattr(LogTail, "SEAL_SECONDS", 0.0)
    reason, fields = LISTED[case]
    output, plain = output_of(tmp_path, fields)
    start, end = plain.spans[2]
    lines = map(json.loads, (output.state / "quarantine.jsonl").read_text().splitlines())
    assert [line["reason"] for line in lines if line["physical_offset"] == start] == [reason]
    plain.put(start, bytes(end - start))
    plain.write(output.store / "commitlog")
    before = tree(output.root / "consumequeue") | tree(output.root / "index")
    with pytest.raises(CommitLogError, match=f"rewind to {end} or later"):
        rewind(output.settings(), output.root, None, Target(offset=plain.spans[1][0]), apply=True)
    assert tree(output.root / "consumequeue") | tree(output.root / "index") == before
    rewind(output.settings(), output.root, None, Target(offset=end), apply=True)
