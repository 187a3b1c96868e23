"""Records of real brokers, made again from what the brokers made them of, byte by byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from reput.store.log import record
from tests.support import delivering
from tests.support.delivering import ENDS, RENEWED, SENT_BACK, SOURCE, STORES, Store, remade
from tests.support.wire import read_log

COMPARED = {
    "sent": (16, 16, 16),
    "sent: batch": (5, 5, 5),
    "sent: waiting (level)": (8, 6, 6),
    "sent: waiting (timer)": (0, 5, 5),
    "sent: dead": (0, 2, 2),
    "sent: half": (10, 10, 10),
    "sent back: waiting": (12, 12, 12),
    "sent back: dead": (6, 6, 6),
    "delivered (level)": (19, 17, 17),
    "delivered (timer)": (0, 3, 3),
    "recall": (0, 1, 1),
    "committed": (4, 4, 4),
    "op": (7, 4, 5),
    "discarded": (1, 1, 3),
}
"""Kind -> records of g497, g533 and g551. In 4.9.7 no message waits for a time of its own, and a
given-up one waits for its level before it is dead: it is "delivered"."""
LEFT_OUT = {RENEWED: (9, 11, 16)}
"""A broker asks a producer again by appending the half once more; the overlay appends none."""


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return delivering.load(request.param, tmp_path)


def test_each_record_is_made_again(store: Store, tmp_path: Path) -> None:
    """All bytes of the record, so every field, the text of the properties and the checksum; the
    log sets offsets and store time. Source is a broker's in committed messages alone."""
    stored = dict(read_log(tmp_path / store.name / "commitlog"))
    different = []
    for kind, theirs, ours in remade(store):
        if ours is None:
            continue
        source = theirs.prepared_transaction_offset if kind == "committed" else SOURCE
        assert ours.prepared_transaction_offset == source
        placed = replace(
            ours,
            queue_offset=theirs.queue_offset,
            physical_offset=theirs.physical_offset,
            store_timestamp=theirs.store_timestamp,
            prepared_transaction_offset=theirs.prepared_transaction_offset,
        )
        if record.encode(placed) != stored[theirs.physical_offset]:
            different.append((kind, theirs, placed))
    assert different == []


def test_no_record_is_left_out_without_a_reason(store: Store) -> None:
    counted = Counter(kind for kind, _, ours in remade(store) if ours is not None)
    left_out = Counter(kind for kind, _, ours in remade(store) if ours is None)
    place = [*STORES].index(store.name)
    assert counted == Counter({kind: counts[place] for kind, counts in COMPARED.items()})
    assert left_out == Counter({kind: counts[place] for kind, counts in LEFT_OUT.items()})
    assert counted.total() + left_out.total() == len(store.records)


def test_copies_are_those_that_were_sent_back(store: Store) -> None:
    """By the tapped requests: position, group, level and largest number of attempts."""
    if not store.requests:
        assert store.name == "g497"
        return
    asked = {
        (int(r["offset"]), r["group"].encode(), int(r["delayLevel"]), int(r["maxReconsumeTimes"]))
        for r in store.requested(36)
    }
    taken = set()
    for kind, theirs, _ in remade(store):
        if kind.startswith("sent back"):
            copy, group = delivering.copy_of(store, theirs)
            taken.add((copy.physical_offset, group, *SENT_BACK[group]))
    assert taken == asked
    assert len(taken) == 18


def test_ops_name_the_ends_in_their_order(store: Store) -> None:
    """By the tapped requests: commits and rollbacks."""
    named = [
        offset
        for kind, theirs, _ in remade(store)
        if kind == "op"
        for offset in delivering.named_by(theirs)
    ]
    ended = [
        int(request["tranStateTableOffset"])
        for request in store.requested(37)
        if request["commitOrRollback"] != "0"
    ]
    assert named == ENDS.get(store.name, ended)
    assert len(named) == 7
