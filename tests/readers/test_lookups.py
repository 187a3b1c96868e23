"""Filters that a broker's file registers, and queries by key, in rare states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reput.readers.messagestore import MessageStore
from reput.store.errors import StoreError
from tests.filters.test_consumers import document, entry
from tests.readers.stores import SmallStore


def store_with(root: Path, registered: Any) -> Path:
    """A store of one message, whose broker has registered filters."""
    small = SmallStore(root)
    small.append()
    (root / "config").mkdir(parents=True)
    (root / "config" / "consumerFilter.json").write_text(json.dumps(registered))
    return small.write()


def test_a_registered_filter_is_that_of_its_group_and_topic(tmp_path: Path) -> None:
    """One that RocketMQ cannot use matches all."""
    registered = document(g=entry(), broken=entry(expression="a ="))
    with MessageStore(store_with(tmp_path, registered)) as store:
        wanted, broken = (store.consumer_filter("t", group) for group in ("g", "broken"))
        assert wanted is not None
        assert broken is not None
        for values, is_wanted in (({"a": "x"}, True), ({"a": "y"}, False), ({}, False)):
            assert wanted.is_matched_by_commit_log(values) is is_wanted
            assert broken.is_matched_by_commit_log(values)
        assert (wanted.names, broken.names) == ({"a"}, frozenset())
        assert store.consumer_filter("t", "other") is None
        assert store.consumer_filter("other", "g") is None


@pytest.mark.parametrize(
    ("registered", "line"),
    [
        (document(g=entry(bornTime="x")), "t/g: bornTime must be a whole number"),
        (document(g=entry(), h=entry(bloomFilterData={"bitNum": 24, "bitPos": [1, 9]})),
         "RocketMQ then drops all"),
        ([], "expected an object"),
    ],
)  # fmt: skip
def test_a_file_of_filters_that_cannot_be_used_is_named(
    tmp_path: Path, registered: Any, line: str
) -> None:
    """Without the filter a consumer would be given messages that it does not want."""
    with MessageStore(store_with(tmp_path, registered)) as store:
        for group in ("g", "h", "other"):
            with pytest.raises(StoreError, match=line) as raised:
                store.consumer_filter("t", group)
            path = str(tmp_path / "config" / "consumerFilter.json")
            assert raised.value.fields["path"] == path
            assert path in str(raised.value)


def test_a_query_examines_as_many_entries_as_a_broker_allows(tmp_path: Path) -> None:
    """maxMsgsNumBatch, which is also what is examined if nothing is said; less if it is asked for,
    none included, and more where no broker is to be like. A message that has the key twice comes
    once."""
    small = SmallStore(tmp_path)
    offsets = [small.append(properties=b"KEYS\x01k k\x02") for _ in range(6)]
    small.write_index([("Topic#k", offset) for offset in offsets for _ in "kk"])
    small.write()
    with (tmp_path / "broker.conf").open("a") as conf:
        conf.write("maxMsgsNumBatch=5\n")
    with MessageStore(tmp_path) as store:
        for count, is_limited, expected, has_more in (
            (None, True, 3, True), (None, False, 3, True), (0, True, 0, True), (1, True, 1, True),
            (2, True, 1, True), (5, True, 3, True), (9, True, 3, True), (9, False, 5, True),
            (11, False, 6, True), (12, False, 6, False),
        ):  # fmt: skip
            found = store.index.query("Topic", "k", max_count=count, is_limited=is_limited)
            places = [message.physical_offset for message in found.messages]
            assert places == offsets[len(offsets) - expected :], (count, is_limited)
            assert found.has_more is has_more
